import importlib.util
import os
import shutil
import subprocess

import distributed
import pytest
import sshd
from launching import no_idle_cost

from commbench.conformance import check_launcher, launcher_kit
from commbench.errors import UsageError
from commbench.launchers import members
from commbench.launchers.launcher import Launcher, RunningCluster
from commbench.launchers.local import LocalLauncher


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{"threads_per_worker": 2}, {"launcher_options": {"processes": "1"}}]
)
def test_local(given, tmp_path, tag):
    check_launcher("local", tmp_path, **given)


@pytest.mark.slow
@needs("dask_mpi")
def test_mpirun(tmp_path, tag):
    check_launcher("mpirun", tmp_path)


@pytest.mark.slow
@needs("dask_mpi")
def test_mpirun_on_hosts(tmp_path, tag, monkeypatch):
    if shutil.which("ssh") is None:
        pytest.skip("ssh of openssh-client is not installed")
    other = "127.0.0.2"  # hydra takes no SSH to addresses of this host
    with sshd.server(tmp_path / "sshd", (other,)) as server:
        monkeypatch.setenv("HYDRA_LAUNCHER_EXEC", str(server.command(tmp_path / "ssh")))
        check_launcher(
            "mpirun", tmp_path, hosts=("127.0.0.1", other, other),
            launcher_options={"interface": "lo"},
        )  # fmt: skip
        assert "Accepted publickey" in server.log.read_text()


@pytest.mark.slow
@needs("asyncssh")
def test_ssh(tmp_path, tag):
    with sshd.server(tmp_path / "sshd") as server:
        check_launcher(
            "ssh", tmp_path, hosts=("127.0.0.1", "127.0.0.1"), launcher_options=server.options
        )


class UncountedCluster(RunningCluster):
    """Workers in this process, whose CPU time is not counted."""

    def __init__(self):
        self._cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, protocol="tcp",
            dashboard_address=":0",
        )  # fmt: skip
        self.client = distributed.Client(self._cluster, set_as_default=False)
        workers = members.workers_by_address(self.client)
        self.names = {address: str(info["name"]) for address, info in workers.items()}
        self.pids = (os.getpid(),)
        self.remote_members = self.remote_processes = frozenset(["first", "second"])

    def cpu_seconds(self):
        return 0.0

    def close(self):
        self.client.close()
        self._cluster.close()


class UncountedLauncher(Launcher):
    """Starts an ``UncountedCluster``."""

    name = "uncounted"

    def start(self, spec, protocol, scratch, preload=()):
        return UncountedCluster()


@pytest.fixture
def uncounted(installed):
    installed("launcher", {"uncounted": UncountedLauncher})


def test_cpu_time_that_is_not_counted_is_an_error(uncounted, tmp_path):
    with pytest.raises(AssertionError, match=r"worker [01] used 0\.3.* has 0\.000"):
        check_launcher("uncounted", tmp_path)


@pytest.mark.slow
def test_a_process_that_outlives_its_cluster_is_an_error(tmp_path, monkeypatch, installed):
    class LeavingLauncher(LocalLauncher):
        name = "leaving"

        def start(self, *args, **kwargs):
            running = super().start(*args, **kwargs)
            pids = (*running.pids, left.pid)
            monkeypatch.setattr(type(running), "n_processes", len(running.pids))
            running.pids = pids
            return running

    monkeypatch.setattr(launcher_kit, "_END_SECONDS", 0.2)
    monkeypatch.setattr("commbench.harness.measure.cluster.measure_idle", no_idle_cost)
    installed("launcher", {"leaving": LeavingLauncher})
    left = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(AssertionError, match=rf"processes \[{left.pid}\] outlive the"):
            check_launcher("leaving", tmp_path)
    finally:
        left.kill()
        left.wait()


def test_a_launcher_with_options_supports_them():
    class Wrapping(LocalLauncher):
        supports = frozenset()
        options = ("wrapper",)

    assert Wrapping.supports == {"launcher_options"}
    assert "launcher_options" not in Launcher.supports


@pytest.mark.parametrize("requires_hosts", [False, True])
def test_a_field_that_is_accepted_but_not_used_is_an_error(
    requires_hosts, uncounted, tmp_path, monkeypatch
):
    def validate(_, spec, backend):
        if requires_hosts and not spec.hosts:
            raise UsageError("no hosts")

    monkeypatch.setattr(UncountedLauncher, "supports", Launcher.supports | {"hosts"})
    monkeypatch.setattr(UncountedLauncher, "validate", validate)
    given = {"hosts": ("a", "b")} if requires_hosts else {}
    with pytest.raises(AssertionError, match="memory_limit, which uncounted does not take, went"):
        check_launcher("uncounted", tmp_path, **given)

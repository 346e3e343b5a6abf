"""Every launcher keeps the same promises: those of ``check_launcher``."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import dask_clusters
import processes
import pytest
import sshd
from distributed import Client

from commbench.conformance import check_launcher
from commbench.launchers.base import Launcher
from commbench.launchers.local import LocalLauncher
from commbench.model import registry


def needs(package: str) -> pytest.MarkDecorator:
    """Return the mark of a test that takes a package."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def test_local(tmp_path: Path, tag: processes.Tag) -> None:
    """Two threads each, for a change."""
    check_launcher("local", tmp_path, threads_per_worker=2)


@pytest.mark.slow
@needs("dask_mpi")
def test_mpirun(tmp_path: Path, tag: processes.Tag) -> None:
    """The ranks of a world are all counted; ``test_mpirun.py`` has worlds that are not slow."""
    check_launcher("mpirun", tmp_path)


@pytest.mark.slow
@needs("dask_mpi")
def test_mpirun_on_hosts(
    tmp_path: Path, tag: processes.Tag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks that a server of SSH has started count as much as those that ``mpiexec`` has."""
    if shutil.which("ssh") is None:
        pytest.skip("ssh of openssh-client is not installed")
    other = "127.0.0.2"  # hydra takes no SSH to its own addresses
    with sshd.server(tmp_path / "sshd", (other,)) as server:
        monkeypatch.setenv("HYDRA_LAUNCHER_EXEC", str(server.command(tmp_path / "ssh")))
        check_launcher(
            "mpirun", tmp_path, hosts=("127.0.0.1", other, other),
            launcher_options={"interface": "lo"},
        )  # fmt: skip
        assert "Accepted publickey" in server.log.read_text()


@pytest.mark.slow
@needs("asyncssh")
def test_ssh(tmp_path: Path, tag: processes.Tag) -> None:
    """Two workers on the only other host; ``test_ssh.py`` has launches that are not slow."""
    with sshd.server(tmp_path / "sshd") as server:
        check_launcher(
            "ssh", tmp_path, hosts=("127.0.0.1", "127.0.0.1"), launcher_options=server.options
        )


def test_external(tmp_path: Path, tag: processes.Tag) -> None:
    """The cluster is still there afterwards, and works."""
    with dask_clusters.started(tmp_path) as cluster:
        check_launcher("external", tmp_path, scheduler=cluster.address, start_timeout_s=30.0)
        with Client(cluster.address, set_as_default=False) as client:
            assert len(client.run(os.getpid)) == 2
            assert client.submit(sum, [1, 2]).result() == 3


def test_a_promise_that_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time that is lost, here that of the workers, is an error with both numbers."""

    class Flattering(LocalLauncher):
        name = "flattering"

        def start(self, *given: object) -> object:
            cluster = super().start(*given)
            cluster.pids = cluster.pids[:2]
            cluster.remote_members = frozenset(["nobody", "no-one"])
            monkeypatch.setattr(cluster, "cpu_seconds", lambda: 0.0)
            return cluster

    load = registry.load
    monkeypatch.setattr(
        registry,
        "load",
        lambda kind, name: Flattering if name == "flattering" else load(kind, name),
    )
    with pytest.raises(AssertionError, match=r"worker [01] used 0\.3.* has 0\.000"):
        check_launcher("flattering", tmp_path)
    monkeypatch.setattr(Flattering, "supports", Launcher.supports | {"hosts"})
    monkeypatch.setattr(Flattering, "validate", lambda *_: None)
    with pytest.raises(AssertionError, match="scheduler, which flattering does not take, went"):
        check_launcher("flattering", tmp_path)

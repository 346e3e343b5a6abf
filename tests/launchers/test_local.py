import json
import os
import resource
import signal
import subprocess
import sys
import time

import builders
import dask
import distributed  # noqa: F401 - before a test changes its configuration
import processes
import pytest
from launching import make_launch

from commbench.backends import parse
from commbench.errors import UsageError
from commbench.harness import runner
from commbench.launchers import local
from commbench.launchers.launcher import worker_preloads
from commbench.launchers.local import LocalLauncher
from commbench.machine import gpu, process
from commbench.model import ClusterSpec, Placement

# The processes of a launch have no warnings as errors and no captured output as pytest's has.
PARENT = """
import sys
from pathlib import Path
from commbench.launchers.child import ForkedModule

module, log = sys.argv[1:3]
child = ForkedModule("a name", [module, *sys.argv[3:]], {"COLOUR": "blue"}, Path(log))
print(child.pid, flush=True)
print(child.wait(30), child.poll(), flush=True)
"""
MODULE = """
import os, sys, time
print(sys.argv[1:], os.environ["COLOUR"], open("/proc/self/comm").read(), flush=True)
print("an error", file=sys.stderr)
assert sys.stdin.read() == ""
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


CLUSTER = """
import dask, json, os, resource, sys
from pathlib import Path
from commbench.launchers.local import LocalLauncher
from commbench.model import ClusterSpec

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        b"x" * (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def settings():
    from distributed.comm.utils import OFFLOAD_THRESHOLD
    from distributed.protocol.utils import BIG_BYTES_SHARD_SIZE
    keys = "mine", "theirs.name", "distributed.worker.memory.spill"
    given = [dask.config.get(key, None) for key in keys]
    return OFFLOAD_THRESHOLD, BIG_BYTES_SHARD_SIZE, os.environ.get("MKL_NUM_THREADS"), *given

def limits(dask_worker):
    return dask_worker.memory_manager.memory_limit

def preloads(dask_scheduler=None, dask_worker=None):
    server = dask_scheduler or dask_worker
    return server and [each.name for each in server.preloads]
def in_all(read):
    return [client.run_on_scheduler(read), read(), *client.run(read).values()]

spec = ClusterSpec(launcher_options={"start": sys.argv[1]}, memory_limit="300 MB")
Path("sets_mine.py").write_text("import dask; dask.config.set(mine=1)")
with LocalLauncher().start(spec, "tcp", Path.cwd(), ("sets_mine",)) as cluster:
    client = cluster.client
    read = [in_all(page_faults), in_all(settings), in_all(preloads)]
    print(json.dumps([*read, [*client.run(limits).values()]]))
"""
N_PAGES = 20 * (1 << 20) // resource.getpagesize()


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a parent, whose child runs a module with these arguments."""
    (tmp_path / "forked_module.py").write_text(MODULE)
    parents = []

    def start_parent(*arguments):
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, "forked_module", tmp_path / "log", *arguments],
            stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        parents.append(parent)
        return parent, int(parent.stdout.readline())

    yield start_parent
    for parent in parents:
        parent.kill()
        parent.communicate()


def test_a_forked_module_has_its_arguments_environment_name_and_log(start, tmp_path):
    parent, _ = start("0", "0")
    assert parent.stdout.read().split() == ["0", "0"]
    lines = (tmp_path / "log").read_text()
    assert "['0', '0'] blue a name" in lines
    assert "an error" in lines


def test_the_exit_status_is_that_of_the_module(start):
    parent, _ = start("0", "3")
    assert parent.stdout.read().split() == ["3", "3"]


def test_a_signal_is_a_negative_status(start):
    parent, pid = start("100", "0")
    processes.until(lambda: processes.lives(pid), "the child")
    subprocess.run(["kill", "-TERM", str(pid)], check=True)
    assert parent.stdout.read().split() == [str(-signal.SIGTERM)] * 2


def test_a_forked_module_dies_with_its_parent(start, tmp_path):
    parent, pid = start("100", "0")
    log = tmp_path / "log"
    processes.until(lambda: log.exists() and "an error" in log.read_text(), "the module's start")
    parent.kill()
    parent.wait()
    processes.until(lambda: not processes.lives(pid), "the end of the child")


def test_waiting_ends_after_its_timeout(tmp_path):
    code = (
        "import subprocess, sys\nfrom pathlib import Path\n"
        "from commbench.launchers.child import ForkedModule\n"
        "child = ForkedModule('n', ['timeit', '-n', '1', 'import time; time.sleep(100)'], {}, "
        f"Path({str(tmp_path / 'log')!r}))\n"
        "try:\n    child.wait(0.2)\nexcept subprocess.TimeoutExpired:\n    print(child.poll())\n"
        "child.send_signal(9)\nprint(child.wait())\nchild.send_signal(9)\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "-9"]
    assert time.monotonic() - began < 60


@pytest.fixture
def forks(monkeypatch, tmp_path):
    """Return a function that returns whether a launch forks the processes of a cluster."""
    monkeypatch.setattr(local, "LocalCluster", lambda *_, forks: forks)
    monkeypatch.setenv(process.MARK, "1")
    for name, value in LocalLauncher().environment(ClusterSpec()).items():
        monkeypatch.setenv(name, value)
    return lambda spec: LocalLauncher().start(spec, "tcp", tmp_path)


@pytest.mark.parametrize(
    ("spec", "forked"),
    [
        (ClusterSpec(), True),
        (ClusterSpec(launcher_options={"start": "spawn"}), False),
        (ClusterSpec(device="gpu"), False),
        (ClusterSpec(placement=(Placement(cpus="0"), Placement(cpus="1"))), False),
    ],
)
def test_processes_with_a_gpu_or_a_placement_start_anew(spec, forked, forks):
    assert forks(spec) == bool(LocalLauncher().environment(spec)) == forked


def read(start, environ, folder):
    """Return page faults, settings and preloads of scheduler, client and two workers."""
    tag = processes.Tag()
    try:
        output = subprocess.check_output(
            [sys.executable, "-c", CLUSTER, start],
            env={**environ, **tag.environ, process.MARK: "1"},
            cwd=folder,
            text=True,
            timeout=processes.PATIENCE_SECONDS,
        )
    finally:
        tag.end()
    return json.loads(output)


def inherited():
    """Return this process's variables but those that a nanny here has set for good."""
    return {k: v for k, v in os.environ.items() if "MALLOC" not in k and k != "MKL_NUM_THREADS"}


@pytest.fixture(scope="module", params=["fork", "spawn"])
def launched(request, tmp_path_factory):
    """Return what the processes of a case with settings read."""
    folder = tmp_path_factory.mktemp("launched")
    spec = ClusterSpec(
        launcher_options={"start": request.param},
        dask_config={
            "distributed.comm.offload": "5MB", "distributed.worker.memory.spill": 0.25,
            "theirs.name": "x-y",
        },
        env={"DASK_DISTRIBUTED__COMM__SHARD": "3MB", "MKL_NUM_THREADS": "2"},
    )  # fmt: skip
    launch = make_launch(builders.case(cluster=spec))
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - inherited().keys():
            patch.delenv(name)
        environ = runner.environment(launch, parse("tcp"), folder)
    return read(request.param, environ, folder)


def test_only_workers_have_the_allocator_of_a_nanny(launched):
    scheduler, client, *workers = launched[0]
    assert min(workers) >= N_PAGES
    assert max(scheduler, client) < N_PAGES / 2


def test_settings_reach_all_processes_also_those_that_are_read_at_import(launched):
    assert launched[1] == [[5_000_000, 3_000_000, "2", 1, "x-y", 0.25]] * 4


def test_workers_have_the_memory_limit(launched):
    assert launched[3] == [300_000_000] * 2


def test_scheduler_and_workers_have_the_preloads(launched):
    assert launched[2] == [["sets_mine"], None, *[["sets_mine"]] * 2]


KEPT = ("mmap_threshold=33554432", "trim_threshold=67108864")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"MALLOC_TRIM_THRESHOLD_": "67108864", "MALLOC_MMAP_THRESHOLD_": "131072"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "33554432"}, True),
        ({"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{each}" for each in KEPT)}, True),
    ],
)
def test_all_processes_have_the_allocator_of_the_user(given, kept, tmp_path):
    environ = LocalLauncher().environment(ClusterSpec()) | inherited() | given
    counts, *_ = read("fork", environ, tmp_path)
    assert [count < N_PAGES / 2 for count in counts] == [kept] * 4


def test_only_a_launch_with_the_variables_of_nannies_forks(forks, monkeypatch):
    assert forks(ClusterSpec())
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert not forks(ClusterSpec())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv(process.MARK)
    assert not forks(ClusterSpec())


def test_a_stopped_scheduler_is_killed_when_its_cluster_is_closed(tmp_path, tag, monkeypatch):
    for name in ("launcher._SHUTDOWN_SECONDS", "local._CLOSE_SECONDS", "local._END_SECONDS"):
        monkeypatch.setattr(f"commbench.launchers.{name}", 0.3)
    cluster = LocalLauncher().start(ClusterSpec(n_workers=1), "tcp", tmp_path)
    (scheduler,) = [member for member in tag.processes() if member.role == "scheduler"]
    scheduler.kill(signal.SIGSTOP)
    cluster.close()
    assert tag.processes() == []


def test_workers_have_all_variables_that_the_configuration_gives_to_nannies(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MINE", "KEPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KEPT", "by this process")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    given = {"OMP_NUM_THREADS": 4, "MINE": None, "MKL_NUM_THREADS": None, "KEPT": "no"}
    with dask.config.set({"distributed.nanny.environ": given}):
        environ = local.nanny_environment()
    assert (environ["OMP_NUM_THREADS"], environ["KEPT"]) == ("4", "by this process")
    assert "MINE" not in environ
    # None leaves what `pre-spawn-environ` has.
    assert environ["MKL_NUM_THREADS"] == "1"


@pytest.mark.slow
def test_workers_that_share_processes_are_measured_without_their_threads(tmp_path, tag):
    run = processes.measured(
        "transpose-sum", "--size", 400, "--chunk", 100, "--workers", 5, "--launches", 1,
        "--launcher-option", "processes=2", "--iterations", 2, "--output", tmp_path,
    )  # fmt: skip
    assert {*run.threads["worker"]} == {"scheduler", "client"}
    assert run.tasks["worker"].nunique() == 5
    assert run.coverage["n_lost"].sum() == 0
    assert tag.processes() == []


@pytest.mark.parametrize("options", [{}, {"processes": "1"}])
def test_preloads_of_the_configuration_come_before_those_of_the_workload(options, tag, tmp_path):
    # UCX's thread modes serve the loop in which a preload initializes UCX.
    (tmp_path / "mine.py").write_text(
        "import asyncio\nloop = asyncio.get_running_loop()\n"
        "def dask_setup(server):\n    server.mine = server.loop.asyncio_loop is loop\n"
    )
    preload = [str(tmp_path / "mine.py")]
    spec = ClusterSpec(n_workers=1, launcher_options=options)
    keys = ("distributed.scheduler.preload", "distributed.worker.preload")
    with (
        dask.config.set(dict.fromkeys(keys, preload)),
        LocalLauncher().start(spec, "tcp", tmp_path, ("colorsys",)) as cluster,
    ):
        client = cluster.client
        assert client.run_on_scheduler(
            lambda dask_scheduler: [each.name for each in dask_scheduler.preloads]
        ) == [*preload, "colorsys"]
        (names,) = client.run(
            lambda dask_worker: [each.name for each in dask_worker.preloads]
        ).values()
        assert names == [*preload, "colorsys"]
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.mine)
        assert all(client.run(lambda dask_worker: dask_worker.mine).values())


def test_gpu_setup_comes_before_all_that_may_use_cuda():
    with dask.config.set({"distributed.worker.preload": "mine"}):
        assert worker_preloads(ClusterSpec(device="gpu"), ["ours"]) == [gpu.PRELOAD, "mine", "ours"]


@pytest.mark.parametrize("given", [{"device": "gpu"}, {"placement": (Placement(cpus="0"),) * 2}])
def test_workers_that_share_processes_have_no_gpu_and_no_cpus(given):
    spec = ClusterSpec(launcher_options={"processes": "1"}, **given)
    with pytest.raises(UsageError, match="have no GPU or CPUs for themselves"):
        LocalLauncher().validate(spec, parse("tcp"))


@pytest.mark.parametrize(("limit", "share"), [(8e9, 2e9), ("unlimited", 25e9), (None, 25e9)])
def test_workers_share_the_memory_of_this_process_own_cgroup(limit, share, monkeypatch):
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", 100e9)
    monkeypatch.setattr(local.environment, "cgroup_limit", lambda *_: limit)
    assert local.equal_share(4) == share

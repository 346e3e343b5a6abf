"""The locations of processes, and the binding of workers to CPUs, GPUs and interfaces."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import builders
import pytest
import trees
from launching import make_launch

from commbench import backends
from commbench.harness.measure import conditions
from commbench.launchers.local import LocalLauncher
from commbench.machine.topology import discovery
from commbench.machine.topology.workers import worker_location
from commbench.model import ClusterSpec, Placement
from commbench.model.observed import WorkerPlace

LAUNCH = make_launch(builders.case())
CPUS = sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def sleeper(*before, **environ):
    """Yield the id of a process that does nothing, with these variables; else skip the test."""
    # No ``exec``, during which /proc has no variables of a process.
    command = [*before, "sh", "-c", "echo there; read until_killed"]
    child = subprocess.Popen(
        command, env={"PATH": os.environ["PATH"]} | environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "there\n":
            pytest.skip(f"{' '.join(command)} failed")
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_the_location_of_this_process():
    location = worker_location(os.getpid(), address="tcp://127.0.0.1:4711")
    assert location["host"] == os.uname().nodename
    assert (location["pid"], location["nic"], location["gpu"]) == (os.getpid(), "lo", "")
    assert discovery.this_host().allowed == frozenset(CPUS)
    assert location["cpus"].startswith(str(CPUS[0]))
    WorkerPlace(case_id="c", launch=0, worker="0", **location)


def test_the_file_system_to_which_a_worker_spills(tmp_path, monkeypatch):
    def kind(folder):
        return worker_location(os.getpid(), folder=str(folder))["file_system"]

    assert (kind("/dev/shm"), kind("/proc/self"), kind("")) == ("tmpfs", "proc", "")
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")
    assert kind(link / "missing") == "tmpfs"
    mounts = [("/", "overlay"), ("/home", "ext4"), ("/home/a", "nfs4"), ("/home", "xfs")]
    partitions = [SimpleNamespace(mountpoint=path, fstype=name) for path, name in mounts]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: partitions)
    assert [kind(path) for path in ("/home/ab", "/home/a/b", "/tmp")] == ["xfs", "nfs4", "overlay"]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: partitions[1:])
    assert kind("/tmp") == ""


def test_a_network_namespace_is_a_host_with_another_id():
    here = worker_location(os.getpid())["host_id"]
    with sleeper() as neighbour:
        assert worker_location(neighbour)["host_id"] == here
    if shutil.which("unshare") is None:
        pytest.skip("unshare of util-linux is not installed")
    with sleeper("unshare", "--net") as apart:
        assert worker_location(apart)["host_id"] != here


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Let nvidia-smi show two GPUs with NVLinks between them."""
    trees.nvidia_smi(tmp_path / "bin", monkeypatch)


@pytest.mark.usefixtures("two_gpus")
def test_the_gpu_of_a_process_is_the_first_that_it_may_see(tmp_path):
    root = trees.two_sockets(tmp_path / "root")
    with sleeper(CUDA_VISIBLE_DEVICES="1,0") as child:
        location = worker_location(child, device="gpu", root=root)
        found = {"gpu": "1", "gpu_uuid": "GPU-bbbb", "gpu_links": "GPU0=NV2"}
        assert location | found | {"gpu_pci": "0000:01:00.0"} == location
        assert worker_location(child, device="cpu", root=root)["gpu"] == ""
    with sleeper(CUDA_VISIBLE_DEVICES="") as child:
        assert worker_location(child, device="gpu", root=root)["gpu"] == ""


@pytest.mark.usefixtures("two_gpus")
def test_the_pci_address_of_cupys_device_wins_over_the_variable(tmp_path, monkeypatch):
    # CUDA may number the GPUs in another order than nvidia-smi.
    class Runtime:
        getDevice = staticmethod(lambda: 1)  # noqa: N815 - CuPy's name
        deviceGetPCIBusId = staticmethod(["", "0000:01:00.0"].__getitem__)  # noqa: N815

    cupy = type("cupy", (), {"cuda": type("cuda", (), {"runtime": Runtime})})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    root = trees.two_sockets(tmp_path / "root")
    assert worker_location(os.getpid(), device="gpu", root=root)["gpu"] == "1"


def test_the_interface_is_that_of_the_backends_variable_or_of_the_address(monkeypatch):
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1,lo")

    def nic(address, backend):
        variable = backends.parse(backend).nic_variable
        return worker_location(os.getpid(), address=address, nic_variable=variable)["nic"]

    assert nic("ucx://127.0.0.1:1", "ucx:shm") == "mlx5_0:1"
    assert nic("tcp://127.0.0.1:1", "tcp") == "lo"
    assert nic("tcp://[broken", "tcp") == ""


def variables():
    """Return the variables that bind a worker."""
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "UCX_NET_DEVICES")
    return {name: os.environ[name] for name in names if name in os.environ}


def affinity():
    """Return the CPUs on which the calling thread may run."""
    return sorted(os.sched_getaffinity(0))


def threads():
    """Return the CPUs of every thread of the process."""
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return [sorted(os.sched_getaffinity(task)) for task in tasks]


@pytest.mark.skipif(len(CPUS) < 2, reason="it takes two CPUs")
def test_workers_are_bound_as_placed(tmp_path, monkeypatch):
    # The workers import the functions of this module.
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path))
    placement = (
        Placement(cpus=str(CPUS[1])),
        Placement(cpus=f"{CPUS[0]}-{CPUS[0]}", gpu=3, nic="lo"),
    )
    backend = backends.parse("tcp")
    spec = ClusterSpec(placement=placement)
    with LocalLauncher().start(spec, backend.protocol, tmp_path) as cluster:
        names = cluster.names

        def by_worker(function):
            return {names[address]: row for address, row in cluster.client.run(function).items()}

        assert by_worker(affinity) == {"0": [CPUS[1]], "1": [CPUS[0]]}
        assert all(cpus == [CPUS[1]] for cpus in by_worker(threads)["0"])
        assert by_worker(variables) == {
            "0": {},
            "1": {
                "CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "UCX_NET_DEVICES": "lo",
            },
        }  # fmt: skip
        records = conditions.worker_places(LAUNCH, cluster)
        assert {record.worker: record.cpus for record in records} == {
            "0": str(CPUS[1]), "1": str(CPUS[0]),
        }  # fmt: skip
        assert cluster.client.run_on_scheduler(affinity) == CPUS
    assert sorted(os.sched_getaffinity(0)) == CPUS

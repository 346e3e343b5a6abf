"""Each launch records where its processes are, and bound workers are where they were bound to."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import builders
import processes
import pytest
import trees

from commbench import backends
from commbench.harness.measure import conditions
from commbench.launchers.local import LocalLauncher
from commbench.machine import topology
from commbench.machine.topology import worker_location
from commbench.model import ClusterSpec, Launch, Placement, WorkerPlace

LAUNCH = Launch(case=builders.case(), index=0, block=0, position=0)
CPUS = sorted(os.sched_getaffinity(0))
MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n"
ROWS = "".join(f"{i}, A100, GPU-{'ab'[i]}, 00000000:0{i}:00.0, 40960, 570\n" for i in (0, 1))


@contextlib.contextmanager
def sleeper(*before: str, **environ: str) -> Iterator[int]:
    """Give the id of a process that does nothing, with these variables; else skip the test."""
    # No other program takes the shell's place: /proc has no variables of a process meanwhile.
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


def test_this_process_tells_where_it_is() -> None:
    place = worker_location(os.getpid(), address="tcp://127.0.0.1:4711")
    assert place["host"] == os.uname().nodename
    assert (place["pid"], place["nic"], place["gpu"]) == (os.getpid(), "lo", "")
    assert topology.this_host().allowed == frozenset(CPUS)
    assert place["cpus"].startswith(str(CPUS[0]))
    WorkerPlace(case_id="c", launch=0, worker="0", **place)


def test_two_processes_of_a_host_share_its_id_and_a_namespace_does_not() -> None:
    here = worker_location(os.getpid())["host_id"]
    with sleeper() as beside:
        assert worker_location(beside)["host_id"] == here
    if shutil.which("unshare") is None:
        pytest.skip("unshare of util-linux is not installed")
    with sleeper("unshare", "--net") as apart:
        assert worker_location(apart)["host_id"] != here


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nvidia-smi tell of two GPUs with NVLinks between them."""
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, ROWS, MATRIX)


@pytest.mark.usefixtures("two_gpus")
def test_the_gpu_of_a_process_is_the_first_that_it_may_see(tmp_path: Path) -> None:
    root = trees.two_sockets(tmp_path / "root")
    with sleeper(CUDA_VISIBLE_DEVICES="1,0") as child:
        place = worker_location(child, device="gpu", root=root)
        assert (place["gpu"], place["gpu_uuid"], place["gpu_links"]) == ("1", "GPU-b", "GPU0=NV2")
        assert place["gpu_pci"] == "0000:01:00.0"
        assert worker_location(child, device="cpu", root=root)["gpu"] == ""
    with sleeper(CUDA_VISIBLE_DEVICES="") as child:
        assert worker_location(child, device="gpu", root=root)["gpu"] == ""


@pytest.mark.usefixtures("two_gpus")
def test_what_cupy_uses_wins_over_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runtime:
        getDevice = staticmethod(lambda: 1)  # noqa: N815 - CuPy's name
        deviceGetPCIBusId = staticmethod(["", "0000:01:00.0"].__getitem__)  # noqa: N815

    cupy: Any = type("cupy", (), {"cuda": type("cuda", (), {"runtime": Runtime})})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    root = trees.two_sockets(tmp_path / "root")
    assert worker_location(os.getpid(), device="gpu", root=root)["gpu"] == "1"


def test_ucx_tells_the_devices_that_it_is_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    assert worker_location(os.getpid(), address="ucx://127.0.0.1:1")["nic"] == "mlx5_0:1"
    assert worker_location(os.getpid(), address="tcp://127.0.0.1:1")["nic"] == "lo"
    assert worker_location(os.getpid(), address="tcp://[broken")["nic"] == ""


def test_the_two_ends_of_a_pair_have_a_place() -> None:
    with sleeper() as child:
        one, other = conditions.process_places(LAUNCH, {"0": os.getpid(), "1": child})
    assert (one.worker, other.worker, other.pid) == ("0", "1", child)
    assert one.host_id == other.host_id


def variables() -> dict[str, str]:
    """Return what binds a worker, from its own environment."""
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "UCX_NET_DEVICES")
    return {name: os.environ[name] for name in names if name in os.environ}


def affinity() -> list[int]:
    """Return the CPUs on which the calling thread may run."""
    return sorted(os.sched_getaffinity(0))


def threads() -> list[list[int]]:
    """Return the CPUs of every thread of the process."""
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return [sorted(os.sched_getaffinity(task)) for task in tasks]


@pytest.mark.skipif(len(CPUS) < 2, reason="it takes two CPUs")
def test_workers_are_bound_as_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

        def found(function: Any) -> dict[str, Any]:
            return {names[address]: told for address, told in cluster.client.run(function).items()}

        assert found(affinity) == {"0": [CPUS[1]], "1": [CPUS[0]]}
        assert all(cpus == [CPUS[1]] for cpus in found(threads)["0"])
        assert found(variables) == {
            "0": {},
            "1": {
                "CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "UCX_NET_DEVICES": "lo",
            },
        }  # fmt: skip
        told = {place.worker: place for place in conditions.worker_places(LAUNCH, cluster)}
        assert {name: place.cpus for name, place in told.items()} == {
            "0": str(CPUS[1]), "1": str(CPUS[0]),
        }  # fmt: skip
        assert cluster.client.run_on_scheduler(affinity) == CPUS
    assert sorted(os.sched_getaffinity(0)) == CPUS


@pytest.mark.skipif(len(CPUS) < 2, reason="it takes two CPUs")
def test_a_placed_run_tells_so(tmp_path: Path) -> None:
    file = tmp_path / "placement.toml"
    file.write_text("".join(f'[[worker]]\ncpus = "{cpu}"\n' for cpu in CPUS[:2]))
    with processes.command_line(tmp_path) as line:
        ended = line.run(
            "all-to-all", "--sizes", "1MiB", "--launches", "1", "--iterations", "1",
            "--placement", file,
        )  # fmt: skip
        assert ended.status == 0, ended.said
        report = line.report(ended.run)
    assert {place["worker"]: place["cpus"] for place in report["places"]} == {
        "0": str(CPUS[0]), "1": str(CPUS[1]),
    }  # fmt: skip
    assert {pair["link"] for pair in report["pairs"]} <= {"same NUMA", "cross-socket", "same host"}
    assert "unknown" not in {link["link"] for link in report["links"]}
    assert f"worker 1: CPUs {CPUS[1]}" in ended.said
    cluster = report["cases"][0]["cluster"]
    assert [place["cpus"] for place in cluster["placement"]] == [str(CPUS[0]), str(CPUS[1])]

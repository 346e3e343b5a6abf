"""A process has its CUDA context first, then UCX, then RMM's memory, and says what it has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import fake_machine
import pytest

from commbench import backends
from commbench.errors import LaunchError, UnavailableError
from commbench.harness import runner
from commbench.harness.measure import conditions
from commbench.machine import gpu
from commbench.model import Case, ClusterSpec, Launch, Record, Setting

SPEC = ClusterSpec(device="gpu", rmm_pool="1GB")
_NAMES = ("cupy", "cupyx", "rmm", "numba", "dask_cuda")


def _loaded() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in _NAMES]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the fake CuPy, which this process imports, as it does the other fakes."""
    kept = {name: sys.modules.pop(name) for name in _loaded()}
    monkeypatch.syspath_prepend(fake_machine.FAKES)
    yield importlib.import_module("cupy")
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def set_up(fakes: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets this process up, by what it would inherit."""

    def prepare(spec: ClusterSpec = SPEC, backend: str = "tcp") -> None:
        before_cuda = backends.parse(backend).before_cuda
        for name, value in gpu.environment(spec, before_cuda).items():
            monkeypatch.setenv(name, value)
        gpu.set_up()

    return prepare


def test_a_launch_on_host_memory_has_nothing_to_do_with_it(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.environment(ClusterSpec(), "module:function") == {}
    gpu.set_up()
    gpu.synchronize("cpu")


def test_rmm_is_asked_for_what_the_case_asks_for(set_up: Any, fakes: Any) -> None:
    set_up()
    plugins = importlib.import_module("dask_cuda.plugins")
    nothing = {"maximum_pool_size": None, "release_threshold": None, "log_directory": None}
    (asked,) = plugins.ASKED
    assert asked == {
        "initial_pool_size": 10**9, "managed_memory": False, "async_alloc": False,
        "track_allocations": False, "external_lib_list": ["cupy"], **nothing,
    }  # fmt: skip
    told = gpu.describe()
    assert told["rmm"] == "26.10.0 PoolMemoryResource(CudaMemoryResource)"
    assert told["cupy"] == "rmm_cupy_allocator"
    set_up(ClusterSpec(device="gpu", rmm_pool="0.5", rmm_async=True))
    assert plugins.ASKED[1]["initial_pool_size"] == 0.5
    assert plugins.ASKED[1]["async_alloc"] is True


def test_without_rmm_options_nothing_is_changed(set_up: Any, fakes: Any) -> None:
    set_up(ClusterSpec(device="gpu"))
    assert fakes.COUNTS["use"] == fakes.COUNTS["context"] == 1
    assert "dask_cuda" not in sys.modules
    assert gpu.describe()["cupy"] == "_Pool.malloc"
    assert gpu.describe()["rmm"] == "26.10.0 CudaMemoryResource"


def test_ucx_begins_before_rmm(set_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("distributed_ucxx.ucxx")
    order = []
    module.init_once = lambda: order.append("dask_cuda" in sys.modules)
    monkeypatch.setitem(sys.modules, "distributed_ucxx", ModuleType("distributed_ucxx"))
    monkeypatch.setitem(sys.modules, "distributed_ucxx.ucxx", module)
    set_up(backend="tcp")
    assert order == []
    del sys.modules["dask_cuda"], sys.modules["dask_cuda.plugins"]
    set_up(backend="ucx")
    assert order == [False]


def test_a_gpu_that_is_not_there_is_told(set_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,0")
    with pytest.raises(UnavailableError, match="first of CUDA_VISIBLE_DEVICES=7,0: cudaErrorNoDe"):
        set_up()


def test_a_pool_that_does_not_fit_is_told(set_up: Any) -> None:
    with pytest.raises(UnavailableError, match=r"RMM is unavailable.*9000GB.*bad_alloc"):
        set_up(ClusterSpec(device="gpu", rmm_pool="9000GB"))


def test_every_process_of_a_launch_is_told(tmp_path: Any) -> None:
    case = Case(workload="merge", backend="ucx:tcp+nvlink", cluster=SPEC)
    found = runner.environment(
        Launch(case=case, index=0, block=0, position=0), backends.parse(case.backend), tmp_path
    )
    assert '"before_cuda": "distributed_ucxx.ucxx:init_once"' in found["COMMBENCH_GPU"]
    assert '"rmm_pool": "1GB"' in found["COMMBENCH_GPU"]
    assert found["DASK_DISTRIBUTED__WORKER__MEMORY__SPILL"] == "False"
    assert found["DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT"] == "True"
    assert found["UCX_TLS"] == "tcp,cuda_copy,cuda_ipc"


# --- what the workers tell -------------------------------------------------------------------


def checked(spec: ClusterSpec, *told: dict[str, Any]) -> list[Record]:
    """Return what is recorded of a cluster whose workers tell that."""
    rows = {f"tcp://10.0.0.1:{number}": row for number, row in enumerate(told)}
    names = {where: str(number) for number, where in enumerate(rows)}
    cluster: Any = SimpleNamespace(names=names, client=SimpleNamespace(run=lambda _: rows))
    launch = Launch(
        case=Case(workload="merge", backend="tcp", cluster=spec), index=0, block=0, position=0
    )
    found: list[Record] = []
    conditions.validate_gpus(launch, cluster, found.append)
    return found


def row(uuid: str = "aa", **given: str) -> dict[str, Any]:
    """Return what one worker tells."""
    told = {"uuid": uuid, "name": "H100", "visible": "0,1", "cupy": "rmm_cupy_allocator"}
    return {**told, "rmm": "26.10.0 PoolMemoryResource(CudaMemoryResource)", **given}


def test_where_memory_comes_from_is_recorded_once() -> None:
    (found,) = checked(SPEC, row("aa"), row("bb"))
    assert isinstance(found, Setting)
    assert found.value == (
        "RMM 26.10.0 PoolMemoryResource(CudaMemoryResource); CuPy by rmm_cupy_allocator"
    )


def test_workers_that_share_a_gpu_unasked_end_the_launch() -> None:
    with pytest.raises(LaunchError, match=r"workers 0, 1 work on one GPU .*--workers-per-gpu"):
        checked(SPEC, row(), row())
    shared = ClusterSpec(device="gpu", workers_per_gpu=2)
    assert checked(shared, row(), row())
    with pytest.raises(LaunchError, match="workers 0, 1, 2 work on one GPU"):
        checked(shared, row(), row(), row())


@pytest.mark.parametrize(
    ("spec", "told", "says"),
    [
        (SPEC, {"error": "ModuleNotFoundError: cupy"}, "worker 0 has no GPU .*ModuleNotFound"),
        (SPEC, row(rmm="26.10.0 CudaMemoryResource"), "asked for .pool 1GB.*not Pool"),
        (SPEC, row(cupy="_Pool.malloc"), "CuPy should allocate by RMM"),
        (ClusterSpec(device="gpu", rmm_async=True), row(), "not CudaAsync"),
        (ClusterSpec(device="gpu", rmm_managed=True), row(), "not Managed"),
    ],
)
def test_memory_that_is_not_as_asked_for_ends_the_launch(
    spec: ClusterSpec, told: dict[str, Any], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        checked(spec, told)

"""A process has its CUDA context first, then UCX, then RMM's memory, and says what it has."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import fake_machine
import pytest
from launching import make_launch

from commbench import backends
from commbench.errors import LaunchError, UnavailableError
from commbench.harness import runner
from commbench.harness.measure import conditions
from commbench.machine import gpu
from commbench.model import Case, ClusterSpec
from commbench.model.observed import Setting

SPEC = ClusterSpec(device="gpu", rmm_pool="1GB")
_NAMES = ("cupy", "cupyx", "rmm", "numba", "dask_cuda")


def _loaded():
    return [name for name in sys.modules if name.partition(".")[0] in _NAMES]


@pytest.fixture
def fakes(monkeypatch):
    """Return the fake CuPy, which this process imports, as it does the other fakes."""
    kept = {name: sys.modules.pop(name) for name in _loaded()}
    monkeypatch.syspath_prepend(fake_machine.FAKES)
    yield importlib.import_module("cupy")
    for name in _loaded():
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def set_up(fakes, monkeypatch):
    """Return a function that sets this process up, by what it would inherit."""

    def prepare(spec=SPEC, backend="tcp"):
        before_cuda = backends.parse(backend).before_cuda
        for name, value in gpu.environment(spec, before_cuda).items():
            monkeypatch.setenv(name, value)
        gpu.set_up()

    return prepare


def test_a_launch_on_host_memory_imports_no_cuda_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.environment(ClusterSpec(), "module:function") == {}
    gpu.set_up()
    gpu.synchronize("cpu")


def test_rmm_is_set_up_as_the_case_says(set_up, fakes):
    set_up()
    plugins = importlib.import_module("dask_cuda.plugins")
    nothing = {"maximum_pool_size": None, "release_threshold": None, "log_directory": None}
    (asked,) = plugins.ASKED
    assert asked == {
        "initial_pool_size": 10**9, "managed_memory": False, "async_alloc": False,
        "track_allocations": False, "external_lib_list": ["cupy"], **nothing,
    }  # fmt: skip
    description = gpu.describe()
    assert description["rmm"] == "26.10.0 PoolMemoryResource(CudaMemoryResource)"
    assert description["cupy"] == "rmm_cupy_allocator"
    set_up(ClusterSpec(device="gpu", rmm_pool="0.5", rmm_async=True))
    assert plugins.ASKED[1]["initial_pool_size"] == 0.5
    assert plugins.ASKED[1]["async_alloc"] is True


def test_without_rmm_options_cupy_keeps_its_pool(set_up, fakes):
    set_up(ClusterSpec(device="gpu"))
    assert fakes.COUNTS["use"] == fakes.COUNTS["context"] == 1
    assert "dask_cuda" not in sys.modules
    assert gpu.describe()["cupy"] == "_Pool.malloc"
    assert gpu.describe()["rmm"] == "26.10.0 CudaMemoryResource"


def test_ucx_begins_before_rmm(set_up, monkeypatch):
    module = ModuleType("distributed_ucxx.ucxx")
    order = []
    module.init_once = lambda: order.append("dask_cuda" in sys.modules)
    monkeypatch.setitem(sys.modules, "distributed_ucxx", ModuleType("distributed_ucxx"))
    monkeypatch.setitem(sys.modules, "distributed_ucxx.ucxx", module)
    set_up(backend="tcp")
    assert order == []
    del sys.modules["dask_cuda"], sys.modules["dask_cuda.plugins"]
    set_up(backend="ucx")
    assert order == [False]


def test_a_missing_gpu_is_cudas_error(set_up, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,0")
    with pytest.raises(UnavailableError, match="first of CUDA_VISIBLE_DEVICES=7,0: cudaErrorNoDe"):
        set_up()


def test_a_pool_that_does_not_fit_is_an_error_with_its_size(set_up):
    with pytest.raises(UnavailableError, match=r"RMM is unavailable.*9000GB.*bad_alloc"):
        set_up(ClusterSpec(device="gpu", rmm_pool="9000GB"))


def test_the_environment_of_a_launch_has_the_options_of_ucx_and_rmm(tmp_path):
    case = Case(workload="merge", backend="ucx:tcp+nvlink", cluster=SPEC)
    variables = runner.environment(make_launch(case), backends.parse(case.backend), tmp_path)
    assert '"before_cuda": "distributed_ucxx.ucxx:init_once"' in variables["COMMBENCH_GPU"]
    assert '"rmm_pool": "1GB"' in variables["COMMBENCH_GPU"]
    assert variables["DASK_DISTRIBUTED__WORKER__MEMORY__SPILL"] == "False"
    assert variables["DASK_DISTRIBUTED_UCXX__CREATE_CUDA_CONTEXT"] == "True"
    assert variables["UCX_TLS"] == "tcp,cuda_copy,cuda_ipc"


def checked(spec, *described):
    """Return the records of a cluster whose workers describe their GPUs so."""
    rows = {f"tcp://10.0.0.1:{number}": row for number, row in enumerate(described)}
    names = {where: str(number) for number, where in enumerate(rows)}
    cluster = SimpleNamespace(names=names, client=SimpleNamespace(run=lambda _: rows))
    launch = make_launch(Case(workload="merge", backend="tcp", cluster=spec))
    records = []
    conditions.validate_gpus(launch, cluster, records.append)
    return records


def row(uuid="aa", **given):
    """Return the description of a worker's GPU."""
    base = {"uuid": uuid, "name": "H100", "visible": "0,1", "cupy": "rmm_cupy_allocator"}
    return {**base, "rmm": "26.10.0 PoolMemoryResource(CudaMemoryResource)", **given}


def test_the_memory_resource_of_like_workers_is_recorded_once():
    (record,) = checked(SPEC, row("aa"), row("bb"))
    assert isinstance(record, Setting)
    assert record.value == (
        "RMM 26.10.0 PoolMemoryResource(CudaMemoryResource); CuPy by rmm_cupy_allocator"
    )


def test_workers_that_share_a_gpu_end_the_launch_unless_they_may():
    with pytest.raises(LaunchError, match=r"workers 0, 1 work on one GPU .*--workers-per-gpu"):
        checked(SPEC, row(), row())
    shared = ClusterSpec(device="gpu", workers_per_gpu=2)
    assert checked(shared, row(), row())
    with pytest.raises(LaunchError, match="workers 0, 1, 2 work on one GPU"):
        checked(shared, row(), row(), row())


@pytest.mark.parametrize(
    ("spec", "described", "says"),
    [
        (SPEC, {"error": "ModuleNotFoundError: cupy"}, "worker 0 has no GPU .*ModuleNotFound"),
        (SPEC, row(rmm="26.10.0 CudaMemoryResource"), "asked for .pool 1GB.*not Pool"),
        (SPEC, row(cupy="_Pool.malloc"), "CuPy should allocate by RMM"),
        (ClusterSpec(device="gpu", rmm_async=True), row(), "not CudaAsync"),
        (ClusterSpec(device="gpu", rmm_managed=True), row(), "not Managed"),
    ],
)
def test_another_memory_resource_than_the_case_has_ends_the_launch(spec, described, says):
    with pytest.raises(LaunchError, match=says):
        checked(spec, described)

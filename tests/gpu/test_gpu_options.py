"""What a measurement of GPU memory needs is looked at before anything starts."""

import importlib.util
import os
import re
from dataclasses import replace

import builders
import fake_machine
import pytest

from commbench.errors import UsageError
from commbench.harness.cases import cases_for, unmet
from commbench.machine import environment, gpu
from commbench.machine.installed import install_command
from commbench.machine.topology.hosts import Gpu, Host
from commbench.machine.topology.workers import auto
from commbench.model import Case, ClusterSpec, Placement, registry
from commbench.model.observed import GPU_MEMORY

SPEC = ClusterSpec(device="gpu")
EVERYTHING = {"cupy", "rmm", "numba", "cudf", "dask_cudf", "dask_cuda", "mpi4py"}


@pytest.fixture
def installed(monkeypatch):
    """Return the names of the packages that count as installed, to be changed."""
    names, find_spec = set(EVERYTHING), importlib.util.find_spec

    def find(name, package=None):
        if name in EVERYTHING:
            return find_spec("json") if name in names else None
        return find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    return names


def problem(workload="all-to-all", cluster=SPEC, **params):
    """Return what is lacking for a case, in words."""
    lack = unmet(Case(workload=workload, backend="tcp", cluster=cluster, params=params))
    return f"{lack.what}: {lack.reason}; {lack.remedy}" if lack else ""


@pytest.mark.parametrize(
    ("spec", "backend", "says"),
    [
        (ClusterSpec(rmm_pool="1GB"), "tcp", "--rmm-pool.*that is about GPUs; add --device gpu"),
        (ClusterSpec(rmm_managed=True), "tcp", "--rmm-managed: that is about GPUs"),
        (ClusterSpec(workers_per_gpu=2), "tcp", "--workers-per-gpu: that is about GPUs"),
        (replace(SPEC, workers_per_gpu=0), "tcp", "0 workers per GPU; at least 1"),
        (replace(SPEC, rmm_pool="lots"), "tcp", "RMM pool of 'lots'.*e 10GB, or .* 0.5"),
        (replace(SPEC, rmm_pool="0"), "tcp", "RMM pool of '0'"),
        (replace(SPEC, rmm_pool="-0.5"), "tcp", "RMM pool of '-0.5'"),
        (replace(SPEC, rmm_pool="nan"), "tcp", "RMM pool of 'nan'"),
        (replace(SPEC, rmm_async=True, rmm_managed=True), "tcp", "--rmm-async or --rmm-man"),
        (replace(SPEC, rmm_managed=True), "ucx:tcp+nvlink", "peer can't map managed memory"),
        (
            replace(SPEC, dask_config={"distributed.worker.memory.spill": 0.5}),
            "tcp",
            r"distributed\.worker\.memory\.spill: --device gpu turns that off",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(spec, backend, says):
    with pytest.raises(UsageError, match=says):
        cases_for("transpose-sum", [backend], {}, spec)


@pytest.mark.parametrize(
    "given", [{"rmm_pool": "10GB", "rmm_async": True}, {"rmm_pool": "0.5", "rmm_managed": True}]
)
def test_a_pool_goes_with_other_options(given):
    gpu.validate(replace(SPEC, **given), "ucx")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("workload", "absent", "says"),
    [
        ("transpose-sum", "cupy", "cupy is not installed: the arrays are CuPy's"),
        ("pingpong", "rmm", "rmm is not installed"),
        ("svd", "numba", "numba is not installed"),
        ("merge", "cudf", "cudf is not installed"),
        ("merge", "dask_cudf", "dask_cudf is not installed"),
    ],
)
def test_a_missing_package_is_named(workload, absent, says, installed):
    installed.remove(absent)
    text = problem(workload)
    assert text.startswith(f"device gpu: the package {says}")
    assert text.endswith(install_command("gpu"))


@pytest.mark.usefixtures("two_gpus")
def test_packages_that_a_case_does_not_use_may_be_missing(installed):
    installed -= {"cudf", "dask_cudf", "dask_cuda"}
    assert problem("transpose-sum") == ""
    assert "dask_cuda is not installed: it sets up RMM (asked for: pool 1GB async)" in problem(
        "transpose-sum", replace(SPEC, rmm_pool="1GB", rmm_async=True)
    )


@pytest.mark.usefixtures("two_gpus", "installed")
def test_gpus_hidden_by_the_variable_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert problem() == (
        "device gpu: CUDA_VISIBLE_DEVICES=-1 leaves none of the 2 GPUs visible; unset it, or name "
        "some of 0, 1"
    )


@pytest.mark.usefixtures("installed")
def test_the_error_of_a_driver_that_fails_is_named(tmp_path, monkeypatch):
    fake_machine.two_gpus(tmp_path, monkeypatch, "")
    assert problem() == (
        "device gpu: no NVIDIA GPU is visible; run on a machine with GPUs, or with the device cpu"
    )
    script = tmp_path / "bin" / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'; exit 9\n")
    environment._query_nvidia_smi.cache_clear()
    assert "is visible (nvidia-smi failed (exit status 9): NVIDIA-SMI has failed" in problem()


@pytest.mark.usefixtures("two_gpus", "installed")
@pytest.mark.parametrize(
    ("workload", "cluster", "params", "says"),
    [
        ("merge", {"n_workers": 4}, {}, "4 processes need 4 GPUs.*2 are visible; .*-per-gpu 2$"),
        ("merge", {"n_workers": 5, "workers_per_gpu": 2}, {}, "5 processes need 3.*-per-gpu 3$"),
        ("merge", {"n_workers": 4, "launcher": "mpirun"}, {}, "4 processes need 4"),
        ("pingpong", {}, {"mode": "multi-pair", "pairs": 2}, "4 processes need 4"),
    ],
)
def test_too_few_gpus_are_named_with_the_share_that_would_do(workload, cluster, params, says):
    assert re.search(says, problem(workload, replace(SPEC, **cluster), **params))


@pytest.mark.usefixtures("two_gpus", "installed")
@pytest.mark.parametrize(
    "cluster",
    [
        {"n_workers": 2},
        {"n_workers": 4, "workers_per_gpu": 2},
        {"n_workers": 16, "launcher": "slurm"},
        {"n_workers": 3, "placement": (Placement(gpu=0),) * 3},
    ],
)
def test_gpus_suffice_where_workers_share_them_or_are_elsewhere(cluster, tmp_path, monkeypatch):
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert problem("merge", replace(SPEC, **cluster)) == ""


def test_rmm_cant_be_set_up_on_a_running_cluster():
    spec = replace(SPEC, launcher="external", scheduler="tcp://10.0.0.1:8786", rmm_pool="1GB")
    with pytest.raises(UsageError, match=r"RMM \(pool 1GB\) can't be set up on a cluster that is"):
        cases_for("merge", ["tcp"], {}, spec)


def test_workers_that_share_a_gpu_are_placed_on_it():
    host = Host(name="node1", gpus=(Gpu(index=0, cpus="0-3"), Gpu(index=1, cpus="4-7")))
    assert [placement.gpu for placement in auto(host, 3, "gpu", 2)] == [0, 0, 1]
    with pytest.raises(UsageError, match="each of the 5 workers 1/2 of a GPU, and node1 has 2"):
        auto(host, 5, "gpu", 2)


def test_the_report_has_the_memory_resource(recorded):
    case = Case(workload="merge", backend="tcp", cluster=replace(SPEC, rmm_pool="1GB"))
    records = [
        builders.sample(case, 1.0), builders.end(case),
        builders.setting(case, GPU_MEMORY, "RMM 26.10 PoolMemoryResource; CuPy by rmm"),
    ]  # fmt: skip
    text = " ".join(registry.load("report", "tables")(recorded([case], records)).split())
    assert "GPU memory RMM 26.10 PoolMemoryResource; CuPy by rmm" in text
    assert "gpu, RMM pool 1GB" in text

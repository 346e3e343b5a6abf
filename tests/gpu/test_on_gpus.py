"""On real GPUs: every workload over every backend, and NVLink against a copy between two GPUs.

Where there is one GPU, its two workers share it.
"""

import os
import subprocess
import sys

import pytest

from commbench import backends, load
from commbench.machine import gpu
from commbench.model import ClusterSpec

N_GPUS = len(gpu.devices(os.environ))
SHARED = ClusterSpec(device="gpu", workers_per_gpu=1 if N_GPUS > 1 else 2, rmm_pool="1GB")
LACKING = gpu.missing(SHARED, 2, ("cudf", "dask_cudf"), os.environ, here=True)
BACKENDS = (
    "tcp", "ucx", "ucx:thread-future", "ucx:tcp", "ucx:shm", "ucx:tcp+nvlink", "ucx:ib", "mpi",
)  # fmt: skip
WORKLOADS = {
    "pingpong": ("--sizes", "8,1MiB,16MiB", "--layers", "raw,coroutine,comm,worker"),
    "transpose-sum": ("--size", "4000", "--chunk", "1000"),
    "svd": (),
    "matmul": (),
    "map-overlap": (),
    "rechunk": (),
    "shuffle": (),
    "groupby": (),
    "merge": ("--rows", "1000000"),
    "all-to-all": ("--sizes", "1MiB,64MiB"),
}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(LACKING is not None, reason=LACKING[0] if LACKING else ""),
]


def measured(folder, workload, backend, *arguments):
    """Run a workload with two workers and an RMM pool, and return what it left behind."""
    if problem := backends.parse(backend).unavailable("gpu"):
        pytest.skip(f"{backend}: {problem.reason}")
    done = subprocess.run(
        [sys.executable, "-m", "commbench.cli", "run", workload, "--backends", backend,
         "--device", "gpu", "--rmm-pool", SHARED.rmm_pool,
         "--workers-per-gpu", str(SHARED.workers_per_gpu),
         "--launches", "1", "--output", str(folder / "results"), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "results").iterdir()
    return load(path)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_results_gpus_and_memory_of_a_workload_over_a_backend(workload, backend, tmp_path):
    run = measured(tmp_path, workload, backend, *WORKLOADS[workload])
    # The memory of ucx_perftest can't be verified.
    assert run.samples[run.samples["tool"] == ""]["verified"].all()
    assert len(set(run.places["gpu_uuid"])) == min(2, N_GPUS)
    assert all("PoolMemoryResource" in text for text in run.settings["value"] if "RMM" in text)


@pytest.mark.skipif(N_GPUS < 2, reason="NVLink joins two GPUs, and fewer are visible")
def test_nvlink_is_about_as_fast_as_a_copy_between_the_gpus(tmp_path):
    sizes = ("--sizes", "256MiB", "--layers", "raw,comm", "--iterations", "200")
    run = measured(tmp_path, "pingpong", "ucx:tcp+nvlink", *sizes)
    assert all(name.startswith("cuda_ipc") for name in run.transports["transport"])
    medians = run.samples[~run.samples["warmup"]].groupby("layer")["seconds"].median()
    assert 0.9 * medians["memcpy"] < medians["raw"] < 3 * medians["memcpy"]
    assert 0.9 * medians["memcpy"] < medians["comm"]

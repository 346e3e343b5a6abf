"""Launches with two fake GPUs."""

import pytest
from fake_machine import launch, of_kind

from commbench.model.observed import Failure, Sample, Setting, TransportUsed, WorkerPlace

pytestmark = pytest.mark.usefixtures("two_gpus")
LAYERS = ("raw", "coroutine", "comm", "worker")

pytest.importorskip("mpi4py", reason="the backend mpi needs mpi4py")


@pytest.mark.parametrize("backend", [pytest.param("tcp", marks=pytest.mark.slow), "mpi"])
def test_a_workload_runs_with_one_gpu_for_each_worker(backend, tmp_path):
    records = launch(
        tmp_path, "transpose-sum", backend, {"size": 400, "chunk": 100}, rmm_pool="1GB"
    )
    assert all(sample.verified for sample in of_kind(Sample, records))
    locations = of_kind(WorkerPlace, records)
    assert {each.worker: each.gpu for each in locations} == {"0": "0", "1": "1"}
    assert {each.gpu_links for each in locations} == {"GPU1=NV2", "GPU0=NV2"}
    (memory,) = [one.value for one in of_kind(Setting, records) if one.name == "gpu.memory"]
    assert memory.endswith("PoolMemoryResource(CudaMemoryResource); CuPy by rmm_cupy_allocator")
    transports = of_kind(TransportUsed, records)
    assert all(used.transport.endswith(", staged") for used in transports)
    warned = {used.contradiction for used in transports if used.contradiction}
    assert len(warned) == (1 if backend == "mpi" else 0)


@pytest.mark.parametrize(
    ("backend", "layers", "evidence"),
    [
        ("mpi", LAYERS[:3], "staged in pinned host memory"),
        pytest.param("mpi", LAYERS, "staged in pinned host memory", marks=pytest.mark.slow),
        pytest.param("tcp", LAYERS, "GPU memory is copied to the host", marks=pytest.mark.slow),
    ],
)
def test_messages_of_each_layer_are_verified_and_staged(backend, layers, evidence, tmp_path):
    params = {"sizes": (8, 65536), "layers": layers, "seconds_per_size": 0.2}
    records = launch(tmp_path, "pingpong", backend, params)
    samples = of_kind(Sample, records)
    assert {sample.layer for sample in samples} == {"memcpy", *layers}
    assert all(sample.verified for sample in samples)
    transports = of_kind(TransportUsed, records)
    assert all(used.transport.endswith(", staged") for used in transports)
    assert all(evidence in used.evidence for used in transports)
    gpus = {record.worker: record.gpu for record in of_kind(WorkerPlace, records)}
    assert gpus == {"0": "0", "1": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tcp", "mpi"])
def test_windows_both_ways_are_verified(backend, tmp_path):
    params = {
        "sizes": (1024,), "layers": ("raw", "coroutine", "comm"), "mode": "bidirectional",
        "window": 4, "seconds_per_size": 0.2,
    }  # fmt: skip
    assert all(s.verified for s in of_kind(Sample, launch(tmp_path, "pingpong", backend, params)))


@pytest.mark.slow
def test_two_pairs_have_two_gpus(tmp_path):
    params = {"sizes": (1024,), "mode": "multi-pair", "pairs": 2, "seconds_per_size": 0.2}
    records = launch(tmp_path, "pingpong", "tcp", params, workers_per_gpu=2)
    assert [each.gpu for each in of_kind(WorkerPlace, records)] == ["0", "0", "1", "1"]


@pytest.mark.slow
def test_two_workers_share_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    records = launch(tmp_path, "all-to-all", "tcp", {"sizes": (65536,)}, workers_per_gpu=2)
    assert {each.gpu for each in of_kind(WorkerPlace, records)} == {"1"}


def test_a_worker_whose_gpu_is_missing_fails_the_launch(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "0")
    records = launch(tmp_path, "all-to-all", "tcp", {"sizes": (65536,)})
    # The other worker may have noticed that this one has ended.
    failure, *_ = (record for record in records if isinstance(record, Failure))
    assert "first of CUDA_VISIBLE_DEVICES=1,0: cudaErrorNoDevice" in failure.message

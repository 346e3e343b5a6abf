"""Every computation, over three backends and on two and four workers."""

import processes
import pytest

from commbench.stats.worker_pairs import moved_bytes

RECHUNKED = "size = 8_000_000, chunk_size = 200_000"
COLLECTIONS = [
    ("shuffle", "partitions = 8, partition_size = 100_000"),
    ("rechunk", "size = 4_000_000, chunk_size = 100_000"),
    *(("rechunk", f"pattern = '{pattern}', {RECHUNKED}")
      for pattern in ("tiles-to-rows", "adjacent-groups", "heal-oversplit")),
    ("groupby", "rows = 20_000, partitions = 8, split_out = 4"),
    ("merge", "rows = 20_000, partitions = 8, build_partitions = 1"),
    ("map-overlap", "size = 400, chunk = 50, kernel_size = 5"),
    ("matmul", "size = 400, chunk = 50"),
]  # fmt: skip
FUTURES = [
    ("broadcast", "size = 1_000_000"),
    ("scatter", "size = 100_000"),
    ("gather", "size = 100_000"),
    ("spill", "chunk = 4_000_000, factor = 0.8", "memory_limit = '250MB'"),
    ("straggler", "size = 100_000, steps = 5, block_s = 0.1, period_s = 0.2"),
    *(("tiny-tasks", f"mode = '{mode}', tasks = 50")
      for mode in ("throughput", "first-result", "single")),
    *(("patterns", f"pattern = '{pattern}', steps = 4, task_s = 0.001")
      for pattern in ("stencil", "tree", "fft", "nearest", "spread", "all-to-all")),
    *(("control-plane", f"operation = '{operation}', count = 20")
      for operation in ("run", "scheduler", "connect", "storm")),
]  # fmt: skip
MOVES_NOTHING = ("scatter", "gather", "spill", "tiny-tasks", "control-plane")
"""Workloads in which no worker sends to another."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("n_workers", [2, 4])
@pytest.mark.parametrize("cases", [COLLECTIONS, FUTURES], ids=["collections", "futures"])
def test_results_are_right_and_every_backend_moves_the_same_bytes(cases, n_workers, tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'backends = ["tcp", "ucx:shm+thread-future", "mpi"]\n'
        "launches = 1\niterations = 3\nwarmups = 0\n"
        + "".join(
            f"[[case]]\nworkload = '{name}'\nparams = {{ {params} }}\n"
            f"cluster = {{ {', '.join([f'n_workers = {n_workers}', *more])} }}\n"
            for name, params, *more in cases
        )
    )
    run = processes.measured(suite, "--output", tmp_path / "results")
    assert len(run.samples) == 3 * 3 * len(cases)
    assert run.samples["verified"].all()
    moved = moved_bytes(run)
    same = {case.id: str((case.workload, case.params)) for case in run.suite.cases}
    assert set(moved.index) == set(same)
    for case, of_backends in moved.groupby(moved.index.map(same)):
        assert len(of_backends) == 3
        assert of_backends.max() <= 1.05 * of_backends.min(), of_backends
        assert (of_backends > 0).all() or case.startswith(tuple(f"('{n}'" for n in MOVES_NOTHING))

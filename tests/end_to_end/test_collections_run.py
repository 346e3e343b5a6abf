"""Every computation on Dask's collections, over three backends and on two and four workers."""

import processes
import pytest

from commbench import load
from commbench.stats.pairs import moved_bytes

PARAMS = {
    "shuffle": "partitions = 8, partition_size = 100_000",
    "rechunk": "size = 4_000_000, chunk_size = 100_000",
    "groupby": "rows = 20_000, partitions = 8, split_out = 4",
    "merge": "rows = 20_000, partitions = 8, build_partitions = 1",
    "map-overlap": "size = 400, chunk = 50, kernel_size = 5",
    "matmul": "size = 400, chunk = 50",
}
PATTERNS = ("tiles-to-rows", "adjacent-groups", "heal-oversplit")
CASES = [
    *PARAMS.items(),
    *(
        ("rechunk", f"pattern = '{name}', size = 8_000_000, chunk_size = 200_000")
        for name in PATTERNS
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("n_workers", [2, 4])
def test_results_are_right_and_every_backend_moves_the_same_bytes(n_workers, tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'backends = ["tcp", "ucx:shm+thread-future", "mpi"]\n'
        f"launches = 1\niterations = 3\nwarmups = 0\ncluster = {{ n_workers = {n_workers} }}\n"
        + "".join(f"[[case]]\nworkload = '{n}'\nparams = {{ {p} }}\n" for n, p in CASES)
    )
    result = processes.invoke("run", suite, "--output", tmp_path / "results", figures=())
    assert result.exit_code == 0, result.output
    run = load(result.stdout.splitlines()[-1])
    assert len(run.samples) == 3 * 3 * len(CASES)
    assert run.samples["verified"].all()
    moved = moved_bytes(run)
    same = {case.id: str((case.workload, case.params)) for case in run.suite.cases}
    for _, of_backends in moved.groupby(moved.index.map(same)):
        assert len(of_backends) == 3
        assert 0 < of_backends.max() <= 1.05 * of_backends.min(), of_backends

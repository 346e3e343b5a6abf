from __future__ import annotations

import builders
import pytest

from commbench.analysis import warnings
from commbench.model import ClusterSpec

LAUNCHES, ITERATIONS = 6, 2


def moving(recorded, moved, placement="pinned"):
    """Return a run with the bytes of its iterations by backend; the second takes twice as long."""
    cases = [
        builders.case(backend, workload="merge", cluster=ClusterSpec(task_placement=placement))
        for backend in moved
    ]
    records = []
    for factor, (case, sizes) in enumerate(zip(cases, moved.values(), strict=True), 1):
        for launch in range(LAUNCHES):
            for iteration in range(ITERATIONS):
                at = {"launch": launch, "iteration": iteration}
                records.append(builders.sample(case, factor * (1 + launch / 100), **at))
                size = sizes[(launch * ITERATIONS + iteration) % len(sizes)]
                records.append(builders.wire(case, size, **at))
                # What a worker writes to itself doesn't cross.
                records.append(builders.wire(case, 10**9, src="1", **at))
    return recorded(cases, builders.ended(records))


@pytest.mark.parametrize(
    ("other", "verdict"), [((104,), "slower"), ((106,), "unequal"), ((94,), "unequal")]
)
def test_a_verdict_needs_equal_work(recorded, other, verdict):
    run = moving(recorded, {"tcp": (100,), "mpi": other})
    (comparison,) = run.comparisons
    assert comparison.verdict == verdict
    assert (comparison.baseline_moved_bytes, comparison.candidate_moved_bytes) == (100, *other)


def test_bytes_are_the_mean_over_iterations(recorded):
    run = moving(recorded, {"tcp": (100, 200), "mpi": (200, 100)})
    (comparison,) = run.comparisons
    assert comparison.candidate_moved_bytes == 150
    assert comparison.verdict == "slower"


@pytest.mark.parametrize(
    ("placement", "remedy"),
    [("dask", "measure again with --task-placement pinned"), ("pinned", "the tables of pairs")],
)
def test_unequal_work_is_a_warning_with_a_remedy(recorded, placement, remedy):
    run = moving(recorded, {"tcp": (100_000,), "mpi": (200_000,)}, placement)
    text = next(text for text in warnings.find(run) if "unequal work" in text)
    assert text.startswith("an iteration moved 100 kB in merge over tcp and 200 kB in merge over")
    assert remedy in text


def test_equal_work_is_no_warning(recorded):
    run = moving(recorded, {"tcp": (100,), "mpi": (101,)})
    assert not any("unequal work" in text for text in warnings.find(run))

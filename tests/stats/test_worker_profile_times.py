"""A worker's wall time is divided without a rest, and no part of it is negative."""

from __future__ import annotations

import time
from collections.abc import Callable

import builders
import pytest
from builders import EPOCH, log_count, sample, task, transfer
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench import stats
from commbench.analysis.run import Run

Recorded = Callable[..., Run]
CASE = builders.case()
PARTS = ["transfer_only_s", "overlap_s", "compute_only_s", "neither_s"]
bars = st.lists(
    st.tuples(st.floats(-2, 12), st.floats(-1, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


def parts_of(run: Run) -> dict[str, list[float]]:
    """Return the parts of each worker."""
    table = stats.worker_times(run)
    return {row.worker: [getattr(row, name) for name in PARTS] for row in table.itertuples()}


@given(bars, bars, st.floats(1e-3, 10))
@settings(max_examples=40)
def test_the_parts_add_up_to_the_wall_time_and_are_never_negative(
    recorded: Recorded,
    fetches: list[tuple[float, float]],
    tasks: list[tuple[float, float]],
    wall: float,
) -> None:
    """However bars overlap, run backwards or stick out of the window."""
    records = [sample(CASE, wall), log_count(CASE, "1")]
    records += [transfer(CASE, start, stop, dst="1") for start, stop in fetches]
    records += [task(CASE, start, stop, "1") for start, stop in tasks]
    (row,) = stats.worker_times(recorded([CASE], records)).itertuples()
    parts = [getattr(row, name) for name in PARTS]
    assert row.wall_s == wall
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(wall, abs=1e-9)


def test_each_part_is_what_its_name_says(recorded: Recorded) -> None:
    """Of ten seconds two are receiving only, one both, three computing only, four neither."""
    records = [
        sample(CASE, 10.0), log_count(CASE, "1"),
        transfer(CASE, 1, 3, dst="1"), transfer(CASE, 2, 4, dst="1"), task(CASE, 3, 7, "1"),
    ]  # fmt: skip
    assert parts_of(recorded([CASE], records)) == {"1": pytest.approx([2.0, 1.0, 3.0, 4.0])}


def test_a_transfer_is_time_of_its_receiver(recorded: Recorded) -> None:
    """The log is the receiver's: the sender of a transfer is not said to have waited for it."""
    records = [
        sample(CASE, 10.0), log_count(CASE, "0"), log_count(CASE, "1"),
        transfer(CASE, 0, 4, src="0", dst="1"),
    ]  # fmt: skip
    assert parts_of(recorded([CASE], records)) == {"0": [0, 0, 0, 10], "1": [4, 0, 0, 6]}


def test_only_computing_is_computing(recorded: Recorded) -> None:
    """Bars of other actions, as the task stream has them, are no computation."""
    records = [sample(CASE, 10.0), log_count(CASE)]
    records += [task(CASE, 0, 5, action=name) for name in ("transfer", "deserialize", "disk-read")]
    assert parts_of(recorded([CASE], records)) == {"0": [0, 0, 0, 10]}


def test_iterations_and_launches_are_kept_apart(recorded: Recorded) -> None:
    """A bar counts in its own iteration alone, whatever its times say."""
    records = []
    for launch in (0, 1):
        for iteration in (-1, 0, 1):
            place = {"launch": launch, "iteration": iteration}
            records += [sample(CASE, 10.0, started_at_s=EPOCH, **place), log_count(CASE, **place)]
            records.append(task(CASE, 0, 1 + 2 * launch + iteration, **place))
    table = stats.worker_times(recorded([CASE], records))
    assert table["iteration"].tolist() == [0, 1, 0, 1]
    assert table["compute_only_s"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_without_counts_or_samples_there_are_no_rows(recorded: Recorded) -> None:
    """A ping-pong, or a launch that died before its first sample, has an empty table."""
    full = stats.worker_times(recorded([CASE], [sample(CASE, 1.0), log_count(CASE)]))
    for records in ([], [sample(CASE, 1.0)], [log_count(CASE)]):
        empty = stats.worker_times(recorded([CASE], records))
        assert len(empty) == 0
        assert list(empty.columns) == list(full.columns)


def test_a_long_ping_pong_takes_no_time_to_divide(recorded: Recorded) -> None:
    """To pass over messages without a worker takes less than to store and read them."""
    pingpong = builders.case(workload="pingpong")
    stored = time.process_time()
    run = recorded(
        [pingpong], [builders.message(pingpong, 1e-6, 1, iteration=n) for n in range(20_000)]
    )
    assert len(run.samples) == 20_000
    began = time.process_time()
    assert len(stats.worker_times(run)) == 0
    assert time.process_time() - began < began - stored

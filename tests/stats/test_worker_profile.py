"""Each worker's accounts add up to the wall time, and each part is what its name says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import builders
import pytest
from builders import activity, sample, task, thread_time, transfer
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench import stats
from commbench.analysis.run import Run
from commbench.stats.worker_profile import LOOP_PARTS, TASK_PARTS

Recorded = Callable[..., Run]
CASE = builders.case()
seconds = st.floats(0, 30)


def profile_of(run: Run, worker: str = "0") -> Any:
    """Return the only row of one process."""
    table = stats.worker_profiles(run)
    (row,) = table[table.worker == worker].itertuples()
    return row


@given(st.lists(seconds, min_size=12, max_size=12), st.integers(1, 4), st.floats(1e-3, 10))
@settings(max_examples=40)
def test_both_accounts_add_up_and_nothing_is_negative(
    recorded: Recorded, times: list[float], n_threads: int, wall: float
) -> None:
    """However the counters, the metrics and the logs contradict each other."""
    run = recorded(
        [CASE],
        [
            sample(CASE, wall),
            thread_time(CASE, n_threads=n_threads, cpu_seconds=times[0], wait_seconds=times[1]),
            thread_time(
                CASE, role="loop", cpu_seconds=times[2], wait_seconds=times[3], n_turns=100,
                idle_cpu_seconds=times[4], idle_wait_seconds=times[5], idle_n_turns=7,
            ),
            thread_time(CASE, role="offload", cpu_seconds=times[6]),
            activity(CASE, "execute", "thread-cpu", times[7]),
            activity(CASE, "get-data", "serialize", times[8]),
            activity(CASE, "gather-dep", "deserialize", times[9]),
            task(CASE, 0, times[10]),
            transfer(CASE, 0, times[11], dst="0"),
        ],
    )  # fmt: skip
    row = profile_of(run)
    for parts in (TASK_PARTS, LOOP_PARTS):
        values = [getattr(row, name) for name in parts]
        assert min(values) >= 0
        assert sum(values) == pytest.approx(wall, abs=1e-9)


def test_an_average_task_threads_account(recorded: Recorded) -> None:
    """Of two threads' twenty seconds each part is what the counters and the logs say."""
    run = recorded(
        [CASE],
        [
            sample(CASE, 10.0),
            thread_time(CASE, n_threads=2, cpu_seconds=6.0, wait_seconds=1.0),
            activity(CASE, "execute", "thread-cpu", 4.0),
            activity(CASE, "execute", "p2p-get-output-cpu", 1.0),
            activity(CASE, "execute", "thread-noncpu", 9.0),
            # In tasks for 8 s: 5 on a core, 1 in the queue, so 2 blocked.
            task(CASE, 0, 5), task(CASE, 2, 5, thread=2),
            # Both threads are free in the last of its four seconds, none in two of them.
            transfer(CASE, 2, 6, dst="0"),
        ],
    )  # fmt: skip
    row = profile_of(run)
    assert [getattr(row, name) for name in TASK_PARTS] == pytest.approx(
        [2.5, 0.5, 0.5, 1.0, 1.0, 4.5]
    )


def test_the_event_loops_account(recorded: Recorded) -> None:
    """Serialization is what was not offloaded; polls cost what they cost the idle loop."""
    run = recorded(
        [CASE],
        [
            sample(CASE, 10.0),
            thread_time(
                CASE, role="loop", cpu_seconds=6.0, wait_seconds=1.5, n_turns=2000,
                idle_cpu_seconds=0.9, idle_wait_seconds=0.1, idle_n_turns=900,
            ),
            thread_time(CASE, role="offload", cpu_seconds=1.0),
            activity(CASE, "get-data", "serialize", 1.5),
            activity(CASE, "gather-dep", "decompress", 0.5),
            activity(CASE, "gather-dep", "network", 50.0),
        ],
    )  # fmt: skip
    row = profile_of(run)
    assert [getattr(row, name) for name in LOOP_PARTS] == pytest.approx(
        [0.75, 0.25, 2.0, 3.0, 1.5, 2.5]
    )
    assert row.other_threads_s == 1.0
    assert all(math.isnan(getattr(row, name)) for name in TASK_PARTS)


def test_a_loop_that_sleeps_when_idle_does_not_poll(recorded: Recorded) -> None:
    """Many turns are no polls where the idle loop used the processor for 2 % of the time."""
    loop = {"cpu_seconds": 6.0, "n_turns": 9000, "idle_cpu_seconds": 0.02, "idle_n_turns": 20}
    run = recorded([CASE], [sample(CASE, 10.0), thread_time(CASE, role="loop", **loop)])
    assert profile_of(run).poll_s == pytest.approx(0.2)


def test_polls_that_were_not_counted_are_unknown(recorded: Recorded) -> None:
    """A loop whose turns can't be counted has no number for its polls; the rest stands."""
    run = recorded([CASE], [sample(CASE, 10.0), thread_time(CASE, role="loop", cpu_seconds=6.0)])
    row = profile_of(run)
    assert math.isnan(row.poll_s)
    assert (row.messages_s, row.asleep_s) == (6.0, 4.0)


def test_the_gil_is_told_of_only_where_it_was_measured(recorded: Recorded) -> None:
    """Without gilknocker there is no number, and with it Dask's own."""
    records = [sample(CASE, 10.0), thread_time(CASE), thread_time(CASE, worker="1")]
    run = recorded([CASE], [*records, activity(CASE, "gil", "contention", 2.5)])
    assert profile_of(run).gil_s == 2.5
    assert math.isnan(profile_of(run, "1").gil_s)


def test_shares_are_of_all_wall_time_per_kind_of_process(recorded: Recorded) -> None:
    """Workers are taken together, scheduler and client stand for themselves."""
    records = []
    for iteration, wall in ((-1, 5.0), (0, 10.0), (1, 30.0)):
        place = {"iteration": iteration}
        records.append(sample(CASE, wall, **place))
        for worker, cpu in (("0", 4.0), ("1", 8.0)):
            records += [
                thread_time(CASE, worker, cpu_seconds=cpu, **place),
                activity(CASE, "execute", "thread-cpu", cpu, worker=worker, **place),
            ]
        for worker in ("client", "scheduler"):
            records.append(thread_time(CASE, worker, "loop", cpu_seconds=1.0, **place))
    run = recorded([CASE], records)
    table = stats.profile_shares(stats.worker_profiles(run), run)
    assert table.process.tolist() == ["workers", "scheduler", "client"]
    assert table.n_iterations.tolist() == [4, 2, 2]
    assert table.compute.tolist() == pytest.approx([0.3, math.nan, math.nan], nan_ok=True)
    assert table.messages.tolist() == pytest.approx([math.nan, 0.05, 0.05], nan_ok=True)


def test_without_readings_there_are_no_rows(recorded: Recorded) -> None:
    """A ping-pong or a launch that died at once has empty tables."""
    for records in ([], [sample(CASE, 1.0)], [thread_time(CASE)]):
        run = recorded([CASE], records)
        empty = stats.worker_profiles(run)
        assert len(empty) == 0
        assert len(stats.profile_shares(empty, run)) == 0

import math
import time

import builders
import numpy as np
import pytest
from builders import EPOCH, activity, log_count, sample, task, thread_time, transfer
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench import stats
from commbench.stats.worker_profile import LOOP_PARTS, TASK_PARTS, divide, idle_demand

CASE = builders.case()
PARTS = ["transfer_only_s", "overlap_s", "compute_only_s", "neither_s"]
seconds = st.floats(0, 30)
bars = st.lists(
    st.tuples(st.floats(-2, 12), st.floats(-1, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)
spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)


def profile_of(run, worker="0"):
    table = stats.worker_profiles(run)
    (row,) = table[table.worker == worker].itertuples()
    return row


@given(st.lists(seconds, min_size=12, max_size=12), st.integers(1, 4), st.floats(1e-3, 10))
@settings(max_examples=40)
def test_both_profiles_add_up_to_the_wall_time_without_negative_parts(times, n_threads, wall):
    run = builders.in_memory(
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


PROFILES = {
    "waits of a P2P shuffle are no blocked tasks": (
        {"compute_s": 1, "blocked_s": 3, "data_s": 3, "idle_s": 3},
        thread_time(CASE, cpu_seconds=1.0),
        activity(CASE, "execute", "thread-cpu", 1.0),
        # Of 6 s, 2 waited until earlier bytes were sent.
        task(CASE, 0, 6, name="shuffle-transfer"),
        activity(CASE, "execute", "p2p-comms-limiter", 2.0),
        task(CASE, 6, 9, name="shuffle-barrier"),
        transfer(CASE, 6, 7, dst="0"),
    ),
    "parts of the task threads": (
        dict(zip(TASK_PARTS, (2.5, 0.5, 0.5, 1.0, 1.0, 4.5), strict=True)),
        thread_time(CASE, n_threads=2, cpu_seconds=6.0, wait_seconds=1.0),
        activity(CASE, "execute", "thread-cpu", 4.0),
        activity(CASE, "execute", "p2p-get-output-cpu", 1.0),
        activity(CASE, "execute", "thread-noncpu", 9.0),
        # In tasks for 8 s: 5 on a core, 1 in the queue, so 2 blocked.
        task(CASE, 0, 5),
        task(CASE, 2, 5, thread=2),
        # Both threads are free in the last of its four seconds, none in two of them.
        transfer(CASE, 2, 6, dst="0"),
    ),
    "tasks that have seceded are not blocked": (
        {"compute_s": 4, "blocked_s": 1, "idle_s": 5},
        thread_time(CASE, n_threads=2, cpu_seconds=8.0),
        activity(CASE, "execute", "thread-cpu", 8.0),
        activity(CASE, "execute", "seceded", 9.0),
        # The first waits for the second one by worker_client.
        task(CASE, 0, 10),
        task(CASE, 1, 10, thread=2),
    ),
    "waits for a core between tasks are not subtracted from the time in tasks": (
        {"compute_s": 4, "queue_s": 3, "blocked_s": 1},
        thread_time(CASE, n_threads=1, cpu_seconds=4.0, wait_seconds=3.0),
        activity(CASE, "execute", "thread-cpu", 4.0),
        activity(CASE, "execute", "run-queue", 1.0),
        task(CASE, 0, 6),
    ),
    "stolen time leaves known waits of tasks without CPU time": (
        {"queue_s": 3, "blocked_s": 5},
        task(CASE, 0, 8),
        thread_time(CASE, wait_seconds=3.0),
        activity(CASE, "execute", "run-queue", 3.0),
        activity(CASE, "cores", "busy", 8.0),
        activity(CASE, "cores", "stolen", 2.0),
    ),
    "attempts that failed and were retried are no idle time": (
        # 4 s of the attempts, less the last one's 0.5 s, which is in the stream, too.
        {"compute_s": 1, "other_cpu_s": 2, "blocked_s": 4, "idle_s": 3},
        thread_time(CASE, n_threads=1, cpu_seconds=3.0, wait_seconds=0.0),
        activity(CASE, "execute", "thread-cpu", 1.0),
        # Their CPU time is within; the task stream has only the last attempt of each task.
        activity(CASE, "execute", "failed", 5.0),
        activity(CASE, "execute", "cancelled", 1.0),
        task(CASE, 8, 9, nbytes=1),
        task(CASE, 9, 9.5, nbytes=0),
    ),
    "a task that spins and fails is not blocked": (
        {"compute_s": 0, "other_cpu_s": 5, "blocked_s": 0, "idle_s": 5},
        thread_time(CASE, n_threads=1, cpu_seconds=5.0, wait_seconds=0.0),
        activity(CASE, "execute", "failed", 5.0),
        task(CASE, 1, 6, nbytes=0),
    ),
    "parts of the event loop": (
        dict(zip(LOOP_PARTS, (0.75, 0.25, 2.0, 3.0, 1.5, 2.5), strict=True))
        | {"other_threads_s": 1} | dict.fromkeys(TASK_PARTS, math.nan),
        thread_time(
            CASE, role="loop", cpu_seconds=6.0, wait_seconds=1.5, n_turns=2000,
            idle_cpu_seconds=0.9, idle_wait_seconds=0.1, idle_n_turns=900,
        ),
        thread_time(CASE, role="offload", cpu_seconds=1.0),
        activity(CASE, "get-data", "serialize", 1.5),
        activity(CASE, "gather-dep", "decompress", 0.5),
        activity(CASE, "gather-dep", "network", 50.0),
    ),
    "turns of a loop that sleeps when idle are not polls": (
        {"poll_s": 0.2},
        thread_time(
            CASE, role="loop", cpu_seconds=6.0, n_turns=9000, idle_cpu_seconds=0.02,
            idle_n_turns=20,
        ),
    ),
    "poll time is unknown where turns were not counted": (
        {"poll_s": math.nan, "messages_s": 6, "asleep_s": 4},
        thread_time(CASE, role="loop", cpu_seconds=6.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_parts_of_ten_seconds(profile, recorded):
    parts, *records = profile
    row = profile_of(recorded([CASE], [sample(CASE, 10.0), *records]))
    assert {name: getattr(row, name) for name in parts} == pytest.approx(parts, nan_ok=True)


def test_workers_have_no_profile_where_many_join_or_leave():
    def known(*records):
        stayed = [thread_time(CASE, worker) for worker in ("scheduler", *map(str, range(9)))]
        run = builders.in_memory([CASE], [sample(CASE, 10.0), *stayed, *records])
        return len(stats.worker_profiles(run))

    joined, left = log_count(CASE, "9"), task(CASE, 0, 1, worker="10")
    assert known(*(log_count(CASE, str(n)) for n in range(9)), task(CASE, 0, 1)) == 10
    assert known(joined) == 10
    assert known(joined, left) == 1
    # In another iteration nothing changes.
    assert known(joined, left, sample(CASE, 10.0, iteration=1), thread_time(CASE, iteration=1)) == 2


def test_what_a_hypervisor_takes_is_no_core_and_not_blocked(recorded):
    def parts(*activities):
        records = [
            sample(CASE, 10.0),
            task(CASE, 0, 8),
            thread_time(CASE, cpu_seconds=4.0, wait_seconds=1.0),
            thread_time(CASE, role="loop", cpu_seconds=2.0),
            activity(CASE, "execute", "thread-cpu", 4.0),
            activity(CASE, "execute", "run-queue", 1.0),
            *(activity(CASE, "cores", *each) for each in activities),
        ]
        row = profile_of(recorded([CASE], records))
        return row.compute_s, row.queue_s, row.blocked_s, row.loop_queue_s

    assert parts() == parts(("busy", 8.0)) == pytest.approx((4.0, 1.0, 3.0, 0.0))
    # A fifth of the ten seconds for which the cores were wanted was stolen.
    assert parts(("busy", 8.0), ("stolen", 2.0)) == pytest.approx((4.0, 2.0, 2.0, 0.5))


def test_a_loop_that_sleeps_wants_no_core_for_longer_than_it_uses_it():
    """Other programs may let it wait before each turn."""
    waits = {"idle_cpu_seconds": 0.02, "idle_wait_seconds": 0.7, "idle_n_turns": 200}
    # Polls, also with little of a core: between waits are many turns.
    polls = ({"idle_cpu_seconds": 0.2}, {"idle_n_turns": 2000})
    threads = [thread_time(CASE, role="loop", **waits | other) for other in ({}, *polls)]
    run = builders.in_memory([CASE], [*threads, thread_time(CASE, "1", **waits)])
    assert idle_demand(run.threads).tolist() == pytest.approx([0.02, 0.9, 0.72, 0.72])


def test_poll_time_is_unknown_where_tasks_went_on_in_the_idle_time(recorded):
    loop = {"cpu_seconds": 6.0, "n_turns": 9000, "idle_cpu_seconds": 0.5, "idle_n_turns": 500}
    records = [
        sample(CASE, 10.0), thread_time(CASE, role="loop", **loop),
        thread_time(CASE, "1", idle_cpu_seconds=0.9),
    ]  # fmt: skip
    run = recorded([CASE], records)
    row = next(stats.worker_profiles(run).itertuples())
    assert math.isnan(row.poll_s)
    assert row.messages_s == 6.0
    # The shares are those of the iteration in which it is known.
    known = [sample(CASE, 10.0, iteration=1), thread_time(CASE, role="loop", iteration=1, **loop)]
    run = recorded([CASE], [*records, *known])
    (shares,) = stats.profile_shares(stats.worker_profiles(run), run).itertuples()
    assert (shares.poll, shares.messages, shares.asleep) == pytest.approx((0.5, 0.1, 0.4))


def test_gil_contention_is_unknown_where_not_measured(recorded):
    records = [sample(CASE, 10.0), thread_time(CASE), thread_time(CASE, worker="1")]
    run = recorded([CASE], [*records, activity(CASE, "gil", "contention", 2.5)])
    assert profile_of(run).gil_s == 2.5
    assert math.isnan(profile_of(run, "1").gil_s)
    (shares,) = stats.profile_shares(stats.worker_profiles(run), run).itertuples()
    assert shares.gil == 0.25


def test_shares_are_pooled_by_kind_of_process(recorded):
    records = []
    for iteration, wall in ((-1, 5.0), (0, 10.0), (1, 30.0)):
        at = {"iteration": iteration}
        records.append(sample(CASE, wall, **at))
        for worker, cpu in (("0", 4.0), ("1", 8.0)):
            records += [
                thread_time(CASE, worker, cpu_seconds=cpu, **at),
                activity(CASE, "execute", "thread-cpu", cpu, worker=worker, **at),
            ]
        for worker in ("client", "scheduler"):
            records.append(thread_time(CASE, worker, "loop", cpu_seconds=1.0, **at))
    run = recorded([CASE], records)
    table = stats.profile_shares(stats.worker_profiles(run), run)
    assert table.process.tolist() == ["workers", "scheduler", "client"]
    assert table.n_iterations.tolist() == [4, 2, 2]
    assert table.compute.tolist() == pytest.approx([0.3, math.nan, math.nan], nan_ok=True)
    assert table.messages.tolist() == pytest.approx([math.nan, 0.05, 0.05], nan_ok=True)


def test_profiles_are_empty_without_readings(recorded):
    for records in ([], [sample(CASE, 1.0)], [thread_time(CASE)]):
        run = recorded([CASE], records)
        empty = stats.worker_profiles(run)
        assert len(empty) == 0
        assert len(stats.profile_shares(empty, run)) == 0


def parts_of(run):
    return stats.worker_times(run).set_index("worker")[PARTS].T.to_dict("list")


@given(bars, bars, st.floats(1e-3, 10))
@settings(max_examples=40)
def test_worker_times_add_up_to_the_wall_time_without_negative_parts(fetches, tasks, wall):
    records = [sample(CASE, wall), log_count(CASE, "1")]
    records += [transfer(CASE, start, stop, dst="1") for start, stop in fetches]
    records += [task(CASE, start, stop, "1") for start, stop in tasks]
    (row,) = stats.worker_times(builders.in_memory([CASE], records)).itertuples()
    parts = [getattr(row, name) for name in PARTS]
    assert row.wall_s == wall
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(wall, abs=1e-9)


def test_each_part_of_a_workers_time(recorded):
    records = [
        sample(CASE, 10.0), log_count(CASE, "1"),
        transfer(CASE, 1, 3, dst="1"), transfer(CASE, 2, 4, dst="1"), task(CASE, 3, 7, "1"),
    ]  # fmt: skip
    assert parts_of(recorded([CASE], records)) == {"1": pytest.approx([2.0, 1.0, 3.0, 4.0])}


def test_a_transfer_counts_for_its_receiver_only(recorded):
    records = [
        sample(CASE, 10.0), log_count(CASE, "0"), log_count(CASE, "1"),
        transfer(CASE, 0, 4, src="0", dst="1"),
    ]  # fmt: skip
    assert parts_of(recorded([CASE], records)) == {"0": [0, 0, 0, 10], "1": [4, 0, 0, 6]}


def test_only_compute_tasks_count_as_computing(recorded):
    records = [sample(CASE, 10.0), log_count(CASE)]
    records += [task(CASE, 0, 5, action=name) for name in ("transfer", "deserialize", "disk-read")]
    assert parts_of(recorded([CASE], records)) == {"0": [0, 0, 0, 10]}


def test_tasks_count_in_their_iteration_and_launch_only(recorded):
    records = []
    for launch in (0, 1):
        for iteration in (-1, 0, 1):
            at = {"launch": launch, "iteration": iteration}
            records += [sample(CASE, 10.0, started_at_s=EPOCH, **at), log_count(CASE, **at)]
            records.append(task(CASE, 0, 1 + 2 * launch + iteration, **at))
    table = stats.worker_times(recorded([CASE], records))
    assert table["iteration"].tolist() == [0, 1, 0, 1]
    assert table["compute_only_s"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_worker_times_are_empty_without_counts_or_samples(recorded):
    full = stats.worker_times(recorded([CASE], [sample(CASE, 1.0), log_count(CASE)]))
    for records in ([], [sample(CASE, 1.0)], [log_count(CASE)]):
        empty = stats.worker_times(recorded([CASE], records))
        assert len(empty) == 0
        assert list(empty.columns) == list(full.columns)


def ticks(some):
    return {second for start, stop in some for second in range(start, stop)}


def array(some):
    return np.array(some, dtype=float).reshape(-1, 2)


@given(spans, spans, st.integers(1, 60))
def test_divide_agrees_with_counting_seconds(first, second, length):
    inside = [
        [(start, min(stop, length)) for start, stop in some if start < length]
        for some in (first, second)
    ]
    one, two = map(ticks, inside)
    expected = (len(one - two), len(one & two), len(two - one), length - len(one | two))
    assert divide(float(length), *map(array, inside)) == expected


def test_worker_times_do_not_go_through_the_messages_of_a_ping_pong(recorded):
    # To store and to read the messages is the measure of what is fast.
    pingpong = builders.case(workload="pingpong")
    began = time.process_time()
    messages = [builders.message(pingpong, 1e-6, 1, iteration=n) for n in range(20_000)]
    run = recorded([pingpong], messages)
    assert len(run.samples) == 20_000
    read = time.process_time()
    assert len(stats.worker_times(run)) == 0
    assert time.process_time() - read < read - began

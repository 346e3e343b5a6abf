"""The profile of a task on a real cluster shows what the task does."""

import asyncio
import errno
import functools
import json
import math
import mmap
import os
import threading
import time
from types import SimpleNamespace

import builders
import dask
import numpy as np
import pytest
from distributed import Worker, get_worker, worker_client
from distributed.threadpoolexecutor import ThreadPoolExecutor, rejoin, secede
from launching import select
from spinning import spin

from commbench import stats
from commbench.harness.measure import plugins
from commbench.harness.measure.cluster import measure_cluster
from commbench.machine import cores
from commbench.model import Case, Launch
from commbench.model.observed import Activity, LongTurn, ProcessUse, Sample, ThreadTime
from commbench.stats.worker_profile import LOOP_PARTS, TASK_PARTS
from commbench.workloads.workload import ClusterWorkload, Context

SECONDS = 0.4
# What a worker does besides, on a machine with other work.
SLACK = 0.2


def spin_in_a_task(seconds):
    with worker_client() as client:
        client.submit(spin, seconds, pure=False, workers=[get_worker().address]).result()


def wait_for_a_task_then_sleep(seconds):
    with worker_client() as client:
        client.submit(int, pure=False, workers=[get_worker().address]).result()
    time.sleep(seconds)


def spin_in_a_thread(seconds):
    thread = threading.Thread(target=spin, args=(seconds,))
    thread.start()
    thread.join()


def sleep(seconds):
    time.sleep(seconds)


def use_memory(_seconds):
    """Write to 256 MB of fresh pages."""
    for _ in range(4):
        with mmap.mmap(-1, mmap.PAGESIZE << 14, mmap.MAP_PRIVATE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            memory[:: mmap.PAGESIZE] = bytes(1 << 14)


def block_the_loop(seconds):
    """Use the processor in the event loop's thread, and wait for it."""
    done = threading.Event()

    def callback():
        spin(seconds)
        done.set()

    get_worker().loop.add_callback(callback)
    done.wait(60)


def poll(begin, dask_worker):
    """Begin or stop to come back to the event loop at every turn."""
    dask_worker.commbench_polls = begin
    loop = asyncio.get_running_loop()

    def again():
        if dask_worker.commbench_polls:
            loop.call_soon(again)

    again()


class One(ClusterWorkload):
    """One task on worker 0."""

    name = "test"
    payload_bytes = 1

    def __init__(self, function, address):
        super().__init__(self.Params(), Context(n_workers=2, device="cpu", seed=0))
        self.function, self.address = function, address

    def prepare(self, client):
        """Do nothing."""

    def build(self):
        with dask.annotate(workers=[self.address], allow_other_workers=False):
            return (dask.delayed(self.function, pure=False)(SECONDS, dask_key_name="one"),)

    def verify(self, client, result):
        """Find everything right."""


@pytest.fixture(scope="module")
def profile(cluster, recorded, measured):
    """Return a function that returns the records of a task's iterations and their profile."""

    def measure(function, iterations=2):
        case = Case(workload="test", backend="tcp", iterations=iterations, warmups=0)
        records = measured(measure_cluster, case, One(function, cluster.addresses["0"]))
        profiles = stats.worker_profiles(recorded([case], [*records, builders.end(case)]))
        return records, profiles.set_index(["worker", "iteration"])

    return functools.cache(measure)


@pytest.mark.parametrize("function", [spin, sleep, block_the_loop])
def test_tasks_and_loop_parts_add_up_to_the_whole_time(profile, function):
    _, profiles = profile(function)
    # In the fixture, the scheduler is a process, too.
    assert sorted({worker for worker, _ in profiles.index}) == ["0", "1", "client", "scheduler"]
    for parts, rows in ((TASK_PARTS, profiles.loc[["0", "1"]]), (LOOP_PARTS, profiles)):
        assert (rows[list(parts)] >= 0).all(axis=None)
        assert rows[list(parts)].sum(axis="columns").tolist() == pytest.approx(rows.wall_s.tolist())


def test_a_task_that_spins_computes(profile):
    _, profiles = profile(spin)
    for row in profiles.loc["0"].itertuples():
        assert SECONDS - 0.05 < row.compute_s < SECONDS + 0.05
        # On a busy machine the loop has longer to do what it does anyway.
        assert row.messages_s + row.poll_s < max(row.compute_s, row.wall_s / 2)
    assert (profiles.loc["1"].compute_s < 0.05).all()
    unused = profiles.loc["1"].idle_s + profiles.loc["1"].queue_s
    assert (unused > profiles.loc["1"].wall_s - SLACK).all()


def test_a_task_within_a_task_computes(profile):
    """The thread on which it runs has ended when the counters are read."""
    records, profiles = profile(spin_in_a_task)
    for row in profiles.loc["0"].itertuples():
        assert row.compute_s > SECONDS - 0.1
        assert row.blocked_s < SLACK
    seceded = [
        (each.worker, each.iteration, each.seconds) for each in select(records, Activity)
        if each.label == "seceded"
    ]  # fmt: skip
    assert [each[:2] for each in seceded] == [("0", 0), ("0", 1)]
    wall_s = profiles.loc["0"].wall_s.tolist()
    for (*_, seconds), whole_s in zip(seceded, wall_s, strict=True):
        assert SECONDS - 0.05 < seconds < whole_s


def test_a_task_that_has_rejoined_is_blocked_again(profile):
    _, profiles = profile(wait_for_a_task_then_sleep)
    for row in profiles.loc["0"].itertuples():
        assert row.blocked_s > SECONDS - SLACK


def test_a_task_has_no_thread_until_it_has_rejoined():
    """With one thread, it waits until the task that has that thread has ended."""
    with ThreadPoolExecutor(1) as executor:
        counter = plugins.QueueCounter(executor)

        free = threading.Event()

        def work():
            secede()
            began = time.perf_counter()
            free.set()
            time.sleep(0.1)
            rejoin()
            return time.perf_counter() - began

        ended = executor.submit(work)
        free.wait()
        executor.submit(time.sleep, SECONDS)
        seceded_s = ended.result()
        counter.close()
    assert seceded_s > SECONDS
    assert counter.seceded_seconds() == pytest.approx(seceded_s, abs=0.05)


def test_only_sleep_in_this_window_counts_of_a_task_that_has_seceded():
    with ThreadPoolExecutor(1) as executor:
        counter = plugins.QueueCounter(executor)

        def work():
            secede()
            spin(SECONDS)
            time.sleep(SECONDS)
            seceded.append(counter.seceded_seconds())
            time.sleep(SECONDS)

        seceded = []
        executor.submit(work).result()
        # Half of the time asleep was before, as far as is known without its times.
        last_s = counter.seceded_seconds()
        counter.close()
        executor.submit(int).result()
    assert seceded == [0.0]
    assert last_s == pytest.approx(2 * SECONDS / 3, abs=SLACK)
    assert not {"submit", "_adjust_thread_count"} & vars(executor).keys()


def test_a_task_that_sleeps_is_blocked(profile):
    _, profiles = profile(sleep)
    for row in profiles.loc["0"].itertuples():
        assert row.blocked_s > SECONDS - SLACK
        assert row.compute_s < 0.05


def test_a_callback_that_spins_counts_for_the_loop_and_blocks_the_task(profile):
    _, profiles = profile(block_the_loop)
    for row in profiles.loc["0"].itertuples():
        assert row.messages_s > SECONDS - 0.1
        assert row.compute_s < 0.05
        assert row.blocked_s > SECONDS - SLACK
    assert (profiles.loc["1"].messages_s < profiles.loc["0"].messages_s).all()


def test_turns_that_the_idle_loop_makes_too_are_polls(profile, cluster):
    address = cluster.addresses["0"]
    cluster.client.run(poll, True, workers=[address])
    try:
        _, profiles = profile.__wrapped__(sleep, 1)
    finally:
        cluster.client.run(poll, False, workers=[address])
    for row in profiles.loc["0"].itertuples():
        assert row.poll_s > 0.5 * (row.poll_s + row.messages_s)
        assert row.poll_s + row.loop_queue_s > 0.5 * row.wall_s
    assert (profiles.loc["1"].poll_s < 0.3 * profiles.loc["1"].wall_s).all()


def test_the_readings_enclose_the_sample_and_exclude_the_idle_time(profile, monkeypatch):
    # A busy machine takes long between two readings.
    monkeypatch.setattr(plugins, "IDLE_SECONDS", 2.0)
    records, _ = profile.__wrapped__(sleep, 1)
    samples = {sample.iteration: sample for sample in select(records, Sample)}
    threads = select(records, ThreadTime)
    assert {(t.worker, t.role) for t in threads} >= {
        ("0", "loop"), ("0", "tasks"), ("1", "tasks"), ("scheduler", "loop"), ("client", "loop"),
    }  # fmt: skip
    for thread in threads:
        sample = samples[thread.iteration]
        assert sample.seconds <= thread.seconds < sample.seconds + thread.idle_seconds
        assert thread.idle_seconds >= plugins.IDLE_SECONDS
        assert (thread.n_turns > 0) == (thread.role == "loop")


def test_dasks_metrics_are_recorded_for_each_iteration(profile):
    records, _ = profile(spin)
    activities = [
        activity
        for activity in select(records, Activity)
        if (activity.context, activity.label) == ("execute", "thread-cpu")
    ]
    assert [(a.worker, a.iteration) for a in activities] == [("0", 0), ("0", 1)]
    assert [a.seconds for a in activities] == pytest.approx([SECONDS, SECONDS], abs=0.05)


def test_a_turn_that_blocks_the_loop_is_within_its_iteration(profile):
    records, _ = profile(block_the_loop)
    samples = {sample.iteration: sample for sample in select(records, Sample)}
    for number, sample in samples.items():
        turns = [
            (turn.stop_s - turn.start_s, turn) for turn in select(records, LongTurn)
            if (turn.worker, turn.iteration) == ("0", number)
        ]  # fmt: skip
        seconds, turn = max(turns, key=lambda each: each[0])
        assert seconds >= SECONDS - 0.01
        assert sample.started_at_s - SLACK < turn.start_s
        assert turn.stop_s < sample.started_at_s + sample.seconds + SLACK


def test_a_turn_that_goes_on_after_the_iteration_counts_up_to_its_end(cluster):
    async def block():
        time.sleep(4.0)

    launch = Launch(case=Case(workload="test", backend="tcp"), index=0, block=0, position=0)
    profiler = plugins.Profiler(cluster)
    try:
        profiler.begin()
        cluster.client.run(block, workers=[cluster.addresses["0"]], wait=False)
        began = time.perf_counter()
        time.sleep(0.3)
        profiler.end()
        seconds = time.perf_counter() - began
        records = list(profiler.records(launch, 0))
    finally:
        profiler.close()
    (use,) = (t for t in select(records, ThreadTime) if (t.worker, t.role) == ("0", "loop"))
    turns = [turn for turn in select(records, LongTurn) if turn.worker == "0"]
    # The counters of the worker came when its loop went on.
    assert 0 < use.long_turn_seconds <= use.seconds < seconds
    assert use.long_turn_seconds == pytest.approx(sum(t.stop_s - t.start_s for t in turns))


def test_dasks_system_monitor_is_recorded_for_workers_and_scheduler(profile):
    records, _ = profile(spin)
    samples = {sample.iteration: sample for sample in select(records, Sample)}
    uses = select(records, ProcessUse)
    assert {(use.worker, use.iteration) for use in uses} == {
        (worker, number) for worker in ("0", "1", "scheduler") for number in samples
    }
    for use in uses:
        sample = samples[use.iteration]
        assert use.start_s < use.stop_s
        assert use.stop_s > sample.started_at_s - SLACK
        assert use.start_s < sample.started_at_s + sample.seconds + SLACK
        assert use.memory_bytes > 10_000_000


@pytest.mark.parametrize(
    ("since", "until", "starts"), [(0, 9, [1.0, 2.0]), (2.5, 9, [2.0]), (0, 1.5, [1.0]), (3, 9, [])]
)
def test_readings_of_the_monitor_count_where_they_overlap_with_the_iteration(since, until, starts):
    quantities = {"time": [1.0, 2.0, 3.0], "cpu": [0.0, 50.0, 150.0], "memory": [1.0, 2.0, 3.0]}
    monitor = SimpleNamespace(quantities=quantities, update=lambda: None)
    worker = SimpleNamespace(monitor=monitor)
    uses = plugins.monitored(since, until, worker)
    assert [use["start_s"] for use in uses] == starts
    assert all(use["n_cores"] == {1.0: 0.5, 2.0: 1.5}[use["start_s"]] for use in uses)
    assert plugins.monitored(since, until, None) == []


def test_nothing_is_counted_after_the_measurement(profile, cluster):
    def wrapped(dask_worker=None):
        objects = [asyncio.get_running_loop()._selector]
        if isinstance(dask_worker, Worker):
            objects.append(dask_worker.executors["default"])
        names = ("select", "submit", "_adjust_thread_count")
        return [name for each in objects for name in names if name in vars(each)]

    profile(spin)
    assert not any(cluster.client.run(wrapped).values())
    assert not cluster.client.run_on_scheduler(wrapped)


def test_waits_for_a_core_in_tasks_are_counted_apart_from_those_of_their_threads():
    """Two threads that share a core wait for it about as long as they have it."""
    with ThreadPoolExecutor(2) as executor:
        counter = plugins.QueueCounter(executor)
        cores = os.sched_getaffinity(0)

        def work():
            os.sched_setaffinity(0, [min(cores)])
            began = time.perf_counter()
            spin(SECONDS)
            return time.perf_counter() - began - SECONDS

        waited = [future.result() for future in [executor.submit(work) for _ in range(2)]]
        counter.close()
        executor.submit(work).result()
    # The interpreter's lock is a wait, too, but not for a core.
    assert 0 < counter.seconds <= sum(waited) + 0.05


def test_a_process_without_descriptors_left_loses_no_task(monkeypatch):
    with ThreadPoolExecutor(1) as executor:
        counter = plugins.QueueCounter(executor)

        def fail(_clock):
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(cores.WaitClock, "seconds", fail)
        assert executor.submit(sum, [1, 2]).result() == 3
        assert counter.seconds == 0.0
        counter.close()
        assert "submit" not in vars(executor)


def test_waits_in_tasks_are_unknown_for_other_executors():
    counter = plugins.QueueCounter(object())
    counter.close()
    assert math.isnan(counter.seconds)


def test_each_reader_gets_the_long_turns_since_its_last_reading():
    counter = plugins.TurnCounter(object())
    turns = [(float(n), n + 0.5) for n in range(2000)]

    def passes(n):
        for turn in turns[counter.n_long : counter.n_long + n]:
            counter.n_long += 1
            counter.long_turns.append(turn)

    passes(3)
    assert counter.new_turns("outer") == []
    passes(2)
    assert counter.new_turns("inner") == []
    passes(1)
    assert counter.new_turns("inner") == turns[5:6]
    assert counter.new_turns("outer") == turns[3:6]
    assert counter.new_turns("outer") == []
    # Of more than are kept, the last ones.
    passes(1500)
    assert counter.new_turns("outer") == turns[506:1506]


def test_long_turns_of_a_loop_have_their_begin_and_end():
    async def work():
        counter, began_s = plugins.TurnCounter(asyncio.get_running_loop()), time.time()
        for seconds in (0.02, 0.25):
            await asyncio.sleep(0)
            time.sleep(seconds)
            spin(seconds / 5)
        await asyncio.sleep(0.15)
        counter.close()
        assert counter.long_cpu_seconds == sum(cpu_s for *_, cpu_s in counter.long_turns)
        return [
            (start - began_s, stop - began_s, cpu_s) for start, stop, cpu_s in counter.long_turns
        ]

    # Neither the short call nor the wait for the next event is long.
    ((start_s, stop_s, cpu_s),) = asyncio.run(work())
    assert 0.015 <= start_s < stop_s
    assert stop_s - start_s >= 0.3
    # It sleeps for the rest.
    assert 0.05 <= cpu_s < 0.1


def page_fault_ratios(n_pages=1 << 12):
    """Return the counted over the spent seconds of fresh pages, and those of known ones."""
    counter = plugins.PageFaultCounter()
    with mmap.mmap(-1, n_pages * mmap.PAGESIZE, mmap.MAP_PRIVATE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        ratios = []
        for _ in range(2):
            before_s, began = counter.seconds, time.thread_time()
            memory[:: mmap.PAGESIZE] = bytes(n_pages)
            spent = time.thread_time() - began
            ratios.append((counter.seconds - before_s) / spent)
    return ratios


def test_a_page_fault_takes_as_long_as_it_takes_to_write_to_a_fresh_page():
    # The speed of the machine varies between the measurement of a page fault and its use.
    fresh, known = np.median([page_fault_ratios() for _ in range(9)], axis=0)
    assert 0.3 <= fresh <= 1.5
    assert known < 0.1


def test_page_faults_of_a_task_are_those_of_its_worker(profile):
    def page_faults(function):
        return sum(
            each.seconds for each in profile(function)[0]
            if isinstance(each, Activity) and (each.worker, each.label) == ("0", "page-faults")
        )  # fmt: skip

    # There are 65,536 per iteration, each of which takes far more than 50 ns.
    assert page_faults(use_memory) > page_faults(sleep) + 2 * 65_536 * 50e-9


@pytest.mark.parametrize("used", [cores.Times(5.0, 2.0), None])
def test_workers_read_how_busy_their_cores_are(used, monkeypatch):
    monkeypatch.setattr(cores, "times", lambda _: used)
    monitor = SimpleNamespace(monitor_gil_contention=False)
    worker = SimpleNamespace(digests_total={}, plugins={}, monitor=monitor)
    assert plugins._totals(worker, None, None) == (
        [("cores", "busy", 5.0), ("cores", "stolen", 2.0)] if used else []
    )


def test_cpu_time_of_ended_threads_is_that_which_no_thread_has_and_tasks_lack():
    def reading(clock, thread_s, process_s, tasks_s):
        totals = [["execute", "thread-cpu", tasks_s], ["execute", "run-queue", 0.6 * clock]]
        counters = {
            "clock": clock, "n_turns": 0, "long_seconds": 0.0, "n_task_threads": 1,
            "roles": {"7": "tasks"}, "totals": totals,
        }  # fmt: skip
        return plugins._Reading(counters, clock, {7: (thread_s, 0.1 * clock)}, process_s)

    before = reading(0.0, 1.0, 2.0, 0.0)
    for process_s, tasks_s, expected, of_others in (
        # A thread that has ended, of which tasks used 3 s.
        (7.0, 4.0, 4.0, 1.0),
        # Tasks that began before the window: their CPU time was used before, too.
        (3.0, 9.0, 1.0, 0.0),
        # A thread of a library has ended.
        (7.0, 1.0, 1.0, 4.0),
        # What is listed may be some milliseconds old.
        (3.009, 1.0, 1.0, 0.0),
    ):
        _, roles = plugins._spent(before, reading(5.0, 2.0, process_s, tasks_s))
        assert roles["tasks"].cpu_seconds == pytest.approx(expected)
        assert roles["native"].cpu_seconds == pytest.approx(of_others)
        # Waits in tasks that began before the window were waits before, too.
        waited_s = 3.0 if expected > 1.0 else 0.5
        assert roles["tasks"].wait_seconds == pytest.approx(waited_s)


def test_threads_that_a_task_starts_and_ends_have_their_cpu_time(profile):
    _, profiles = profile(spin_in_a_thread)
    for row in profiles.loc["0"].itertuples():
        assert SECONDS - 0.05 < row.other_threads_s < SECONDS + SLACK
        assert row.blocked_s > SECONDS - SLACK


def test_a_thread_that_is_about_to_start_has_no_role(monkeypatch):
    async def roles():
        return json.loads(plugins.read(times=False))["roles"]

    monkeypatch.setattr(threading, "enumerate", lambda: [threading.Thread(name="about")])
    assert asyncio.run(roles()) == {str(threading.get_native_id()): "loop"}


def test_threads_of_shuffles_and_actors_have_roles_of_their_own(cluster):
    def roles(dask_worker):
        dask_worker.plugins["shuffle"]._executor.submit(int).result()
        dask_worker.executors["actor"].submit(int).result()
        counters = json.loads(plugins.read(False, dask_worker=dask_worker))
        return [[*counters["roles"].values()].count(role) for role in ("shuffle", "actors")]

    assert [*cluster.client.run(roles).values()] == [[1, 1]] * 2


def test_the_turns_of_a_loop_without_a_selector_are_unknown():
    counter = plugins.TurnCounter(object())
    counter.close()
    assert counter.n_turns == 0

"""Where the time goes on a real cluster: what a task does is found in the part that is its own."""

from __future__ import annotations

import asyncio
import threading
import time

import builders
import dask
import processes
import pytest
from distributed import get_worker

from commbench import stats
from commbench.harness.measure import cluster as measuring
from commbench.harness.measure import plugins
from commbench.machine import cores
from commbench.model import Activity, Case, Launch, Sample, ThreadTime
from commbench.stats.worker_profile import LOOP_PARTS, TASK_PARTS
from commbench.store.emitter import InMemory
from commbench.workloads.base import ClusterWorkload, Context

SECONDS = 0.4
# What a worker does besides, on a machine with other work.
SLACK = 0.2


def spin(seconds):
    """Use the processor of this thread for so long."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def sleep(seconds):
    """Do nothing for so long."""
    time.sleep(seconds)


def block_the_loop(seconds):
    """Use the processor in the event loop's thread for so long, and wait for it."""
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
        super().__init__(None, Context(n_workers=2, device="cpu", seed=0))
        self.function, self.address = function, address

    def prepare(self, client):
        """Do nothing."""

    def build(self):
        with dask.annotate(workers=[self.address], allow_other_workers=False):
            return (dask.delayed(self.function, pure=False)(SECONDS, dask_key_name="one"),)

    def verify(self, client, result):
        """Find everything right."""


@pytest.fixture
def profiled(cluster, recorded, monkeypatch):
    """Return a function that returns the records of a task's two iterations and their profile."""
    monkeypatch.setattr("commbench.harness.measure.conditions._SETTLE_SECONDS", 0.0)

    def measure(function):
        case = Case(workload="test", backend="tcp", iterations=2, warmups=0)
        launch = Launch(case=case, index=0, block=0, position=0)
        records = InMemory()
        workload = One(function, cluster.addresses["0"])
        measuring.measure_cluster(launch, workload, cluster.backend, cluster, records)
        profiles = stats.worker_profiles(recorded([case], [*records, builders.end(case)]))
        return records, profiles.set_index(["worker", "iteration"])

    return measure


@pytest.mark.parametrize("function", [spin, sleep, block_the_loop])
def test_the_accounts_of_real_processes_add_up(profiled, function):
    _, profiles = profiled(function)
    assert sorted({worker for worker, _ in profiles.index}) == ["0", "1", "client", "scheduler"]
    for account, rows in (
        (TASK_PARTS, profiles.loc[["0", "1"]]),
        (LOOP_PARTS, profiles),
    ):
        assert (rows[list(account)] >= 0).all(axis=None)
        assert rows[list(account)].sum(axis="columns").tolist() == pytest.approx(
            rows.wall_s.tolist()
        )


def test_a_task_that_spins_computes(profiled):
    _, profiles = profiled(spin)
    for row in profiles.loc["0"].itertuples():
        assert SECONDS - 0.05 < row.compute_s < SECONDS + 0.05
        assert row.messages_s + row.poll_s < SLACK
    assert (profiles.loc["1"].compute_s < 0.05).all()
    unused = profiles.loc["1"].idle_s + profiles.loc["1"].queue_s
    assert (unused > profiles.loc["1"].wall_s - SLACK).all()


def test_a_task_that_sleeps_is_blocked(profiled):
    _, profiles = profiled(sleep)
    for row in profiles.loc["0"].itertuples():
        assert row.blocked_s > SECONDS - SLACK
        assert row.compute_s < 0.05


def test_what_keeps_the_loop_busy_is_the_loops(profiled):
    _, profiles = profiled(block_the_loop)
    for row in profiles.loc["0"].itertuples():
        assert row.messages_s > SECONDS - 0.1
        assert row.compute_s < 0.05
        assert row.blocked_s > SECONDS - SLACK
    assert (profiles.loc["1"].messages_s < SLACK).all()


def test_a_loop_that_never_sleeps_polls(profiled, cluster):
    address = cluster.addresses["0"]
    cluster.client.run(poll, True, workers=[address])
    try:
        _, profiles = profiled(sleep)
    finally:
        cluster.client.run(poll, False, workers=[address])
    for row in profiles.loc["0"].itertuples():
        assert row.poll_s > 0.5 * (row.poll_s + row.messages_s)
        assert row.poll_s + row.loop_queue_s > 0.5 * row.wall_s
    assert (profiles.loc["1"].poll_s < 0.3 * profiles.loc["1"].wall_s).all()


def test_the_readings_are_just_outside_of_the_window(profiled, monkeypatch):
    monkeypatch.setattr(plugins, "IDLE_SECONDS", 3.0)
    records, _ = profiled(spin)
    samples = {r.iteration: r for r in records if isinstance(r, Sample)}
    threads = [r for r in records if isinstance(r, ThreadTime)]
    assert {(t.worker, t.role) for t in threads} >= {
        ("0", "loop"), ("0", "tasks"), ("1", "tasks"), ("scheduler", "loop"), ("client", "loop"),
    }  # fmt: skip
    for thread in threads:
        sample = samples[thread.iteration]
        assert sample.seconds <= thread.seconds < sample.seconds + thread.idle_seconds
        assert thread.idle_seconds >= plugins.IDLE_SECONDS
        assert (thread.n_turns > 0) == (thread.role == "loop")


def test_dasks_own_metrics_are_those_of_the_iteration(profiled):
    records, _ = profiled(spin)
    found = [
        r for r in records
        if isinstance(r, Activity) and (r.context, r.label) == ("execute", "thread-cpu")
    ]  # fmt: skip
    assert [(r.worker, r.iteration) for r in found] == [("0", 0), ("0", 1)]
    assert [r.seconds for r in found] == pytest.approx([SECONDS, SECONDS], abs=0.05)


def test_the_event_loops_are_left_as_they_were(profiled, cluster):
    def wrapped():
        return "select" in vars(asyncio.get_running_loop()._selector)

    profiled(spin)
    assert not any(cluster.client.run(wrapped).values())
    assert not cluster.client.run_on_scheduler(wrapped)


def test_a_loop_without_a_selector_is_not_counted():
    counter = plugins.TurnCounter(object())
    counter.close()
    assert counter.n_turns == 0


def test_each_thread_has_its_own_times():
    told, stop = {}, threading.Event()

    def work(name, seconds):
        told[name] = threading.get_native_id()
        spin(seconds)
        stop.wait(60)

    threads = [threading.Thread(target=work, args=args) for args in (("busy", 0.3), ("idle", 0))]
    for thread in threads:
        thread.start()
    processes.until(lambda: cores.thread_seconds()[told["busy"]][0] > 0.25, "a quarter of a second")
    times = cores.thread_seconds()
    stop.set()
    for thread in threads:
        thread.join()
    assert times[told["idle"]][0] < times[told["busy"]][0] / 2
    assert min(waited for _, waited in times.values()) >= 0

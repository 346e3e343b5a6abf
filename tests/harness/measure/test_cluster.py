from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from typing import ClassVar

import dask
import processes
import pytest
from distributed import wait

from commbench.errors import LaunchError, VerificationError
from commbench.harness import transfers, wire
from commbench.harness.measure import cluster as measuring
from commbench.harness.measure.conditions import measure_idle
from commbench.model import (
    Case,
    IdleCost,
    Launch,
    LogCount,
    NetworkCounter,
    Sample,
    TaskRecord,
    TransferRecord,
    TransportUsed,
    WireBytes,
)
from commbench.store.emitter import InMemory
from commbench.workloads.base import ClusterWorkload, Context

MB = 10**6
N_ARRAYS = 3


def make(number):
    """Return a megabyte of data."""
    return bytes([number]) * MB


def look(data):
    """Return what tells that the data arrived."""
    return data[0], len(data)


def prepare_look(data):
    """Like `look`, by another name, for the preparation."""
    return look(data)


def check_look(data):
    """Like `look`, by another name, for the check."""
    return look(data)


def spin(cpu_seconds, n_threads):
    """Use the processor for that long in each of so many threads."""

    def loop():
        began = time.thread_time()
        while time.thread_time() - began < cpu_seconds:
            pass

    threads = [threading.Thread(target=loop) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fail(number):
    """Raise what the test looks for."""
    raise ZeroDivisionError(f"the dice show {number}")


class Base(ClusterWorkload):
    """What the workloads below have in common."""

    name = "test"
    payload_bytes = N_ARRAYS * MB

    def __init__(self, addresses):
        super().__init__(None, Context(n_workers=2, device="cpu", seed=0))
        self.addresses = addresses
        self.n_built = 0

    def prepare(self, client):
        """Do nothing."""

    def verify(self, client, result):
        """Find everything right."""

    def on(self, worker, function, *arguments, key):
        with dask.annotate(workers=[self.addresses[worker]], allow_other_workers=False):
            return dask.delayed(function, pure=False)(*arguments, dask_key_name=key)


class Moves(Base):
    """Three arrays of a megabyte are made on worker 0 and looked at on worker 1."""

    def prepare(self, client):
        self._move(client, prepare_look)

    def _move(self, client, function):
        data = client.submit(make, 1, workers=[self.addresses["1"]], pure=False)
        seen = client.submit(function, data, workers=[self.addresses["0"]], pure=False)
        assert seen.result() == (1, MB)

    def build(self):
        self.n_built += 1
        return tuple(
            self.on("1", look, self.on("0", make, n, key=f"make-{n}"), key=f"look-{n}")
            for n in range(N_ARRAYS)
        )

    def verify(self, client, result):
        assert [future.result() for future in client.compute(list(result))] == [
            (n, MB) for n in range(N_ARRAYS)
        ]
        self._move(client, check_look)


class Spins(Base):
    """Every worker uses the processor for 0.3 s in each of two threads."""

    def build(self):
        return tuple(self.on(w, spin, 0.3, 2, key=f"spin-{w}") for w in "01")


class Fails(Moves):
    """The second call has a task that fails."""

    def build(self):
        right, *_ = super().build()
        return (right, self.on("0", fail, 6, key="fail-6")) if self.n_built > 1 else (right,)

    def verify(self, client, result):
        """Let the harness find out."""


class Wrong(Moves):
    """The second result is wrong."""

    def verify(self, client, result):
        if self.n_built > 1:
            raise VerificationError("expected 1, found 2")


@pytest.fixture
def measure(cluster, monkeypatch):
    """Return a function that measures a workload and appends the records to a list."""
    real = measuring.measure_idle
    monkeypatch.setattr(measuring, "measure_idle", lambda *given: real(*given, 0.1))
    monkeypatch.setattr("commbench.harness.measure.conditions._SETTLE_SECONDS", 0.0)

    def measure(kind, *, iterations=2, warmups=1, records=None):
        case = Case(workload="test", backend="tcp", iterations=iterations, warmups=warmups)
        launch = Launch(case=case, index=4, block=0, position=0)
        records = InMemory() if records is None else records
        workload = kind(cluster.addresses)
        measuring.measure_cluster(launch, workload, cluster.backend, cluster, records)
        return records

    yield measure
    for plugin in (transfers.TransferLog, wire.WireMeter):
        cluster.client.unregister_worker_plugin(plugin.name)


@pytest.fixture(scope="module")
def moves(cluster):
    """Return the records of a workload that moves three megabytes in every iteration."""
    case = Case(workload="test", backend="tcp", iterations=3, warmups=2)
    launch = Launch(case=case, index=4, block=0, position=0)
    records = InMemory()
    measuring.measure_cluster(launch, Moves(cluster.addresses), cluster.backend, cluster, records)
    for plugin in (transfers.TransferLog, wire.WireMeter):
        cluster.client.unregister_worker_plugin(plugin.name)
    assert {(record.case_id, record.launch) for record in records} == {(case.id, 4)}
    return records


def of(records, kind, iteration=None):
    """Return the records of one kind, and of one iteration."""
    return [
        record
        for record in records
        if isinstance(record, kind) and (iteration is None or record.iteration == iteration)
    ]


ITERATIONS = pytest.mark.parametrize("iteration", range(-2, 3))


def test_warm_ups_come_first_and_are_flagged(moves):
    samples = of(moves, Sample)
    assert [(s.iteration, s.warmup) for s in samples] == [
        (-2, True), (-1, True), (0, False), (1, False), (2, False)
    ]  # fmt: skip
    assert {(s.layer, s.verified, s.payload_bytes) for s in samples} == {
        ("workload", True, N_ARRAYS * MB)
    }  # fmt: skip


@ITERATIONS
def test_the_fetches_of_an_iteration_are_its_own(moves, iteration):
    fetched = of(moves, TransferRecord, iteration)
    assert {(record.src, record.dst) for record in fetched} == {("0", "1")}
    assert sum(record.n_keys for record in fetched) == N_ARRAYS
    assert sum(record.nbytes for record in fetched) == pytest.approx(N_ARRAYS * MB, rel=0.001)
    (sample,) = of(moves, Sample, iteration)
    for record in fetched:
        assert sample.started_at_s - 0.1 < record.start_s < record.stop_s
        assert record.stop_s < sample.started_at_s + sample.seconds + 0.1


@ITERATIONS
def test_the_wire_bytes_of_an_iteration_are_its_own(moves, iteration):
    found = {(record.src, record.dst): record.nbytes for record in of(moves, WireBytes, iteration)}
    assert found["0", "1"] == pytest.approx(N_ARRAYS * MB, rel=0.01)
    assert found["1", "0"] < 0.01 * N_ARRAYS * MB


@ITERATIONS
def test_the_counts_of_an_iteration_are_its_own(moves, iteration):
    counts = {count.worker: count for count in of(moves, LogCount, iteration)}
    assert counts["0"].n_started == 0
    assert counts["1"].n_started == counts["1"].n_logged >= 1
    assert counts["1"].n_logged == len(of(moves, TransferRecord, iteration))


@ITERATIONS
def test_the_tasks_of_an_iteration_are_its_own_and_all_computed(moves, iteration):
    tasks = of(moves, TaskRecord, iteration)
    computed = sorted((t.name, t.worker) for t in tasks if t.action == "compute")
    assert computed == [("look", "1")] * N_ARRAYS + [("make", "0")] * N_ARRAYS
    assert {t.name for t in tasks} == {"make", "look"}
    (sample,) = of(moves, Sample, iteration)
    for task in tasks:
        assert sample.started_at_s - 0.1 < task.start_s <= task.stop_s
        assert task.stop_s < sample.started_at_s + sample.seconds + 0.1


def forgetful(dask_scheduler):
    """Let the scheduler remember no more than two tasks."""
    dask_scheduler.plugins["task-stream"].buffer = deque(maxlen=2)


def test_an_iteration_may_have_more_tasks_than_dask_remembers(measure, cluster):
    cluster.client.get_task_stream()
    cluster.client.run_on_scheduler(forgetful)
    tasks = of(measure(Moves, warmups=0, iterations=1), TaskRecord)
    assert len([task for task in tasks if task.action == "compute"]) == 2 * N_ARRAYS


def test_the_kernels_counters_are_read_around_each_iteration(moves):
    for iteration in range(3):
        counters = {c.interface: c.nbytes for c in of(moves, NetworkCounter, iteration)}
        assert counters["lo"] >= N_ARRAYS * MB


class Built(Moves):
    """Tells when each graph was ready."""

    ready_at_s: ClassVar[list[float]] = []

    def build(self):
        graph = super().build()
        time.sleep(0.2)
        self.ready_at_s.append(time.time())
        return graph


def test_building_the_graph_is_timed_apart(measure):
    samples = of(measure(Built), Sample)
    for sample, ready_at_s in zip(samples, Built.ready_at_s, strict=True):
        assert sample.build_seconds >= 0.2
        assert ready_at_s <= sample.started_at_s
        assert 0 < sample.submit_seconds < sample.seconds


def test_every_pairs_transport_is_told_at_the_end(moves):
    told = of(moves, TransportUsed)
    assert {(t.src, t.dst, t.transport) for t in told} == {
        ("0", "1", "tcp/lo"), ("1", "0", "tcp/lo")
    }  # fmt: skip
    assert all(t.evidence and not t.contradiction for t in told)


def test_the_idle_cost_comes_first_and_covers_every_process(moves):
    assert isinstance(moves[0], IdleCost)
    assert moves[0].n_processes == 4
    assert moves[0].seconds > 0.5
    assert 0 < moves[0].cpu_seconds < 4 * moves[0].seconds


def test_cpu_seconds_are_what_the_threads_used(measure):
    samples = of(measure(Spins, iterations=2, warmups=0), Sample)
    used = 2 * 2 * 0.3
    for sample in samples:
        assert used <= sample.cpu_seconds < 1.75 * used


def test_a_failed_task_is_no_sample(measure, cluster):
    records = InMemory()
    with pytest.raises(LaunchError, match=r"the task 'fail-6' failed: .*the dice show 6"):
        measure(Fails, warmups=0, iterations=3, records=records)
    assert [sample.iteration for sample in of(records, Sample)] == [0]
    assert not of(records, TransferRecord, 1)


def test_a_wrong_result_is_no_sample(measure):
    records = InMemory()
    with pytest.raises(VerificationError, match="expected 1, found 2"):
        measure(Wrong, warmups=0, iterations=3, records=records)
    assert [sample.iteration for sample in of(records, Sample)] == [0]
    assert {r.iteration for r in records if hasattr(r, "iteration")} == {0}


class Kept(Base):
    """The user keeps the result: the scheduler can't forget it."""

    def build(self):
        return (self.on("0", make, 1, key="make-kept"),)

    def verify(self, client, result):
        self.kept = result


def test_an_iteration_that_would_compute_nothing_is_refused(measure, monkeypatch):
    monkeypatch.setattr(measuring, "_FORGET_SECONDS", 0.3)
    with pytest.raises(LaunchError, match="would not compute"):
        measure(Kept, warmups=0)


def test_the_idle_cost_of_busy_processes(cluster, monkeypatch):
    monkeypatch.setattr("commbench.harness.measure.conditions._SETTLE_SECONDS", 0.0)
    launch = Launch(case=Case(workload="test", backend="tcp"), index=0, block=0, position=0)
    client, address = cluster.client, cluster.addresses["0"]
    members = cluster.cpu_seconds, cluster.n_processes

    def used():
        return client.run(time.process_time, workers=[address])[address]

    quiet = measure_idle(launch, *members, 0.5)
    before = used()
    busy = client.submit(spin, 2.0, 1, workers=[address], pure=False)
    processes.until(lambda: used() > before + 0.1, "the task")
    began = used()
    cost = measure_idle(launch, *members, 0.5)
    spun = used() - began
    wait(busy)
    assert dataclasses.replace(cost, seconds=0, cpu_seconds=0) == IdleCost(
        case_id=launch.case.id, launch=0, seconds=0, cpu_seconds=0, n_processes=4
    )
    assert quiet.cpu_seconds < 0.5 * quiet.seconds
    assert cost.cpu_seconds > max(spun / 2, quiet.cpu_seconds)

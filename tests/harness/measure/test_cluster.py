import gc
import time
from collections import deque
from typing import ClassVar

import dask
import processes
import pytest
from distributed import wait
from launching import make_launch, select
from spinning import spin, spin_in_threads

from commbench.errors import LaunchError, VerificationError
from commbench.harness.measure import cluster as measuring
from commbench.harness.measure import plugins
from commbench.harness.measure.conditions import measure_idle
from commbench.model import Case
from commbench.model.observed import (
    IdleCost,
    LogCount,
    NetworkCounter,
    Sample,
    TaskRecord,
    TransferRecord,
    TransportUsed,
    WireBytes,
)
from commbench.store.emitter import InMemory
from commbench.workloads.workload import ClusterWorkload, Context

MB = 10**6
CLOCKS_S = 1.0
"""What Dask's clocks may be apart on a busy machine, where heartbeats, which set them, are late."""
N_ARRAYS = 3


def make(number):
    """Return a megabyte of data."""
    return bytes([number]) * MB


def look(data):
    """Return what shows that the data arrived."""
    return data[0], len(data)


class Base(ClusterWorkload):
    """A workload without input and checks."""

    name = "test"
    payload_bytes = N_ARRAYS * MB

    def __init__(self, addresses):
        super().__init__(self.Params(), Context(n_workers=2, device="cpu", seed=0))
        self.addresses = addresses
        self.n_built = 0

    def prepare(self, client):
        """Do nothing."""

    def verify(self, client, result):
        """Find everything right."""

    def call_on(self, worker, function, *arguments, key):
        with dask.annotate(workers=[self.addresses[worker]], allow_other_workers=False):
            return dask.delayed(function, pure=False)(*arguments, dask_key_name=key)


class Moves(Base):
    """Three arrays of a megabyte are made on worker 0 and looked at on worker 1."""

    def prepare(self, client):
        self._move_back(client, "prepare")

    def _move_back(self, client, key):
        data = client.submit(make, 1, workers=[self.addresses["1"]], pure=False)
        seen = client.submit(look, data, workers=[self.addresses["0"]], key=f"{key}-{self.n_built}")
        assert seen.result() == (1, MB)

    def build(self):
        self.n_built += 1
        return tuple(
            self.call_on("1", look, self.call_on("0", make, n, key=f"make-{n}"), key=f"look-{n}")
            for n in range(N_ARRAYS)
        )

    def verify(self, client, result):
        assert [future.result() for future in client.compute(list(result))] == [
            (n, MB) for n in range(N_ARRAYS)
        ]
        self._move_back(client, "check")


class Spins(Base):
    """Every worker uses the processor for 0.3 s in each of two threads."""

    def build(self):
        return tuple(self.call_on(w, spin_in_threads, 0.3, 2, key=f"spin-{w}") for w in "01")


class Fails(Moves):
    """The second call has a task that fails."""

    verify = Base.verify

    def build(self):
        graph = super().build()
        return (*graph, self.call_on("0", divmod, 6, self.n_built - 2, key="fail-6"))


class Wrong(Moves):
    """The second result is wrong."""

    def verify(self, client, result):
        if self.n_built > 1:
            raise VerificationError("expected 1, found 2")


@pytest.fixture(scope="module")
def measure(cluster, measured):
    """Return a function that measures a workload and appends the records to a list."""

    def measure(kind, *, iterations=2, warmups=1, records=None):
        case = Case(workload="test", backend="tcp", iterations=iterations, warmups=warmups)
        workload = kind(cluster.addresses)
        # The traceback of a launch that failed may still refer to its results.
        gc.collect()
        return measured(measuring.measure_cluster, case, workload, records, index=1)

    return measure


@pytest.fixture(scope="module")
def moves(measure):
    """Return the records of a workload that moves three megabytes in every iteration."""
    return measure(Moves, iterations=2, warmups=1)


ITERATIONS = pytest.mark.parametrize("iteration", range(-1, 2))


def test_warm_ups_come_first_and_are_flagged(moves):
    samples = select(moves, Sample)
    assert [(s.iteration, s.warmup) for s in samples] == [
        (-1, True), (0, False), (1, False)
    ]  # fmt: skip
    assert {(s.layer, s.verified, s.payload_bytes) for s in samples} == {
        ("workload", True, N_ARRAYS * MB)
    }  # fmt: skip


@ITERATIONS
def test_fetches_of_preparation_and_checks_are_in_no_iteration(moves, iteration):
    fetched = select(moves, TransferRecord, iteration)
    assert {(record.src, record.dst) for record in fetched} == {("0", "1")}
    assert sum(record.n_keys for record in fetched) == N_ARRAYS
    assert sum(record.nbytes for record in fetched) == pytest.approx(N_ARRAYS * MB, rel=0.001)
    (sample,) = select(moves, Sample, iteration)
    for record in fetched:
        assert sample.started_at_s - CLOCKS_S < record.start_s < record.stop_s
        assert record.stop_s < sample.started_at_s + sample.seconds + CLOCKS_S
    # As many fetches began as were logged.
    counts = {count.worker: count for count in select(moves, LogCount, iteration)}
    assert counts["0"].n_started == 0
    assert counts["1"].n_started == counts["1"].n_logged >= 1
    assert counts["1"].n_logged == len(select(moves, TransferRecord, iteration))


@ITERATIONS
def test_bytes_of_preparation_and_checks_are_in_no_iteration(moves, iteration):
    nbytes = {(r.src, r.dst): r.nbytes for r in select(moves, WireBytes, iteration)}
    assert nbytes["0", "1"] == pytest.approx(N_ARRAYS * MB, rel=0.01)
    assert nbytes["1", "0"] < 0.01 * N_ARRAYS * MB
    # The loopback interface may have had more.
    received = {c.interface: c.nbytes for c in select(moves, NetworkCounter, iteration)}
    assert received["lo"] >= N_ARRAYS * MB


def test_what_the_profiler_asks_for_is_no_traffic_of_the_iteration(measure, monkeypatch):
    calls = []

    def logged(owner, name):
        call = getattr(owner, name)

        def logging(*given):
            calls.append(name)
            return call(*given)

        monkeypatch.setattr(owner, name, logging)

    for owner, name in (
        (plugins.Profiler, "begin"), (measuring.traffic, "network_counters"),
        (measuring.traffic, "network_bytes"), (plugins.Profiler, "end"),
    ):  # fmt: skip
        logged(owner, name)
    measure(Moves, iterations=1, warmups=0)
    assert calls == [
        "begin", "network_counters", "network_bytes", "network_counters", "end",
    ]  # fmt: skip


@ITERATIONS
def test_every_iteration_computes_its_whole_graph_again(moves, iteration):
    tasks = select(moves, TaskRecord, iteration)
    computed = sorted((t.name, t.worker) for t in tasks if t.action == "compute")
    assert computed == [("look", "1")] * N_ARRAYS + [("make", "0")] * N_ARRAYS
    assert {t.name for t in tasks} == {"make", "look"}
    assert len({t.key for t in tasks}) == 2 * N_ARRAYS
    assert all(t.nbytes >= MB for t in tasks if t.name == "make")
    (sample,) = select(moves, Sample, iteration)
    for task in tasks:
        assert sample.started_at_s - CLOCKS_S < task.start_s <= task.stop_s
        assert task.stop_s < sample.started_at_s + sample.seconds + CLOCKS_S


def forgetful(dask_scheduler):
    """Let the scheduler remember no more than two tasks."""
    dask_scheduler.plugins["task-stream"].buffer = deque(maxlen=2)


def test_an_iteration_may_have_more_tasks_than_dask_remembers(measure, cluster):
    # The limit of Dask's task stream is 100,000 tasks by default.
    cluster.client.get_task_stream()
    cluster.client.run_on_scheduler(forgetful)
    tasks = select(measure(Moves, warmups=0, iterations=1), TaskRecord)
    assert len([task for task in tasks if task.action == "compute"]) == 2 * N_ARRAYS


class Built(Moves):
    """Notes when each graph was ready."""

    ready_at_s: ClassVar[list[float]] = []

    def build(self):
        graph = super().build()
        time.sleep(0.2)
        self.ready_at_s.append(time.time())
        return graph


def test_the_clock_starts_when_the_graph_is_built(measure):
    samples = select(measure(Built), Sample)
    for sample, ready_at_s in zip(samples, Built.ready_at_s, strict=True):
        assert sample.build_seconds >= 0.2
        assert ready_at_s <= sample.started_at_s
        assert 0 < sample.submit_seconds < sample.seconds


def test_the_transports_of_every_pair_are_recorded(moves):
    used = select(moves, TransportUsed)
    assert {(t.src, t.dst, t.transport) for t in used} == {
        ("0", "1", "tcp/lo"), ("1", "0", "tcp/lo")
    }  # fmt: skip
    assert all(t.evidence and not t.contradiction for t in used)


def test_the_idle_cost_comes_first_and_covers_client_and_scheduler(moves):
    assert isinstance(moves[0], IdleCost)
    assert moves[0].n_processes == 4
    assert moves[0].seconds >= 0.1
    assert 0 <= moves[0].cpu_seconds < 4 * moves[0].seconds


def test_cpu_seconds_are_those_of_all_threads_of_all_workers(measure):
    samples = select(measure(Spins, iterations=2, warmups=0), Sample)
    used = 2 * 2 * 0.3
    for sample in samples:
        assert used <= sample.cpu_seconds < 1.75 * used


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (Fails, LaunchError, r"the task 'fail-6' failed: .*ZeroDivisionError"),
        (Wrong, VerificationError, "expected 1, found 2"),
    ],
)
def test_a_failed_task_or_wrong_result_ends_the_launch(measure, kind, error, message):
    records = InMemory()
    with pytest.raises(error, match=message):
        measure(kind, warmups=0, iterations=3, records=records)
    assert [sample.iteration for sample in select(records, Sample)] == [0]
    assert {r.iteration for r in records if hasattr(r, "iteration")} == {0}


class Kept(Base):
    """The user keeps the result, so that the scheduler can't forget it."""

    def build(self):
        return (self.call_on("0", make, 1, key="make-kept"),)

    def verify(self, client, result):
        self.kept = result


def test_a_result_that_cant_be_released_ends_the_launch(measure, monkeypatch):
    monkeypatch.setattr(measuring, "_FORGET_SECONDS", 0.3)
    with pytest.raises(LaunchError, match="would not compute"):
        measure(Kept, warmups=0)


def test_the_idle_cost_includes_what_a_busy_process_uses(cluster, measured):
    launch = make_launch(Case(workload="test", backend="tcp"))
    client, address = cluster.client, cluster.addresses["0"]
    members = cluster.cpu_seconds, cluster.n_processes

    def used():
        return client.run(time.process_time, workers=[address])[address]

    quiet = measure_idle(launch, *members, 0.3)
    before = used()
    busy = client.submit(spin, 1.0, workers=[address], pure=False)
    processes.until(lambda: used() > before + 0.1, "the task")
    began = used()
    cost = measure_idle(launch, *members, 0.3)
    spun = used() - began
    wait(busy)
    assert quiet.cpu_seconds < 0.5 * quiet.seconds
    assert cost.cpu_seconds > max(spun / 2, quiet.cpu_seconds)

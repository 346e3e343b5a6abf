from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import processes
import pytest

from commbench.errors import LaunchError, VerificationError
from commbench.harness import wire
from commbench.harness.measure import fetches, traffic
from commbench.model import (
    Case,
    ClusterSpec,
    IdleCost,
    Launch,
    LogCount,
    NetworkCounter,
    Sample,
    TransferRecord,
    TransportUsed,
    WireBytes,
    WorkerAddress,
    WorkerPlace,
)
from commbench.store.emitter import InMemory
from commbench.workloads.all_to_all import AllToAll
from commbench.workloads.base import Context

MB = 10**6
SIZES = (1000, 2 * MB)
PAIRS = [("0", "1"), ("1", "0")]
CASE = Case(
    workload="all-to-all", backend="tcp", params={"sizes": SIZES},
    cluster=ClusterSpec(n_workers=2), iterations=2, warmups=1,
)  # fmt: skip


class Wrong(AllToAll):
    """Finds every block of worker 1 wrong."""

    def verify(self, owner, size, fetched):
        super().verify(owner, size, fetched)
        if owner == 1:
            raise VerificationError("a block of worker 1 is wrong")


class Slow(AllToAll):
    """Takes its time to check a block."""

    def verify(self, owner, size, fetched):
        time.sleep(0.5)


class Broken(AllToAll):
    """Has no block of worker 1."""

    def block(self, owner, size):
        if owner == 1:
            raise ZeroDivisionError("no memory for this one")
        return super().block(owner, size)


def work(kind=AllToAll, sizes=SIZES):
    """Return the workload of this kind."""
    return kind(kind.Params(sizes=sizes), Context(n_workers=2, device="cpu", seed=0))


def unregister(cluster):
    """Take the plugins off the workers again."""
    for plugin in (fetches.Fetcher, wire.WireMeter):
        cluster.client.unregister_worker_plugin(plugin.name)


@pytest.fixture
def measure(cluster, monkeypatch):
    """Return a function that measures a workload and returns its records."""
    real = fetches.measure_idle
    monkeypatch.setattr(fetches, "measure_idle", lambda *given: real(*given, 0.1))
    monkeypatch.setattr("commbench.harness.measure.conditions._SETTLE_SECONDS", 0.0)

    def measure(workload, records=None):
        records = InMemory() if records is None else records
        launch = Launch(case=CASE, index=4, block=0, position=0)
        fetches.measure_fetches(launch, workload, cluster.backend, cluster, records)
        return records

    yield measure
    unregister(cluster)


@pytest.fixture(scope="module")
def exchange(cluster):
    """Return the records of one warm-up and two iterations between two workers."""
    launch = Launch(case=CASE, index=4, block=0, position=0)
    records = InMemory()
    fetches.measure_fetches(launch, work(), cluster.backend, cluster, records)
    unregister(cluster)
    assert {(record.case_id, record.launch) for record in records} == {(CASE.id, 4)}
    return records


def of(records, kind, iteration=None):
    """Return the records of one kind, and of one iteration."""
    return [
        record
        for record in records
        if isinstance(record, kind) and (iteration is None or record.iteration == iteration)
    ]


@pytest.mark.parametrize("iteration", [-1, 0, 1])
def test_every_pair_fetches_every_size_once_alone_and_once_together(exchange, iteration):
    found = [(t.channel, t.nbytes, t.src, t.dst) for t in of(exchange, TransferRecord, iteration)]
    expected = itertools.product(("alone", "together"), SIZES, PAIRS)
    assert sorted(found) == sorted((channel, size, *pair) for channel, size, pair in expected)


def test_alone_is_alone(exchange):
    found = of(exchange, TransferRecord)
    for one, other in itertools.combinations(found, 2):
        if "alone" in (one.channel, other.channel):
            assert one.stop_s <= other.start_s or other.stop_s <= one.start_s


@pytest.fixture
def answering(cluster):
    """Return a context in which a function answers the fetches that a worker is asked for.

    It gets what answers them otherwise, who asks, and a set to keep who has asked.
    """

    def replace(answer, dask_worker):
        get_data, asked = dask_worker.handlers["get_data"], set()

        async def other(comm, keys, who=None, **kwargs):
            return await answer(lambda: get_data(comm, keys, who=who, **kwargs), who, asked)

        dask_worker.handlers["get_data"] = other
        dask_worker.real_get_data = get_data

    def restore(dask_worker):
        dask_worker.handlers["get_data"] = dask_worker.real_get_data

    @contextlib.contextmanager
    def answering(answer):
        cluster.client.run(replace, answer)
        try:
            yield
        finally:
            cluster.client.run(restore)

    return answering


def test_together_begins_at_once(answering, measure):
    async def answer(real, who, asked):
        await asyncio.sleep(0.5)
        return await real()

    with answering(answer):
        records = measure(work(sizes=(1000,)))
    together = [
        [t for t in of(records, TransferRecord, iteration) if t.channel == "together"]
        for iteration in (-1, 0, 1)
    ]
    # A busy machine may delay some of them.
    assert any(max(t.start_s for t in ts) < min(t.stop_s for t in ts) for ts in together)


def test_samples_are_what_their_fetches_took(exchange):
    for sample in of(exchange, Sample):
        size = sample.payload_bytes // (1 if sample.layer == "alone" else len(PAIRS))
        own = [
            t for t in of(exchange, TransferRecord, sample.iteration)
            if (t.channel, t.nbytes) == (sample.layer, size)
        ]  # fmt: skip
        assert len(own) == len(PAIRS)
        mean = sum(t.stop_s - t.start_s for t in own) / len(own)
        whole = max(t.stop_s for t in own) - min(t.start_s for t in own)
        expected = mean if sample.layer == "alone" else whole
        assert sample.seconds == pytest.approx(expected, abs=2e-6)
        assert sample.started_at_s == min(t.start_s for t in own)
        assert sample.verified
        assert sample.warmup == (sample.iteration < 0)
        assert sample.cpu_seconds > 0
    assert len(of(exchange, Sample)) == 3 * 2 * len(SIZES)


@pytest.mark.parametrize("iteration", [-1, 0, 1])
def test_every_byte_crossed_the_wire_again(exchange, iteration):
    found = {
        (record.src, record.dst): record.nbytes for record in of(exchange, WireBytes, iteration)
    }
    for pair in PAIRS:
        assert found[pair] == pytest.approx(2 * sum(SIZES), rel=0.01)
        assert found[pair] >= 2 * sum(SIZES)
    counters = {c.interface: c.nbytes for c in of(exchange, NetworkCounter, iteration)}
    assert counters["lo"] >= 2 * 2 * sum(SIZES)


def test_every_fetch_is_accounted_for(exchange):
    for count in of(exchange, LogCount):
        assert (count.n_started, count.n_logged, count.n_busy, count.n_failed) == (4, 4, 0, 0)


def test_workers_hold_nothing_of_what_they_fetched(exchange, cluster):
    processes.until(lambda: not any(cluster.client.has_what().values()), "no blocks")


def test_links_and_the_idle_cost_are_told(exchange):
    assert isinstance(exchange[0], IdleCost)
    places = {place.worker: place for place in of(exchange, WorkerPlace)}
    assert {*places} == {"0", "1"}
    assert places["0"].host_id == places["1"].host_id
    assert places["0"].pid != places["1"].pid
    assert {record.worker for record in of(exchange, WorkerAddress)} == {"0", "1"}
    assert all("127.0.0.1" in record.address for record in of(exchange, WorkerAddress))
    assert {(t.src, t.dst, t.transport) for t in of(exchange, TransportUsed)} == {
        (*pair, "tcp/lo") for pair in PAIRS
    }


def test_fetches_come_in_messages_of_bounded_size(measure, monkeypatch):
    monkeypatch.setattr(traffic, "CHUNK", 1)
    records = measure(work(sizes=(1000,)))
    found = [(r.iteration, r.channel, r.src, r.dst) for r in of(records, TransferRecord)]
    assert sorted(found) == [
        (iteration, channel, *pair)
        for iteration in (-1, 0, 1) for channel in ("alone", "together") for pair in PAIRS
    ]  # fmt: skip


def test_a_block_that_arrives_wrong_voids_the_launch(measure):
    records = InMemory()
    with pytest.raises(VerificationError, match="a block of worker 1 is wrong"):
        measure(work(Wrong), records)
    assert of(records, Sample) == []
    assert of(records, TransferRecord) == []


def test_checking_is_in_no_time(measure):
    records = measure(work(Slow, sizes=(1000,)))
    fastest = {}
    for sample in of(records, Sample):
        fastest[sample.layer] = min(sample.seconds, fastest.get(sample.layer, 9.0))
    assert max(fastest.values()) < 0.5


def test_a_block_that_cant_be_made_is_told(measure):
    with pytest.raises(LaunchError, match=r"commbench-block-1-1000.*no memory for this one"):
        measure(work(Broken))


def test_a_busy_sender_is_asked_again_and_counted(answering, measure):
    async def once_refused(real, who, asked):
        if who not in asked:
            asked.add(who)
            return {"status": "busy"}
        return await real()

    with answering(once_refused):
        records = measure(work(sizes=(1000,)))
    counts = [(c.n_started, c.n_logged, c.n_busy) for c in of(records, LogCount, -1)]
    assert counts == [(3, 2, 1), (3, 2, 1)]
    assert [(c.n_started, c.n_busy) for c in of(records, LogCount, 0)] == [(2, 0), (2, 0)]

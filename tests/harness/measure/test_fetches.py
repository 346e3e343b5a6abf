import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np
import processes
import pytest
from launching import select

from commbench.errors import LaunchError, VerificationError
from commbench.harness import wire
from commbench.harness.measure import fetches, traffic
from commbench.model import Case, ClusterSpec
from commbench.model.observed import (
    IdleCost,
    LogCount,
    NetworkCounter,
    RoundTrip,
    Sample,
    TransferRecord,
    TransportUsed,
    WireBytes,
    WorkerAddress,
    WorkerPlace,
)
from commbench.store.emitter import InMemory
from commbench.workloads.all_to_all import AllToAll, Links
from commbench.workloads.workload import Context

MB = 10**6
SIZES = (1000, 2 * MB)
PAIRS = [("0", "1"), ("1", "0")]
CASE = Case(
    workload="all-to-all", backend="tcp", params={"sizes": SIZES},
    cluster=ClusterSpec(n_workers=2), iterations=2, warmups=1,
)  # fmt: skip
CHECK_SECONDS = 0.2


class Wrong(AllToAll):
    """Finds every block of worker 1 wrong."""

    def verify(self, owner, size, fetched):
        super().verify(owner, size, fetched)
        if owner == 1:
            raise VerificationError("a block of worker 1 is wrong")


class Slow(AllToAll):
    """Takes its time to check a block."""

    def verify(self, owner, size, fetched):
        time.sleep(CHECK_SECONDS)


class Broken(AllToAll):
    """Has no block of worker 1."""

    def block(self, owner, size):
        if owner == 1:
            raise ZeroDivisionError("no memory for this one")
        return super().block(owner, size)


def work(kind=AllToAll, sizes=SIZES):
    """Return the workload of this kind."""
    return kind(kind.Params(sizes=sizes), Context(n_workers=2, device="cpu", seed=0))


@pytest.fixture(scope="module")
def measure(measured):
    """Return a function that measures a workload and returns its records."""
    return functools.partial(measured, fetches.measure_fetches, CASE)


@pytest.fixture(scope="module")
def exchange(measure):
    """Return the records of one warm-up and two iterations between two workers."""
    return measure(work())


@pytest.mark.parametrize("iteration", [-1, 0, 1])
def test_every_pair_fetches_every_size_once_alone_and_once_together(exchange, iteration):
    fetched = select(exchange, TransferRecord, iteration)
    expected = itertools.product(("alone", "together"), SIZES, PAIRS)
    assert sorted((t.channel, t.nbytes, t.src, t.dst) for t in fetched) == sorted(
        (channel, size, *pair) for channel, size, pair in expected
    )
    for count in select(exchange, LogCount, iteration):
        assert (count.n_started, count.n_logged, count.n_busy, count.n_failed) == (4, 4, 0, 0)
    nbytes = {(r.src, r.dst): r.nbytes for r in select(exchange, WireBytes, iteration)}
    for pair in PAIRS:
        assert 2 * sum(SIZES) <= nbytes[pair] < 1.01 * 2 * sum(SIZES)
    counters = {c.interface: c.nbytes for c in select(exchange, NetworkCounter, iteration)}
    assert counters["lo"] >= 2 * 2 * sum(SIZES)


@pytest.mark.parametrize("iteration", [-1, 0, 1])
def test_an_empty_request_of_every_pair_is_faster_than_its_fetches(exchange, iteration):
    trips = {(t.src, t.dst): t.seconds for t in select(exchange, RoundTrip, iteration)}
    assert sorted(trips) == PAIRS
    slowest = max(t.stop_s - t.start_s for t in select(exchange, TransferRecord, iteration))
    assert 0 < min(trips.values()) < slowest


def test_no_other_fetch_is_under_way_while_one_is_alone(exchange):
    for one, other in itertools.combinations(select(exchange, TransferRecord), 2):
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


def test_together_all_pairs_begin_before_the_first_has_ended(answering, measure):
    async def answer(real, who, asked):
        await asyncio.sleep(0.2)
        return await real()

    with answering(answer):
        records = measure(work(sizes=(1000,)))
    together = [
        [t for t in select(records, TransferRecord, iteration) if t.channel == "together"]
        for iteration in (-1, 0, 1)
    ]
    # A busy machine may delay some of them.
    assert any(max(t.start_s for t in ts) < min(t.stop_s for t in ts) for ts in together)


def test_a_sample_is_the_mean_fetch_alone_and_the_whole_span_together(exchange):
    for sample in select(exchange, Sample):
        size = sample.payload_bytes // (1 if sample.layer == "alone" else len(PAIRS))
        fetched = [
            t for t in select(exchange, TransferRecord, sample.iteration)
            if (t.channel, t.nbytes) == (sample.layer, size)
        ]  # fmt: skip
        assert len(fetched) == len(PAIRS)
        mean = sum(t.stop_s - t.start_s for t in fetched) / len(fetched)
        whole = max(t.stop_s for t in fetched) - min(t.start_s for t in fetched)
        expected = mean if sample.layer == "alone" else whole
        assert sample.seconds == pytest.approx(expected, abs=2e-6)
        assert sample.started_at_s == min(t.start_s for t in fetched)
        assert sample.verified
        assert sample.warmup == (sample.iteration < 0)
        assert sample.cpu_seconds > 0
    assert len(select(exchange, Sample)) == 3 * 2 * len(SIZES)


def test_a_common_start_is_met_to_a_fraction_of_a_millisecond():
    worker, late = SimpleNamespace(address="a"), []

    async def wait():
        for n in range(30):
            target = time.time() + 0.0123 + n * 37e-6
            await fetches._until(target - 5.0, {"a": 5.0}, worker)
            late.append(time.time() - target)

    asyncio.run(wait())
    assert min(late) >= 0.0
    # A machine with other work may be late at times.
    assert np.median(late) < 1e-4


def test_a_slow_pair_with_fewer_fetches_weighs_as_much_as_others(answering, measure, cluster):
    slow, _ = sorted(cluster.client.nthreads())

    async def answer(real, who, asked):
        if who == slow:
            await asyncio.sleep(0.2)
        return await real()

    with answering(answer):
        exchange = measure(work(Links, sizes=(1000,)))
    samples = [sample for sample in select(exchange, Sample) if sample.layer == "rounds"]
    for sample in samples:
        durations = collections.defaultdict(list)
        for t in select(exchange, TransferRecord, sample.iteration):
            if t.channel == "rounds":
                durations[t.src, t.dst].append(t.stop_s - t.start_s)
        few, many = sorted(map(len, durations.values()))
        assert few < many
        means = [sum(each) / len(each) for each in durations.values()]
        assert sample.seconds == pytest.approx(sum(means) / len(means), abs=2e-6)
        again = select(exchange, TransferRecord, sample.iteration)
        slow_pair = max(durations, key=lambda pair: max(durations[pair]))
        assert {(t.src, t.dst) for t in again if t.channel == "again"} == {slow_pair}
    assert len(samples) == 3


def test_workers_keep_no_block(exchange, cluster):
    processes.until(lambda: not any(cluster.client.has_what().values()), "no blocks")


def test_locations_transports_and_the_idle_cost_are_recorded(exchange):
    assert isinstance(exchange[0], IdleCost)
    one, other = select(exchange, WorkerPlace)
    assert {one.worker, other.worker} == {"0", "1"}
    assert one.host_id == other.host_id
    assert one.pid != other.pid
    addresses = select(exchange, WorkerAddress)
    assert {record.worker for record in addresses} == {"0", "1"}
    assert all("127.0.0.1" in record.address for record in addresses)
    assert {(t.src, t.dst, t.transport) for t in select(exchange, TransportUsed)} == {
        (*pair, "tcp/lo") for pair in PAIRS
    }


def test_the_idle_cost_is_not_measured_in_a_third_launch(measure):
    assert not select(measure(work(sizes=(1000,)), index=2), IdleCost)


def test_the_common_start_is_late_enough_for_slow_requests(measure, monkeypatch):
    leads = []

    class Exchange(fetches._Exchange):
        def __init__(self, *arguments):
            leads.append(arguments[-1])
            super().__init__(*arguments)

    monkeypatch.setattr(fetches, "_Exchange", Exchange)
    monkeypatch.setattr(wire, "forget", lambda dask_worker: time.sleep(0.1))  # noqa: ARG005
    measure(work(sizes=(1000,)))
    assert len(leads) == 3
    assert min(leads) > 0.2


@pytest.mark.parametrize(("kind", "n_each"), [(AllToAll, 1), (Links, 20)])
def test_answers_have_no_more_fetches_than_a_message_may(kind, n_each, measure, monkeypatch):
    asked, ask = [], traffic.ask

    def recorded(cluster, workers, most, function, *arguments):
        if function is fetches.take:
            asked.append(most)
        return ask(cluster, workers, most, function, *arguments)

    monkeypatch.setattr(traffic, "ask", recorded)
    measure(work(kind, sizes=(1000,)))
    assert min(asked) == traffic.CHUNK // n_each


def test_no_fetch_is_lost_where_a_message_has_those_of_one_worker_alone(measure, monkeypatch):
    monkeypatch.setattr(traffic, "CHUNK", 1)
    fetched = select(measure(work(sizes=(1000,))), TransferRecord)
    assert sorted((r.iteration, r.channel, r.src, r.dst) for r in fetched) == sorted(
        (iteration, channel, *pair)
        for iteration in (-1, 0, 1) for channel in ("alone", "together") for pair in PAIRS
    )  # fmt: skip


def test_a_block_that_arrives_wrong_voids_the_launch(measure):
    records = InMemory()
    with pytest.raises(VerificationError, match="a block of worker 1 is wrong"):
        measure(work(Wrong), records)
    assert select(records, Sample) == []
    assert select(records, TransferRecord) == []


def test_checking_a_block_makes_no_fetch_slower(measure):
    records = measure(work(Slow, sizes=(1000,)))
    fastest = {}
    for sample in select(records, Sample):
        fastest[sample.layer] = min(sample.seconds, fastest.get(sample.layer, 9.0))
    assert max(fastest.values()) < CHECK_SECONDS


def test_the_error_names_a_block_that_cant_be_made(measure):
    # Other tests need other keys: the exception may keep the failed one alive.
    with pytest.raises(LaunchError, match=r"commbench-block-1-3000.*no memory for this one"):
        measure(work(Broken, sizes=(3000,)))


def test_a_fetch_that_fails_at_once_with_others_fails_the_launch(answering, measure):
    async def answer(real, who, asked):
        # Each worker is asked alone first.
        if who in asked:
            raise OSError("the cable is out")
        asked.add(who)
        return await real()

    ends = r"worker (0 can't fetch from worker 1|1 can't fetch from worker 0)"
    lost = pytest.raises(LaunchError, match=rf"{ends}: .*the cable is out")
    with answering(answer), lost:
        measure(work(sizes=(1000,)))


def test_a_busy_sender_is_asked_again_and_counted(answering, measure):
    async def once_refused(real, who, asked):
        if who not in asked:
            asked.add(who)
            return {"status": "busy"}
        return await real()

    with answering(once_refused):
        records = measure(work(sizes=(1000,)))
    counts = [(c.n_started, c.n_logged, c.n_busy) for c in select(records, LogCount, -1)]
    assert counts == [(3, 2, 1), (3, 2, 1)]
    assert [(c.n_started, c.n_busy) for c in select(records, LogCount, 0)] == [(2, 0), (2, 0)]


def spin(dask_worker):
    """Let a thread of the worker use a core until it is stopped, as a worker that polls does."""
    stop = dask_worker.stop_spinning = threading.Event()

    def turn():
        while not stop.is_set():
            pass

    threading.Thread(target=turn, daemon=True).start()


def stop_spinning(dask_worker):
    """Stop the thread of `spin`."""
    dask_worker.stop_spinning.set()


@pytest.mark.parametrize("worker", ["0", "1"], ids=["here", "elsewhere"])
def test_cpu_time_together_counts_from_the_common_start(worker, far, measured, monkeypatch):
    monkeypatch.setattr(fetches, "_LEAD_SECONDS", 0.8)
    far.client.run(spin, workers=[far.addresses[worker]])
    try:
        records = measured(
            fetches.measure_fetches, dataclasses.replace(CASE, warmups=0), work(sizes=(1000,))
        )
    finally:
        far.client.run(stop_spinning, workers=[far.addresses[worker]])
    seconds = [s.cpu_seconds for s in select(records, Sample) if s.layer == "together"]
    assert 0 < min(seconds) < 0.4

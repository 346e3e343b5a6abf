import asyncio
import threading
import time
from collections import deque

import distributed.worker
import numpy as np
import pytest
from builders import expanded
from launching import select
from processes import until

from commbench.harness import transfer_log
from commbench.harness.measure import traffic
from commbench.model.observed import LogCount, TransferRecord

WHERE = {"case_id": "a case", "launch": 3, "iteration": 2}
ONE_FETCH = LogCount(
    **WHERE, worker="1", n_started=1, n_logged=1, n_busy=0, n_failed=0, n_in_flight=0
)


class SlowToPickle:
    """An object that is sent when a file is gone; until then the sender's event loop is busy."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        while self.file.exists():
            time.sleep(0.01)
        return SlowToPickle, (self.file,)


def forget_log(dask_worker):
    """Empty the worker's log."""
    dask_worker.transfer_incoming_log.clear()


def n_incoming(dask_worker):
    """Return how many fetches the worker ever began."""
    return dask_worker.state.transfer_incoming_count_total


def explained(count):
    """Return how many fetches the counts account for."""
    return count.n_logged + count.n_busy + count.n_failed + count.n_in_flight


def entries(count, who, dask_worker):
    """Append `count` entries to the worker's log, each like those that Dask makes."""
    for number in range(count):
        start = 1.7e9 + number
        dask_worker.transfer_incoming_log.append(
            {
                "start": start, "stop": start + 2.0**-12, "middle": start + 2.0**-13,
                "duration": 0.001, "who": who, "keys": {("x", number, 0): 8, ("x", number, 1): 8},
                "total": number, "bandwidth": number / 0.001,
            }
        )  # fmt: skip


@pytest.fixture
def client(cluster):
    """Return the client of a cluster whose workers keep a whole log, empty as yet."""
    cluster.client.run(forget_log)
    cluster.client.register_plugin(transfer_log.TransferLog())
    yield cluster.client
    cluster.client.unregister_worker_plugin(transfer_log.TransferLog.name)


def collect(cluster):
    """Return the records and the counts, by worker, since the last collection."""
    records = expanded(traffic.fetches(cluster.client, cluster.names, **WHERE))
    assert {(r.case_id, r.launch, r.iteration) for r in records} == {("a case", 3, 2)}
    counts = {count.worker: count for count in select(records, LogCount)}
    return select(records, TransferRecord), counts


def put(cluster, value, worker):
    """Return a future of `value`, which lies on `worker`."""
    where = [cluster.addresses[worker]]
    return cluster.client.scatter(value, workers=where, hash=False)


def use(cluster, futures, worker):
    """Return a future of something that `worker` computes of `futures`, which it has to fetch."""
    where = [cluster.addresses[worker]]
    return cluster.client.submit(lambda *values: len(values), *futures, workers=where, pure=False)


def test_a_fetch_is_recorded_once_with_its_direction_and_size(cluster, client):
    array = np.zeros(3_000_000, dtype="u1")
    future = put(cluster, array, "0")
    collect(cluster)
    before = time.time()
    assert use(cluster, [future], "1").result() == 1
    after = time.time()
    (record,), counts = collect(cluster)
    assert (record.src, record.dst, record.n_keys) == ("0", "1", 1)
    assert 3_000_000 <= record.nbytes < 3_001_000
    assert 0 < record.stop_s - record.start_s < after - before
    # Dask corrects times by half of what a heartbeat took, which may be long on a busy machine.
    assert record.start_s == pytest.approx(before, abs=10)
    assert counts["1"] == ONE_FETCH
    assert counts["0"].n_started == 0
    records, counts = collect(cluster)
    assert records == []
    assert [count.n_started for count in counts.values()] == [0, 0]


def test_a_long_log_is_collected_whole_in_bounded_messages(cluster, client):
    count, sizes = 45_000, []
    client.run(entries, count, cluster.addresses["0"], workers=[cluster.addresses["1"]])

    class Counting:
        def run(self, function, *args, **kwargs):
            answer = client.run(function, *args, **kwargs)
            sizes.extend(len(text) for text in answer.values() if isinstance(text, str))
            return answer

    records = select(expanded(traffic.fetches(Counting(), cluster.names, **WHERE)), TransferRecord)
    assert [record.nbytes for record in records] == list(range(count))
    assert {(record.src, record.dst, record.n_keys) for record in records} == {("0", "1", 2)}
    assert len(sizes) >= 3
    assert 500_000 < max(sizes) < 4_000_000
    # As in the log, and shorter than the millisecond to which Dask rounds the duration up.
    assert [record.start_s for record in records] == [1.7e9 + number for number in range(count)]
    assert {record.stop_s - record.start_s for record in records} == {2.0**-12}


def test_fetches_that_a_busy_sender_refused_are_counted(cluster, client):
    sender, receiver = cluster.addresses["0"], cluster.addresses["1"]
    futures = [put(cluster, bytes(1000 + number), "0") for number in range(40)]
    collect(cluster)
    total = client.run(n_incoming)

    def n_refused(dask_worker):
        return dask_worker.plugins[transfer_log.TransferLog.name].outcomes["GatherDepBusyEvent"]

    def limit(count, dask_worker):
        before = dask_worker.transfer_outgoing_count_limit
        dask_worker.transfer_outgoing_count_limit = count
        return before

    before = client.run(limit, 0, workers=[sender])[sender]
    try:
        done = [use(cluster, [future], "1") for future in futures]
        until(
            lambda: client.run(n_refused, workers=[receiver])[receiver] >= 2, "the sender refused"
        )
    finally:
        client.run(limit, before, workers=[sender])
    assert client.gather(done) == [1] * len(done)
    records, counts = collect(cluster)
    count = counts["1"]
    assert count.n_busy >= 2
    assert count.n_failed == count.n_in_flight == 0
    assert count.n_logged == len(records) >= 1
    assert explained(count) == count.n_started
    assert count.n_started == client.run(n_incoming)[receiver] - total[receiver]
    assert sum(record.n_keys for record in records) == len(futures)


def test_a_fetch_in_flight_is_logged_in_the_next_collection(cluster, client, tmp_path):
    future = put(cluster, 1, "0")
    unsent = tmp_path / "unsent"
    slow = client.submit(SlowToPickle, unsent, workers=[cluster.addresses["0"]], pure=False)
    collect(cluster)
    unsent.touch()
    done = use(cluster, [slow, future], "1")
    address = cluster.addresses["1"]

    def first_count():
        # The sender is too busy to be asked.
        count = client.run(transfer_log.count, workers=[address])[address]
        return count if count["n_started"] else None

    assert until(first_count, "a fetch began") == {
        "n_started": 1, "n_logged": 0, "n_busy": 0, "n_failed": 0, "n_in_flight": 1
    }  # fmt: skip
    unsent.unlink()
    done.result()
    records, counts = collect(cluster)
    assert len(records) == 1
    assert counts["1"] == ONE_FETCH


def state(dask_worker):
    """Return what the plugin may have changed in the worker."""
    log = dask_worker.transfer_incoming_log
    return {
        "log": id(log),
        "maxlen": log.maxlen,
        "instance attributes": sorted(name for name in vars(dask_worker) if name == "gather_dep"),
        "function": id(dask_worker.gather_dep.__func__),
    }


def test_teardown_restores_log_and_methods_of_the_worker(cluster):
    client = cluster.client
    before = client.run(state)
    client.run(forget_log)
    client.register_plugin(transfer_log.TransferLog())
    address = cluster.addresses["1"]
    client.run(entries, 1500, address, workers=[address])
    lengths = client.run(lambda dask_worker: dask_worker.transfer_incoming_log.maxlen)
    assert lengths[address] == transfer_log.MAX_ENTRIES
    client.unregister_worker_plugin(transfer_log.TransferLog.name)
    assert client.run(state) == before
    assert before[address]["maxlen"] == 1000
    assert before[address]["instance attributes"] == []
    totals = client.run(
        lambda dask_worker: [entry["total"] for entry in dask_worker.transfer_incoming_log],
        workers=[address],
    )
    assert totals[address] == list(range(500, 1500))
    assert use(cluster, [put(cluster, b"x" * 1000, "0")], "1").result() == 1


@pytest.mark.parametrize("event", ["GatherDepFailureEvent", "GatherDepNetworkFailureEvent"])
def test_a_fetch_that_failed_is_counted_once(event):
    class State:
        transfer_incoming_count_total = 5
        transfer_incoming_count = 0

    class Worker:
        def __init__(self):
            self.transfer_incoming_log, self.state, self.plugins = deque(maxlen=1000), State(), {}

        async def gather_dep(self, worker):
            self.state.transfer_incoming_count_total += 1
            return type(event, (), {})()

    worker, plugin = Worker(), transfer_log.TransferLog()
    plugin.setup(worker)
    worker.plugins[plugin.name] = plugin
    asyncio.run(worker.gather_dep("tcp://somebody"))
    assert transfer_log.count(worker) == {
        "n_started": 1, "n_logged": 0, "n_busy": 0, "n_failed": 1, "n_in_flight": 0
    }  # fmt: skip
    assert transfer_log.count(worker)["n_failed"] == 0


def test_dask_has_events_of_these_names():
    for kind in ("Success", "Busy", "Failure", "NetworkFailure"):
        assert hasattr(distributed.worker, f"GatherDep{kind}Event")


def test_entries_that_come_during_a_collection_are_in_the_next_one(cluster, client):
    address, records, stop = cluster.addresses["1"], [], threading.Event()

    def append():
        try:
            for _ in range(20):
                client.run(entries, 500, cluster.addresses["0"], workers=[address])
        finally:
            stop.set()

    thread = threading.Thread(target=append)
    thread.start()
    while not stop.is_set():
        records += collect(cluster)[0]
    thread.join()
    records += collect(cluster)[0]
    assert len(records) == 10_000

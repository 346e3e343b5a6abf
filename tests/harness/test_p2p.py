"""Every batch of a P2P shuffle is timed, and shuffles work as without us."""

import asyncio
import time
from types import SimpleNamespace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from builders import expanded
from distributed import wait
from launching import select
from processes import until

from commbench.harness import p2p, transfer_log, wire
from commbench.harness.measure import traffic
from commbench.model.observed import TransferRecord
from commbench.workloads.placement import rebalance

WHERE = {"case_id": "a case", "launch": 0, "iteration": 0}
DELAY_S = 0.5
N_ROWS, N_PARTS = 100_000, 8


@pytest.fixture
def client(cluster, disconnect):
    """Return the client of a cluster whose workers count and log all that they move."""
    disconnect()
    plugins = transfer_log.TransferLog(), p2p.BatchLog(), wire.WireMeter()
    for plugin in plugins:
        cluster.client.register_plugin(plugin)
    yield cluster.client
    for plugin in plugins:
        cluster.client.unregister_worker_plugin(plugin.name)


def batches(cluster):
    """Return the batches since the last call."""
    return expanded(traffic.p2p_batches(cluster.client, cluster.names, cluster.names, **WHERE))


def frame(value):
    rows = np.random.default_rng().permutation(N_ROWS)
    return dd.from_pandas(pd.DataFrame({"key": rows, value: rows * 1.5}), npartitions=N_PARTS)


def rechunk(client, method):
    x = client.persist(da.random.default_rng().random((1600, 1600), chunks=(200, -1)))
    wait(x)
    rebalance(client, x)
    return x.rechunk((1600, 200), method=method)


def shuffle(client, method):
    return frame("x").shuffle("key", shuffle_method=method, npartitions=5)


def merge(client, method):
    how = {"on": "key", "shuffle_method": method, "broadcast": False}
    return frame("x").merge(frame("y"), **how)


@pytest.mark.parametrize(
    ("job", "method"),
    [
        (rechunk, "p2p"), (shuffle, "p2p"), (merge, "p2p"), (shuffle, "tasks"),
        pytest.param(rechunk, "tasks", marks=pytest.mark.slow),
        pytest.param(merge, "tasks", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_logs_have_the_times_of_what_crosses_the_wire(job, method, cluster, client):
    graph = job(client, method)
    list(traffic.fetches(client, cluster.names, **WHERE))
    for module in (p2p, wire):
        client.run(module.forget)
    wait(client.persist(graph))
    written = {
        (cluster.names[address], peer): nbytes
        for address, rows in client.run(wire.take).items()
        for peer, nbytes, _ in rows
    }
    logged = [*batches(cluster), *expanded(traffic.fetches(client, cluster.names, **WHERE))]
    logged = select(logged, TransferRecord)
    for src, dst in (("0", "1"), ("1", "0")):
        times = [r for r in logged if (r.src, r.dst) == (src, dst)]
        # In memory small frames are larger than serialized ones, which P2P sends.
        most = 1.03 if method == "p2p" else 1.2
        assert 0.97 < sum(r.nbytes for r in times) / written[src, dst] < most
        assert all(r.stop_s > r.start_s for r in times)
    large = [record for record in logged if record.nbytes > 10_000]
    # Inputs that were stolen are fetched.
    assert {record.channel for record in large} - {"gather"} == {method} - {"tasks"}
    assert all(record.src != record.dst for record in logged)
    task = {rechunk: "rechunk", shuffle: "shuffle", merge: "hash-join"}[job]
    assert all(f"{task}-transfer-" in r.shuffle for r in large if r.channel == "p2p")


@pytest.fixture
def gate(cluster, tmp_path):
    """Return a file until whose creation no batch is handled; each shard is sent in a batch."""
    file = tmp_path / "gate"

    def close(dask_worker):
        manager = dask_worker.extensions["shuffle"].shuffle_runs
        get_with_run_id = manager.get_with_run_id

        async def late(*args, **given):
            while not file.exists():
                await asyncio.sleep(0.01)
            return await get_with_run_id(*args, **given)

        manager.get_with_run_id = late

    def reopen(dask_worker):
        del dask_worker.extensions["shuffle"].shuffle_runs.get_with_run_id

    def send_with(concurrency, limit):
        settings = {"concurrency": concurrency, "message-bytes-limit": limit}
        dask.config.set({f"distributed.p2p.comm.{name}": x for name, x in settings.items()})

    cluster.client.run(close)
    cluster.client.run(send_with, 1, "1B")
    yield file
    file.touch()
    cluster.client.run(reopen)
    cluster.client.run(send_with, 10, "2 MiB")


def in_queues(client, shuffled=None):
    """Return a shuffle, a new one by default, of which all shards wait at their senders."""

    def n_queued(dask_scheduler):
        return sum(
            task.state == "memory"
            for task in dask_scheduler.tasks.values()
            if task.prefix.name == "shuffle-transfer"
        )

    shuffled = client.persist(shuffle(client, "p2p")) if shuffled is None else shuffled
    until(lambda: client.run_on_scheduler(n_queued) == N_PARTS, "shards", 60)
    return shuffled


def test_waiting_in_the_queue_and_handling_are_no_time_on_the_wire(cluster, client, gate):
    client.run(p2p.forget)
    shuffled = in_queues(client)
    time.sleep(DELAY_S)
    gate.touch()
    assert len(shuffled) == N_ROWS
    logged = batches(cluster)
    assert max(record.handling_s for record in logged) >= DELAY_S
    assert max(record.queue_s for record in logged) >= DELAY_S
    # The first batch was handled, and all others waited, for that time.
    assert min(max(record.queue_s, record.handling_s) for record in logged) >= DELAY_S
    assert min(record.stop_s - record.start_s for record in logged) < DELAY_S


def replaced(dask_worker):
    """Return what the plugin may have replaced."""
    manager = dask_worker.extensions["shuffle"].shuffle_runs
    buffers = [run._comm_buffer for run in manager._runs]
    observed = ["write" in vars(buffer) for buffer in buffers]
    senders = [buffer.send.__qualname__ for buffer in buffers]
    handler = dask_worker.handlers["shuffle_receive"].__qualname__
    return handler, "get_or_create" in vars(manager), observed, senders


def test_a_shuffle_that_is_under_way_is_left_as_without_the_plugin(cluster, gate):
    client = cluster.client
    before = client.run(replaced)
    client.register_plugin(p2p.BatchLog())
    shuffled = in_queues(client)
    observed = client.run(replaced)
    client.unregister_worker_plugin(p2p.BatchLog.name)
    unobserved = client.run(replaced)
    gate.touch()
    assert len(shuffled) == N_ROWS
    assert all(runs == [True] for _, _, runs, _ in observed.values())
    for address, (handler, created, runs, senders) in unobserved.items():
        assert (handler, created) == before[address][:2]
        assert runs == [False]
        assert senders == ["ShuffleRun.send"]


def test_a_shuffle_that_begins_while_the_plugin_is_removed_is_left_alone(cluster, gate):
    client, plugin = cluster.client, p2p.BatchLog()

    def delay(dask_worker):
        manager = dask_worker.extensions["shuffle"].shuffle_runs
        get = manager.get_or_create
        manager.entered, manager.go_on = 0, False

        async def late(*args):
            run = await get(*args)
            manager.entered += 1
            while not manager.go_on:
                await asyncio.sleep(0.01)
            return run

        manager.get_or_create = late

    def restore(dask_worker):
        manager = dask_worker.extensions["shuffle"].shuffle_runs
        manager.go_on = True
        vars(manager).pop("get_or_create", None)

    def n_entered(dask_worker):
        return dask_worker.extensions["shuffle"].shuffle_runs.entered

    client.run(delay)
    client.register_plugin(plugin)
    try:
        shuffled = client.persist(shuffle(client, "p2p"))
        until(lambda: any(client.run(n_entered).values()), "a shuffle", 60)
        client.unregister_worker_plugin(plugin.name)
    finally:
        client.run(restore)
    in_queues(client, shuffled)
    under_way = client.run(replaced)
    gate.touch()
    assert len(shuffled) == N_ROWS
    assert [runs for _, _, runs, _ in under_way.values()] == [[False]] * 2


@pytest.mark.parametrize("lacking", ["extensions", "handlers", "get_or_create", "_comm_buffer"])
def test_names_that_another_version_of_dask_lacks_cost_the_log_alone(lacking):
    class Manager:
        async def get_or_create(self, shuffle_id, key):
            return SimpleNamespace(id=shuffle_id)

    manager = SimpleNamespace() if lacking == "get_or_create" else Manager()
    worker = SimpleNamespace(
        extensions={} if lacking == "extensions" else {"shuffle": SimpleNamespace()},
        handlers={} if lacking == "handlers" else {"shuffle_receive": print},
    )
    if worker.extensions:
        worker.extensions["shuffle"].shuffle_runs = manager
    log = p2p.BatchLog()
    log.setup(worker)
    if isinstance(manager, Manager):
        assert asyncio.run(manager.get_or_create("a shuffle", ("a key", 0))).id == "a shuffle"
    log.teardown(worker)
    assert not vars(manager)
    assert worker.handlers == ({} if lacking == "handlers" else {"shuffle_receive": print})


def test_a_batch_that_is_sent_again_was_under_way_all_the_time(cluster, client):
    """The answer to the first attempt is lost."""

    def lose_first(dask_worker):
        from distributed.shuffle._core import ShuffleRun

        ShuffleRun.kept, ShuffleRun.is_lost = ShuffleRun._send, False

        async def send(run, address, shards):
            answer = await run.kept(address, shards)
            if address != run.local_address and not ShuffleRun.is_lost:
                ShuffleRun.is_lost = True
                await asyncio.sleep(DELAY_S)
                raise OSError("lost")
            return answer

        ShuffleRun._send = send

    def restore(dask_worker):
        from distributed.shuffle._core import ShuffleRun

        ShuffleRun._send = ShuffleRun.kept
        del ShuffleRun.kept, ShuffleRun.is_lost

    client.run(p2p.forget)
    client.run(lose_first)
    try:
        assert len(client.persist(shuffle(client, "p2p"))) == N_ROWS
        logged = batches(cluster)
    finally:
        client.run(restore)
    assert max(record.stop_s - record.start_s for record in logged) >= DELAY_S


def test_a_receiver_without_the_plugin_has_no_handling(cluster):
    client, plugin = cluster.client, p2p.BatchLog()
    one = cluster.addresses["0"]

    async def add(dask_worker):
        await dask_worker.plugin_add(plugin=plugin, name=plugin.name)

    async def remove(dask_worker):
        await dask_worker.plugin_remove(name=plugin.name)

    client.run(add, workers=[one])
    try:
        assert len(client.persist(shuffle(client, "p2p"))) == N_ROWS
        logged = expanded(traffic.p2p_batches(client, {one: "0"}, cluster.names, **WHERE))
    finally:
        client.run(remove, workers=[one])
    assert {(record.src, record.dst, record.handling_s) for record in logged} == {("0", "1", 0.0)}


def test_logs_are_collected_in_bounded_messages(cluster, client, gate, monkeypatch):
    gate.touch()
    client.run(p2p.forget)
    wait(client.persist(shuffle(client, "p2p")))
    kept = client.run(lambda dask_worker: list(dask_worker.plugins[p2p.BatchLog.name].batches))
    n_batches = sum(map(len, kept.values()))
    monkeypatch.setattr(traffic, "CHUNK", 2)
    assert len(batches(cluster)) == n_batches > 2
    assert batches(cluster) == []

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import launching
import numpy as np
import pytest
from distributed import core
from distributed.comm.core import Comm
from processes import BACKEND

from commbench.harness import wire

MB = 10**6


def method_table():
    """Return every function that the plugin may have replaced, by class."""
    functions, classes = {}, [Comm]
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        for name in ("write", "handshake_info"):
            if name in vars(kind):
                functions[f"{kind.__qualname__}.{name}"] = id(vars(kind)[name])
    return functions


@pytest.fixture
def client(cluster, disconnect):
    """Return the client of a cluster whose workers have a fresh meter."""
    disconnect()
    cluster.client.register_plugin(wire.WireMeter())
    yield cluster.client
    cluster.client.unregister_worker_plugin(wire.WireMeter.name)


def counted(cluster):
    """Return {(src, dst): (bytes, messages)} between workers since the last call."""
    return {
        (cluster.names[address], peer): (nbytes, n_messages)
        for address, rows in cluster.client.run(wire.take).items()
        for peer, nbytes, n_messages in rows
        if peer
    }


def move(cluster, array, src, dst):
    """Put `array` on the worker `src` and let the worker `dst` fetch it."""
    client, addresses = cluster.client, cluster.addresses
    future = client.scatter(array, workers=[addresses[src]], hash=False)
    done = client.submit(len, future, workers=[addresses[dst]], pure=False)
    assert done.result() == len(array)


def test_a_payload_is_counted_once_in_its_direction(cluster, client):
    counted(cluster)
    for seed in range(3):
        move(cluster, np.random.default_rng(seed).bytes(2 * MB), "0", "1")
    counts = counted(cluster)
    nbytes, n_messages = counts["0", "1"]
    assert 6 * MB <= nbytes <= 6.1 * MB
    assert n_messages >= 1
    assert counts["1", "0"][0] < 0.1 * MB
    assert set(counts) == {("0", "1"), ("1", "0")}
    assert counted(cluster) == {}


def test_traffic_to_client_and_scheduler_is_counted_without_a_name(cluster, client):
    counted(cluster)
    data = np.random.default_rng(0).bytes(2 * MB)
    future = client.scatter(data, workers=[cluster.addresses["0"]], hash=False)
    counted(cluster)
    assert future.result() == data
    answers = client.run(wire.take).items()
    sent = {cluster.names[address]: row for address, rows in answers for row in rows}
    peer, nbytes, n_messages = sent["0"]
    assert (peer, n_messages > 0) == ("", True)
    assert 2 * MB <= nbytes < 2.1 * MB


def test_the_time_to_connect_is_summed(cluster, client, disconnect):
    def connected(dask_worker):
        return dask_worker.plugins[wire.WireMeter.name].connect_seconds

    before = client.run(connected)
    disconnect()
    began = time.perf_counter()
    move(cluster, b"x" * MB, "0", "1")
    after, here = client.run(connected), cluster.addresses["1"]
    assert 0 < after[here] - before[here] < time.perf_counter() - began


def test_connections_that_overlap_are_one_period(monkeypatch):
    async def connect():
        await asyncio.sleep(0.05)

    async def connect_all():
        await core.connect()
        await asyncio.gather(core.connect(), core.connect())
        await core.connect()

    monkeypatch.setattr(core, "connect", connect)
    meter = wire.WireMeter()
    worker = SimpleNamespace(name="0", handlers={})
    meter.setup(worker)
    began = time.perf_counter()
    try:
        asyncio.run(connect_all())
    finally:
        seconds = time.perf_counter() - began
        meter.teardown(worker)
    assert 0.15 <= meter.connect_seconds <= seconds


def test_traffic_of_a_worker_with_itself_is_counted_apart(cluster, client):
    async def send_to_itself(dask_worker):
        await dask_worker.rpc(dask_worker.address).update_data(data={"to-myself": b"x" * 5000})

    counted(cluster)
    client.run(send_to_itself, workers=[cluster.addresses["1"]])
    ((pair, (nbytes, _)),) = counted(cluster).items()
    assert pair == ("1", "1")
    assert 5000 < nbytes < 50_000


def test_within_a_host_nothing_is_compressed(cluster, client):
    move(cluster, np.zeros(MB, dtype="u1"), "0", "1")
    assert set(map(tuple, client.run(wire.compressions).values())) == {("none",)}


def test_compressors_are_those_of_open_connections():
    def comm(name, *, closed=False):
        return SimpleNamespace(handshake_options={"compression": name}, closed=lambda: closed)

    comms = [comm("lz4"), comm("lz4"), comm(None), comm("zstd", closed=True), None]
    meter = wire.WireMeter()
    meter.comms = {str(n): (lambda comm=comm: comm) for n, comm in enumerate(comms)}
    worker = SimpleNamespace(plugins={wire.WireMeter.name: meter})
    assert wire.compressions(worker) == ["lz4", "none"]


def test_both_ends_of_a_connection_name_its_transport(cluster, client):
    array = np.random.default_rng(0).integers(0, 256, MB, dtype="u1")
    move(cluster, array, "0", "1")
    used = {
        (cluster.names[address], peer): (name, evidence)
        for address, rows in client.run(wire.transports, cluster.backend.transport).items()
        for peer, name, evidence in rows
    }
    assert set(used) == {("0", "1"), ("1", "0")}
    for name, evidence in used.values():
        assert name
        assert evidence
        assert cluster.backend.contradiction(name) == "" or BACKEND == "ucx"
    families = {name.partition("/")[0] for name, _ in used.values()}
    assert families <= {"tcp": {"tcp"}, "ucx:shm": {"sysv", "posix"}}.get(BACKEND, families)


def test_teardown_restores_the_classes_of_comms(cluster, disconnect):
    client = cluster.client
    disconnect()
    before = client.run(method_table)
    client.register_plugin(wire.WireMeter())
    move(cluster, b"x" * MB, "0", "1")
    during = client.run(method_table)
    client.unregister_worker_plugin(wire.WireMeter.name)
    assert client.run(method_table) == before
    assert all(during[address] != before[address] for address in before)
    move(cluster, b"x" * MB, "1", "0")


def test_a_write_that_a_class_inherits_counts_once():
    class Plain(Comm):
        async def write(self, message, serializers=None, on_error=None):
            return len(message)

        same_host = True
        read = close = abort = closed = local_address = peer_address = None

    class Encrypted(Plain):
        pass

    class Worker:
        name, handlers = 0, {}

    plain, encrypted = Plain(), Encrypted()
    before = (Comm.handshake_info, Plain.write)
    meter = wire.WireMeter()
    meter.setup(Worker())
    try:
        for comm in (encrypted, plain, encrypted):
            assert comm.handshake_info()[wire._NAME_KEY] == "0"
            comm.remote_info = {wire._NAME_KEY: "1"}
            assert asyncio.run(comm.write(b"x" * 100)) == 100
        assert dict(meter.nbytes) == {"1": 300}
        assert dict(meter.n_messages) == {"1": 3}
        comm.remote_info = {}
        asyncio.run(comm.write(b"the handshake itself"))
        assert dict(meter.nbytes) == {"1": 300, "": 20}
    finally:
        meter.teardown(Worker())
    assert (Comm.handshake_info, Plain.write) == before
    assert "write" not in vars(Encrypted)
    assert Worker.handlers == {}


def idle(workers, dask_worker):
    """Return the idle connections with `workers`; that with the scheduler has heartbeats."""
    available = dask_worker.rpc.available
    return {address: set(map(id, available.get(address, ()))) for address in workers}


def set_up(dask_worker):
    dask_worker.plugins[wire.WireMeter.name] = meter = wire.WireMeter()
    meter.setup(dask_worker)


def tear_down(dask_worker):
    dask_worker.plugins.pop(wire.WireMeter.name).teardown(dask_worker)


def test_a_connection_that_one_end_has_named_is_named_by_the_other(cluster, disconnect):
    client, (one, two) = cluster.client, (cluster.addresses[name] for name in "01")
    disconnect()
    client.run(set_up, workers=[one])
    # Worker 1 has no meter yet: its handshake has no name, and that of worker 0 has one.
    move(cluster, b"x" * MB, "0", "1")
    client.run(set_up, workers=[two])
    try:
        client.run(wire.introduce, [one, two])
        counted(cluster)
        move(cluster, b"z" * 2 * MB, "0", "1")
        assert 2 * MB <= counted(cluster)["0", "1"][0] <= 2.1 * MB
    finally:
        client.run(tear_down)


@pytest.mark.parametrize("both", [True, False])
def test_open_connections_are_counted_once_both_ends_are_introduced(both, cluster, disconnect):
    client, workers = cluster.client, cluster.addresses
    everyone = list(workers.values())
    disconnect()
    move(cluster, b"x" * MB, "0", "1")
    move(cluster, b"y" * MB, "1", "0")

    metered = [workers[name] for name in ("01" if both else "0")]
    before = client.run(idle, everyone)
    assert len(before[workers["1"]][workers["0"]]) > 0
    client.run(set_up, workers=metered)
    try:
        for _ in range(2):
            client.run(wire.introduce, everyone)
            assert client.run(idle, everyone) == before
        counted(cluster)
        move(cluster, b"z" * 2 * MB, "0", "1")
        counts = counted(cluster)
        if both:
            assert 2 * MB <= counts["0", "1"][0] <= 2.1 * MB
            assert set(counts) == {("0", "1"), ("1", "0")}
        else:
            assert counts == {}
    finally:
        client.run(tear_down, workers=metered)
    left = client.run(lambda dask_worker: [op for op in dask_worker.handlers if "commbench" in op])
    assert not any(left.values())


@pytest.mark.skipif(BACKEND != "tcp", reason="these are the tests that are run there")
@pytest.mark.parametrize("name", ["ucx:shm", "ucx"])
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_these_tests_pass_over_ucx(name):
    launching.require(name)
    paths = [Path(__file__).with_name(file) for file in ("test_wire.py", "test_transfer_log.py")]
    for _ in range(2):
        # UCX in this process would keep a core busy to the end of the session.
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
            env={**os.environ, "COMMBENCH_TEST_BACKEND": name},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500,
        )  # fmt: skip
        # On a busy machine a scheduler over ucxx has crashed before it had a task.
        if "Failed to reconnect to scheduler" not in ended.stdout:
            break
    assert ended.returncode == 0, ended.stdout
    assert re.search("[1-9][0-9]* passed", ended.stdout), ended.stdout

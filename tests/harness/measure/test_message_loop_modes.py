"""Windows of messages at every layer: how many there are, and that none is wrong or old."""

import asyncio
import contextlib
import socket
import threading
import time

import numpy as np
import processes
import pytest
from launching import select

from commbench.backends import tcp_endpoints
from commbench.errors import UsageError, VerificationError
from commbench.harness.measure import exchanges
from commbench.model.observed import Sample
from commbench.workloads.pingpong import PingPong
from commbench.workloads.workload import Context

MiB = 1 << 20
WINDOWS = ("bandwidth", "bidirectional", "message-rate")


@pytest.mark.parametrize("mode", WINDOWS)
def test_a_sample_is_one_window_and_there_are_a_tenth_as_many_as_messages(measure, mode):
    names = ("raw", "coroutine", "comm")
    records = measure(layers=names, sizes=(1, 64 << 10), mode=mode, window=8, iterations=100)
    samples = select(records, Sample)
    assert [*dict.fromkeys(sample.layer for sample in samples)] == list(names)
    for layer in names:
        for size, windows in ((1, 10), (64 << 10, 1)):
            here = [s for s in samples if (s.layer, s.payload_bytes) == (layer, size)]
            assert [s.iteration for s in here] == list(range(-1, windows))
            assert all(s.verified and s.seconds > 0 and s.cpu_seconds > 0 for s in here)


@pytest.mark.parametrize(("mode", "messages"), [("bandwidth", 8), ("bidirectional", 16)])
def test_the_seconds_of_a_window_are_shared_by_its_messages(measure, monkeypatch, mode, messages):
    exchange = exchanges.EndpointConversation.exchange

    async def slow(self, payload):
        await asyncio.sleep(0.08)
        return await exchange(self, payload)

    monkeypatch.setattr(exchanges.EndpointConversation, "exchange", slow)
    records = measure(layers=("coroutine",), sizes=(1,), mode=mode, window=8, iterations=30)
    # A busy machine makes some windows longer.
    seconds = min(sample.seconds for sample in select(records, Sample))
    assert 0.08 <= seconds * messages < 2 * 0.08


@pytest.mark.parametrize("layer", ["coroutine", "comm"])
@pytest.mark.parametrize("mode", WINDOWS[:2])
def test_a_wrong_acknowledgement_voids_the_window(measure, monkeypatch, layer, mode):
    exchange = exchanges.Conversation.exchange

    async def garbled(self, payload):
        answer = await exchange(self, payload)
        return ~answer

    monkeypatch.setattr(exchanges.Conversation, "exchange", garbled)
    with pytest.raises(VerificationError, match="differs from what was sent"):
        measure(layers=(layer,), sizes=(100,), mode=mode, window=4)


@pytest.mark.parametrize("layer", ["coroutine", "comm"])
def test_no_message_of_the_peer_is_under_way_when_the_clock_starts(measure, monkeypatch, layer):
    kind = exchanges.CommConversation if layer == "comm" else exchanges.EndpointConversation
    exchange, early = kind._exchange_windows, []

    async def late(self, payload):
        stream = self._comm.stream if layer == "comm" else self._endpoint._connection
        time.sleep(0.1)
        with contextlib.suppress(BlockingIOError):
            early.append(stream.socket.recv(1, socket.MSG_PEEK))
        early.extend([b"read"] * stream._read_buffer_size)
        return await exchange(self, payload)

    monkeypatch.setattr(kind, "_exchange_windows", late)
    records = measure(layers=(layer,), sizes=(100,), mode="bidirectional", window=4)
    assert select(records, Sample)
    assert not early


@pytest.mark.parametrize("layer", ["coroutine", "comm"])
def test_a_window_that_did_not_come_back_is_noticed(measure, monkeypatch, layer):
    # The reply buffer has the bytes of the window before.
    kind = exchanges.CommConversation if layer == "comm" else exchanges.EndpointConversation
    cross = kind._exchange_windows

    async def lost(self, payload):
        before = None if self._reply is None else self._reply.copy()
        answer = await cross(self, payload)
        if before is not None:
            self._reply = before if layer != "comm" else ~self._reply
        return answer

    monkeypatch.setattr(kind, "_exchange_windows", lost)
    with pytest.raises(VerificationError, match="differs from what was sent"):
        measure(layers=(layer,), sizes=(100,), mode="bidirectional", window=4)


def test_every_byte_of_the_last_message_of_a_size_is_compared(measure, monkeypatch):
    checks = exchanges.EndpointConversation.whole_checks

    async def garbled(self, payload, answer):
        pairs = await checks(self, payload, answer)
        pairs[0][1][50] ^= 1
        return pairs

    monkeypatch.setattr(exchanges.EndpointConversation, "whole_checks", garbled)
    with pytest.raises(VerificationError, match="to a message of 100 B differs"):
        measure(layers=("coroutine",), sizes=(100,), mode="bandwidth", window=4)


def test_memcpy_is_measured_before_raw_and_the_layers_above(measure):
    records = measure(layers=("coroutine", "raw"), sizes=(1, MiB), iterations=10)
    samples = [s for s in select(records, Sample) if not s.warmup]
    assert [*dict.fromkeys(s.layer for s in samples)] == ["memcpy", "raw", "coroutine"]
    copies = {s.payload_bytes: s.seconds for s in samples if s.layer == "memcpy"}
    assert 0 < copies[1] < copies[MiB]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"layers": ("worker",), "mode": "bandwidth"}, "the layer worker has no mode"),
        ({"layers": ("worker",), "mode": "multi-pair"}, "the layer worker has no mode"),
        ({"layers": ("raw", "comm"), "mode": "multi-pair"}, "comm and coroutine only have the"),
        ({"layers": ("raw",), "mode": "loaded-latency"}, "only have the mode loaded-latency"),
        ({"load_size": 0}, "load_size is 0 B; it must be at least 1 B"),
        ({"pairs": 0, "mode": "multi-pair"}, "pairs is 0; it must be at least 1"),
        ({"window": 0, "mode": "bandwidth"}, "window is 0; it must be at least 1"),
        ({"layers": ("memcpy",)}, "unknown layer 'memcpy'"),
        ({"layers": ("raw", "raw")}, "names none, or one twice"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(params, message):
    with pytest.raises(UsageError, match=message):
        PingPong(PingPong.Params(**params), Context(n_workers=2, device="cpu", seed=0))


def joined():
    """Return two blocking endpoints that are joined, and the task that serves the second."""

    async def both():
        made = asyncio.get_running_loop().create_future()

        async def handler(endpoint):
            made.set_result(endpoint)
            await asyncio.Event().wait()

        async with tcp_endpoints.BLOCKING_TCP.listen(handler, "127.0.0.1") as address:
            one = await tcp_endpoints.BLOCKING_TCP.connect(address)
            other = await made
            # The handler's end would close the connection with the listener.
            return one, tcp_endpoints.BlockingTcpEndpoint(other._connection.dup())

    return asyncio.run(both())


def test_blocking_sockets_send_more_than_buffers_hold_both_ways_at_once():
    ends, received = joined(), {}

    def talk(end):
        sent = np.full(MiB, end + 1, "u1")
        received[end] = np.zeros(MiB, "u1")
        asyncio.run(ends[end].cross_windows(sent, received[end], 64))

    threads = [threading.Thread(target=talk, args=(end,), daemon=True) for end in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(processes.PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert (received[0] == 2).all()
    assert (received[1] == 1).all()
    for end in ends:
        asyncio.run(end.close())


def test_streams_carry_messages_of_any_size():
    async def exchange():
        # Tornado closes a stream that gets more than 100 MiB, unless its limit is raised.
        sent, received = np.ones(100 * MiB + 1, "u1"), np.zeros(100 * MiB + 1, "u1")

        async def echo(endpoint):
            await endpoint.receive(received)
            await endpoint.send(received)

        async with tcp_endpoints.TCP_STREAMS.listen(echo, "127.0.0.1") as address:
            one = await tcp_endpoints.TCP_STREAMS.connect(address)
            await one.send(sent)
            sent[:] = 0
            await one.receive(sent)
            await one.close()
        return sent

    assert asyncio.run(exchange()).all()


@pytest.mark.parametrize("crossing", [False, True])
def test_a_closed_socket_is_an_error_and_not_an_endless_wait(crossing):
    one, other = joined()
    asyncio.run(other.close())
    buffer = np.zeros(10, "u1")
    waiting = one.cross_windows(buffer, buffer, 1) if crossing else one.receive(buffer)
    with pytest.raises(OSError, match=r"closed|reset|Broken"):
        asyncio.run(waiting)
    asyncio.run(one.close())

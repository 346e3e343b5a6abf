"""Windows of messages at every layer: how many there are, and that none is wrong or old."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import processes
import pytest

from commbench.backends import tcp_endpoints
from commbench.backends.tcp import TcpBackend
from commbench.errors import UsageError, VerificationError
from commbench.harness.measure import layers, pingpong
from commbench.model import Case, IdleCost, Launch, Sample
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong

MiB = 1 << 20
CPU = Context(n_workers=2, device="cpu", seed=7)
WINDOWS = ("bandwidth", "bidirectional", "message-rate")


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Return a function that measures a ping-pong over tcp and returns its samples."""
    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 0.1)
    monkeypatch.setattr(
        pingpong,
        "measure_idle",
        lambda launch, _, n_processes: IdleCost(
            case_id=launch.case.id, launch=0, seconds=1, cpu_seconds=0, n_processes=n_processes
        ),
    )

    def measure(*, iterations=100, warmups=10, **params):
        case = Case(workload="pingpong", backend="tcp", iterations=iterations, warmups=warmups)
        launch = Launch(case=case, index=0, block=0, position=0)
        workload = PingPong(PingPong.Params(**{"seconds_per_size": 60.0} | params), CPU)
        records = []
        pingpong.measure_pair(launch, workload, TcpBackend(), tmp_path, records.append)
        return [record for record in records if isinstance(record, Sample)]

    return measure


@pytest.mark.parametrize("mode", WINDOWS)
def test_a_sample_of_a_window_mode_is_one_window(measure, mode):
    """Of each size and layer there are a tenth as many windows as messages, all verified."""
    names = ("raw", "coroutine", "comm")
    found = measure(layers=names, sizes=(1, 64 << 10), mode=mode, window=8)
    assert [*dict.fromkeys(sample.layer for sample in found)] == list(names)
    for layer in names:
        for size, warmups, windows in ((1, 1, 10), (64 << 10, 1, 1)):
            here = [s for s in found if (s.layer, s.payload_bytes) == (layer, size)]
            assert [s.iteration for s in here] == list(range(-warmups, windows))
            assert all(s.verified and s.seconds > 0 and s.cpu_seconds > 0 for s in here)


@pytest.mark.parametrize(("mode", "messages"), [("bandwidth", 8), ("bidirectional", 16)])
def test_the_seconds_of_a_window_are_those_of_one_message(measure, monkeypatch, mode, messages):
    """A window that takes 80 ms counts as 10 ms for each of 8 messages; both directions count."""
    exchange = layers.EndpointConversation.exchange

    async def slow(self, payload):
        await asyncio.sleep(0.08)
        return await exchange(self, payload)

    monkeypatch.setattr(layers.EndpointConversation, "exchange", slow)
    found = measure(layers=("coroutine",), sizes=(1,), mode=mode, window=8, iterations=30)
    # A busy machine makes some windows longer.
    assert 0.08 <= min(sample.seconds for sample in found) * messages < 2 * 0.08


@pytest.mark.parametrize("layer", ["raw", "coroutine", "comm"])
@pytest.mark.parametrize("mode", WINDOWS[:2])
def test_an_acknowledgement_of_another_message_is_no_sample(measure, monkeypatch, layer, mode):
    """Where the last message did not arrive as it was sent, the window counts for nothing."""
    exchange = layers.Conversation.exchange

    async def garbled(self, payload):
        answer = await exchange(self, payload)
        return ~answer

    monkeypatch.setattr(layers.Conversation, "exchange", garbled)
    with pytest.raises(VerificationError, match="differs from what was sent"):
        measure(layers=(layer,), sizes=(100,), mode=mode, window=4)


@pytest.mark.parametrize("layer", ["raw", "coroutine", "comm"])
def test_what_did_not_come_the_other_way_is_noticed(measure, monkeypatch, layer):
    """A reply buffer that still holds the last window's bytes does not pass for this one's."""
    kind = layers.CommConversation if layer == "comm" else layers.EndpointConversation
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


def test_a_byte_in_the_middle_of_the_last_message_is_noticed(measure, monkeypatch):
    """Of the last message of a size every byte is compared."""
    checks = layers.EndpointConversation.whole_checks

    async def garbled(self, payload, answer):
        found = await checks(self, payload, answer)
        found[0][1][50] ^= 1
        return found

    monkeypatch.setattr(layers.EndpointConversation, "whole_checks", garbled)
    with pytest.raises(VerificationError, match="to a message of 100 B differs"):
        measure(layers=("coroutine",), sizes=(100,), mode="bandwidth", window=4)


def test_memcpy_comes_with_raw_and_first(measure):
    """Whoever asks for raw is given the floor under it, and the layers from the wire up."""
    found = measure(layers=("coroutine", "raw"), sizes=(1, MiB), iterations=10)
    assert [*dict.fromkeys(s.layer for s in found)] == ["memcpy", "raw", "coroutine"]
    copies = {s.payload_bytes: s.seconds for s in found if s.layer == "memcpy" and not s.warmup}
    assert 0 < copies[1] < copies[MiB]


@pytest.mark.parametrize(
    ("params", "device", "message"),
    [
        ({"layers": ("worker",), "mode": "bandwidth"}, "cpu", "the layer worker has no mode"),
        (
            {"layers": ("raw", "comm"), "mode": "multi-pair"},
            "cpu",
            "comm and coroutine only have the mode",
        ),
        ({"layers": ("worker",), "mode": "multi-pair"}, "cpu", "the layer worker has no mode"),
        (
            {"layers": ("raw",), "mode": "loaded-latency"},
            "cpu",
            "only have the mode loaded-latency",
        ),
        ({"load_size": 0}, "cpu", "a load of messages of 0 B; at least 1"),
        ({"pairs": 0, "mode": "multi-pair"}, "cpu", "0 pairs of processes; at least 1"),
        ({"window": 0, "mode": "bandwidth"}, "cpu", "a window of 0 messages; at least 1"),
        ({"layers": ("memcpy",)}, "cpu", "unknown layer 'memcpy'"),
        ({"layers": ("raw", "raw")}, "cpu", "names none, or one twice"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_starts(params, device, message):
    """A wrong combination names itself and what to do."""
    with pytest.raises(UsageError, match=message):
        PingPong(PingPong.Params(**params), Context(n_workers=2, device=device, seed=0))


def joined():
    """Return two blocking endpoints that are joined, and the task that serves the second."""

    async def both():
        made = asyncio.get_running_loop().create_future()

        async def handler(endpoint):
            made.set_result(endpoint)
            await asyncio.Event().wait()

        async with tcp_endpoints.BLOCKING_TCP.listen(handler) as address:
            one = await tcp_endpoints.BLOCKING_TCP.connect(address)
            other = await made
            # The handler's end would close the connection with the listener.
            return one, tcp_endpoints.BlockingTcpEndpoint(other._socket.dup())

    return asyncio.run(both())


def test_blocking_sockets_don_t_wait_for_each_other():
    """Both ends send 64 MiB at the same time, more than any buffer holds, and receive them."""
    ends, received = joined(), {}

    def talk(place):
        sent = np.full(MiB, place + 1, "u1")
        received[place] = np.zeros(MiB, "u1")
        asyncio.run(ends[place].cross_windows(sent, received[place], 64))

    threads = [threading.Thread(target=talk, args=(place,), daemon=True) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(processes.PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert (received[0] == 2).all()
    assert (received[1] == 1).all()
    for end in ends:
        asyncio.run(end.close())


@pytest.mark.parametrize("crossing", [False, True])
def test_a_closed_socket_is_an_error_and_not_an_endless_wait(crossing):
    """Whoever receives from a peer that is gone is told so."""
    one, other = joined()
    asyncio.run(other.close())
    buffer = np.zeros(10, "u1")
    waiting = one.cross_windows(buffer, buffer, 1) if crossing else one.receive(buffer)
    with pytest.raises(OSError, match=r"closed|reset|Broken"):
        asyncio.run(waiting)
    asyncio.run(one.close())

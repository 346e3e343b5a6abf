"""How a channel ends after the loss of its TCP connection, in every order of the last events.

MPI and the connection are stubs: which messages have arrived, and which sends are complete.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed.protocol import to_serialize
from mpi_stubs import Communicator, Message, Request, Status
from scenarios import in_event_loop

from commbench.mpi import channel as module
from commbench.mpi import engine, receiver, sender, wire_format
from commbench.mpi.channel import Channel, ChannelClosedError
from commbench.mpi.comm import MPIComm
from commbench.mpi.control import Record
from commbench.mpi.engine import Engine
from commbench.mpi.transfers import Transfer, Transfers


class End:
    """A channel with stubs, and whether its tag was released."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.released = 0
        control = SimpleNamespace(
            attach=lambda _: None, record=lambda *_: None, close=lambda: None, abort=lambda: None
        )
        self.channel = Channel(
            Engine.for_loop(asyncio.get_running_loop()), control, communicator,  # type: ignore[arg-type]
            0, 1, 5, 6, SimpleNamespace(BYTE=None, Status=Status), self._release,
        )  # fmt: skip

    def _release(self) -> None:
        self.released += 1

    async def ended(self) -> None:
        """Wait until the channel has ended and its tag is released."""
        async with asyncio.timeout(60):
            while not (self.channel._ended and self.released):
                await asyncio.sleep(0.01)
        assert self.released == 1
        assert not self.channel.engine._watched


SMALL = bytes(wire_format.pack([b"x"])[0])
LARGE = bytes(wire_format.pack([bytes(100_000)])[0])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    monkeypatch.setattr(Engine, "_orphans", deque())


@in_event_loop
async def test_closed_without_a_reader_after_the_loss() -> None:
    end = End(Communicator())
    end.channel.on_record(Record.CLOSE, 1)
    end.channel.on_lost("killed")
    end.channel.close()
    await end.ended()


@in_event_loop
async def test_a_send_to_a_lost_peer_says_why() -> None:
    end = End(Communicator(SMALL))
    end.channel.on_record(Record.DOORBELL, 1)
    end.channel.on_lost("killed")
    with pytest.raises(ChannelClosedError, match="killed"):
        end.channel.send([b"x"])
    end.channel.close()
    await end.ended()


@in_event_loop
async def test_mpi_is_called_until_the_peer_has_closed_too() -> None:
    """UCX may have buffered a part of what was sent."""
    end = End(Communicator())
    end.channel.send([b"x"])
    end.channel.close()
    await asyncio.sleep(0.01)
    assert end.channel in end.channel.engine._idle
    end.channel.on_record(Record.CLOSE, 0)
    await end.ended()


@in_event_loop
async def test_a_send_to_a_dead_peer_does_not_keep_the_channel() -> None:
    end = End(Communicator(SMALL, sends=False))
    end.channel.send([bytes(100_000)])
    end.channel.on_record(Record.CLOSE, 1)
    end.channel.on_lost("killed")
    assert [bytes(frame) for frame in await end.channel.receive()] == [b"x"]
    with pytest.raises(ChannelClosedError, match="killed"):
        await end.channel.receive()
    await end.ended()


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("n_sent", [0, 1])
@in_event_loop
async def test_an_interrupted_send_keeps_what_mpi_reads(
    n_sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "INTERRUPTED", kept := [])
    request, frame = Request(False), bytes(100_000)
    sends = iter([lambda: request] * n_sent + [interrupt])
    end = End(Communicator())
    end.communicator.Isend = lambda *_: next(sends)()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        end.channel.send([frame])
    parked = end.channel.engine._parked
    assert [list(transfer.requests) for transfer in parked] == [[request]] * n_sent
    for header, large in [*kept, *(transfer.buffers for transfer in parked)]:
        assert header == LARGE
        assert large == [frame]
    assert len(kept) == 1
    await end.ended()


@pytest.mark.parametrize("step", ["test the header", "post", "test a frame"])
@in_event_loop
async def test_an_interrupted_receive_keeps_what_mpi_writes_to(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "INTERRUPTED", kept := [])
    targets = []

    def receives(target: tuple[Any, Any], test: Callable[[], bool]) -> Any:
        tests = iter([test])
        targets.append(target[0])
        return SimpleNamespace(Test=lambda: next(tests, pending)(), Cancel=lambda: None)

    pending = Request(False).Test
    if step == "test the header":
        monkeypatch.setattr(Message, "Irecv", lambda _, target: receives(target, interrupt))
    posts = iter([interrupt if step == "test a frame" else pending, pending])
    end = End(Communicator(wire_format.pack([bytes(100_000)] * 2)[0], SMALL))

    def post(target: tuple[Any, Any], *_: Any) -> Any:
        return interrupt() if step == "post" and targets else receives(target, next(posts))

    end.communicator.Irecv = post  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await end.channel.receive()
    (parked,) = end.channel.engine._parked
    assert len(parked.requests) == len(targets) > 0
    buffers = [parked.buffers] if step == "test the header" else parked.buffers
    for target, buffer in zip(targets, buffers, strict=step != "post"):
        assert np.shares_memory(np.asarray(target), np.asarray(buffer))
    assert kept
    with pytest.raises(ChannelClosedError, match="KeyboardInterrupt"):
        await end.channel.receive()
    assert not end.released
    parked.requests.clear()
    await end.ended()


def test_an_interrupted_test_of_a_request_loses_no_transfer() -> None:
    transfers = Transfers()
    for test in (interrupt, lambda: False):
        transfers.append(Transfer([SimpleNamespace(Test=test)], b"", 8, False, None))
    both = list(transfers)
    with pytest.raises(KeyboardInterrupt):
        transfers.advance(0)
    assert list(transfers) == both


@in_event_loop
async def test_an_interrupted_start_loses_no_transfer() -> None:
    running = Engine.for_loop(asyncio.get_running_loop())
    transfer = Transfer([SimpleNamespace(Test=interrupt)], b"", 8, False, None)
    with pytest.raises(KeyboardInterrupt):
        running.start(transfer)
    assert running._transfers.drop_all() == [transfer]


@in_event_loop
async def test_one_of_two_announced_messages_arrives_after_the_close() -> None:
    end = End(Communicator(SMALL))
    end.channel.on_record(Record.CLOSE, 2)
    end.channel.close()
    end.channel.on_lost("killed")
    await end.ended()


@in_event_loop
async def test_a_message_whose_rest_never_comes_is_not_waited_for() -> None:
    """Nobody reads when the connection is lost; then the reader finds the header."""
    end = End(Communicator(LARGE))
    end.channel.on_record(Record.CLOSE, 1)
    end.channel.on_lost("killed")
    with pytest.raises(ChannelClosedError, match="killed"):
        await asyncio.wait_for(end.channel.receive(), 60)
    await end.ended()


def find_late(communicator: Communicator, n_misses: int) -> Callable[[], int]:
    """Have the first probes find nothing; return a function that returns how many were made."""
    probe, n_probes = communicator.Improbe, 0

    def late(*arguments: Any) -> Message | None:
        nonlocal n_probes
        n_probes += 1
        return probe(*arguments) if n_probes > n_misses else None

    communicator.Improbe = late  # type: ignore[method-assign]
    return lambda: n_probes


@in_event_loop
async def test_a_loop_that_stood_still_asks_mpi_again() -> None:
    end = End(Communicator(SMALL))
    n_probes = find_late(end.communicator, module.N_LAST_PROBES + 5)
    end.channel.on_record(Record.CLOSE, 1)
    end.channel.on_lost("killed")
    reading = asyncio.ensure_future(end.channel.receive())
    while n_probes() < 2:
        await asyncio.sleep(0)
    time.sleep(2 * module.GRACE_S)
    assert [bytes(frame) for frame in await reading] == [b"x"]
    await end.ended()


@in_event_loop
async def test_a_poll_that_fails_does_not_stop_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SAFETY_S", 0.01)
    loop, n_polls = asyncio.get_running_loop(), 0
    loop.set_exception_handler(lambda *_: None)

    class Idle:
        def poll(self) -> bool:
            nonlocal n_polls
            n_polls += 1
            raise MemoryError

    idle = Idle()
    Engine.for_loop(loop).make_idle(idle)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while n_polls < 3:
            await asyncio.sleep(0.01)
    Engine.for_loop(loop).unwatch(idle)  # type: ignore[arg-type]


@in_event_loop
async def test_idle_channels_are_polled_in_slices_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SAFETY_S", 0.05)
    polls: list[Any] = []

    class Idle:
        def poll(self) -> bool:
            polls.append(self)
            time.sleep(engine.SLICE_S / 4)
            return True

    channels, end = [Idle() for _ in range(40)], Engine.for_loop(asyncio.get_running_loop())
    for idle in channels:
        end.make_idle(idle)  # type: ignore[arg-type]
    in_turn = []
    async with asyncio.timeout(60):
        while (n_before := len(polls)) < 80:
            await asyncio.sleep(0)
            in_turn.append(len(polls) - n_before)
    for idle in channels:
        end.unwatch(idle)  # type: ignore[arg-type]
    assert max(in_turn) <= 5
    # Each comes once before any comes again.
    assert {*polls[:40]} == {*polls[40:80]} == {*channels}


@pytest.mark.parametrize(
    ("announced", "waits", "reads_on"),
    [
        # The event loop reads nothing more from a socket that it can't write to.
        ((Record.DOORBELL, 1), False, True),
        ((Record.DOORBELL, 2), True, False),
        ((Record.CLOSE, 2), True, False),
        # The peer doesn't ring while this end polls, so how many there are is not known.
        (None, True, True),
    ],
)
@in_event_loop
async def test_what_has_arrived_stays_readable_after_the_loss(
    announced: tuple[Record, int] | None, waits: bool, reads_on: bool
) -> None:
    end = End(Communicator(SMALL, SMALL))
    if announced:
        end.channel.on_record(*announced)
    else:
        end.channel._announced_idle = False
    end.channel.on_lost("killed")
    if waits:
        await asyncio.sleep(4 * module.GRACE_S)
    for _ in range(2):
        assert [bytes(frame) for frame in await end.channel.receive()] == [b"x"]
    if reads_on:
        with pytest.raises(ChannelClosedError, match="killed"):
            await end.channel.receive()
    await end.ended()


@in_event_loop
async def test_a_channel_whose_unread_message_is_read_after_the_loss_ends() -> None:
    end = End(Communicator(SMALL))
    n_probes = find_late(end.communicator, 1)
    while n_probes() < 2:
        end.channel.poll()
    end.channel.on_lost("killed")
    assert [bytes(frame) for frame in await end.channel.receive()] == [b"x"]
    await end.ended()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("polls", [True, False])
@in_event_loop
async def test_what_was_sent_before_the_peer_read_that_this_end_is_idle_is_readable(
    polls: bool, reads: bool
) -> None:
    """If this end polled before the loss, an unread message comes first."""
    end = End(Communicator(SMALL, SMALL))
    n_probes = find_late(end.communicator, 1 if polls else 3)
    reading = asyncio.ensure_future(end.channel.receive()) if reads else None
    await asyncio.sleep(0)
    while polls and n_probes() < 2:
        end.channel.poll()
    end.channel.on_lost("killed")
    for read in (reading or end.channel.receive(), end.channel.receive()):
        assert [bytes(frame) for frame in await read] == [b"x"]
        if not polls:
            await asyncio.sleep(4 * module.GRACE_S)
    with pytest.raises(ChannelClosedError, match="killed"):
        await end.channel.receive()
    await end.ended()


@in_event_loop
async def test_a_channel_that_polled_ends_after_the_loss_without_a_reader() -> None:
    end = End(Communicator())
    end.channel._announced_idle = False
    end.channel.on_lost("killed")
    await end.ended()
    assert end.channel.closed


@pytest.mark.parametrize("header", [SMALL, wire_format.pack([bytes(100_000)] * 2)[0]], ids=len)
@in_event_loop
async def test_a_message_that_cannot_be_copied_ends_the_channel(
    header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frames(*_: Any) -> list[memoryview]:
        raise MemoryError

    monkeypatch.setattr(wire_format.Layout, "frames", frames)
    communicator = Communicator(header)
    communicator.Irecv = lambda *_: Request(True)  # type: ignore[method-assign]
    end = End(communicator)
    end.channel.on_record(Record.CLOSE, 1)
    with pytest.raises(ChannelClosedError, match="MemoryError"):
        await end.channel.receive()
    await end.ended()


@in_event_loop
async def test_a_header_that_announces_exabytes_ends_the_channel_at_once() -> None:
    end = End(Communicator(np.array([1, 2**62], "u8").tobytes()))
    with pytest.raises(ChannelClosedError, match="MemoryError"):
        await end.channel.receive()
    await end.ended()
    assert not end.communicator.receives


@in_event_loop
async def test_what_drains_a_message_that_never_comes_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take(_: int) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(receiver, "DRAIN_S", 0.05)
    monkeypatch.setattr(receiver.BUFFERS, "take", take)
    end = End(Communicator(np.array([1, 2**43], "u8").tobytes()))
    with pytest.raises(ChannelClosedError, match="MemoryError"):
        await end.channel.receive()
    end.channel.on_lost("killed")
    assert len(end.communicator.receives) == 2**13
    assert not any(request.complete for request in end.communicator.receives)
    await end.ended()


@in_event_loop
async def test_the_work_for_each_send_to_a_dead_peer_does_not_grow_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of messages may wait for a peer that stood still before it died."""
    n_comparisons = 0

    class Counting(Transfer):
        def __eq__(self, other: object) -> bool:
            nonlocal n_comparisons
            n_comparisons += 1
            return self is other

        __hash__ = object.__hash__

    monkeypatch.setattr(sender, "Transfer", Counting)

    end, large = End(Communicator(sends=False)), bytes(100_000)
    for _ in range(2000):
        end.channel.send([large])
    end.channel.on_lost("killed")
    await end.ended()
    assert len(end.channel.engine._parked) == 2000
    assert n_comparisons < 10 * 2000


@in_event_loop
async def test_of_small_messages_that_wait_for_a_peer_only_the_first_is_tested() -> None:
    end = End(Communicator(sends=False))
    for _ in range(2000):
        end.channel.send([b"x"])
    (waiting,) = end.channel.engine._transfers
    assert len(waiting.requests) == len(waiting.buffers) == end.channel.n_unsent == 2000
    requests = [*waiting.requests]
    for request in requests[:1500]:
        request.complete = True
    while end.channel.n_unsent > 500:
        await asyncio.sleep(0)
    # What has left is released, though others have not.
    assert len(waiting.requests) == len(waiting.buffers) == 500
    end.channel.on_lost("killed")
    await end.ended()
    assert end.channel.engine._parked == [waiting]
    for request in requests[1500:]:
        request.complete = True
    while end.channel.engine._parked:
        await asyncio.sleep(0.01)
    assert waiting.buffers is None


@in_event_loop
async def test_a_small_message_that_fails_ends_the_channel_though_others_wait() -> None:
    end = End(Communicator(sends=False))
    for _ in range(3):
        end.channel.send([b"x"])
    (waiting,) = end.channel.engine._transfers

    def fail() -> bool:
        raise RuntimeError("gone")

    waiting.requests[0].Test = fail
    with pytest.raises(ChannelClosedError, match="MPI could not send: gone"):
        await asyncio.wait_for(end.channel.receive(), 10)
    assert end.channel.engine._parked == [waiting]
    assert len(waiting.requests) == len(waiting.buffers) == 2


def test_what_is_parked_after_its_loop_has_ended_goes_to_another() -> None:
    request = Request(False)

    async def park() -> Engine:
        return Engine.for_loop(asyncio.get_running_loop())

    asyncio.run(park()).park([Transfer([request], b"", 0, False, None)])
    (orphan,) = Engine._orphans
    assert list(orphan.requests) == [request]


@in_event_loop
async def test_a_request_keeps_its_buffer_if_its_coroutine_is_cancelled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MAX_HOLD_S", -1)
    own, request = Engine.for_loop(asyncio.get_running_loop()), Request(False)
    buffer = memoryview(bytearray(8))
    completing = asyncio.ensure_future(own.complete(request, buffer, receives=False))
    await asyncio.sleep(0)
    completing.cancel()
    await asyncio.wait([completing])
    (parked,) = own._parked
    assert parked.buffers is buffer


def test_receives_of_a_closed_loop_are_cancelled_before_another_adopts_them() -> None:
    n_orphans = []

    def cancel() -> None:
        n_orphans.append(len(Engine._orphans))

    async def begin() -> End:
        end = End(Communicator(LARGE))
        request = SimpleNamespace(Test=lambda: False, Cancel=cancel)
        end.communicator.Irecv = lambda *_: request  # type: ignore[method-assign,assignment,return-value]
        await asyncio.wait([asyncio.ensure_future(end.channel.receive())], timeout=0.02)
        return end

    end = asyncio.run(begin())
    assert end.channel._receiver.busy
    assert n_orphans == [0]
    assert len(Engine._orphans) == 1


@in_event_loop
async def test_the_tag_of_a_torn_message_is_released_when_mpi_is_done_with_it() -> None:
    end = End(Communicator(LARGE))
    end.communicator.Irecv = lambda *_: stuck  # type: ignore[method-assign]
    stuck = SimpleNamespace(Test=lambda: stuck.complete, Cancel=lambda: None, complete=False)
    reading = asyncio.ensure_future(end.channel.receive())
    await asyncio.sleep(0.02)
    end.channel.on_lost("killed")
    with pytest.raises(ChannelClosedError):
        await reading
    assert end.released == 0
    stuck.complete = True
    await end.ended()


def comm_over(channel: Any) -> MPIComm:
    return MPIComm(
        channel, local_address="", peer_address="", deserialize=True, mode="self", library=""
    )


@in_event_loop
@pytest.mark.parametrize(("compression", "is_split"), [(None, False), ("zlib", True)])
async def test_only_frames_that_are_compressed_are_split(
    compression: str | None, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lz4 takes less than 2 GiB at a time."""
    monkeypatch.setattr("distributed.protocol.utils.BIG_BYTES_SHARD_SIZE", 1 << 20)
    sent: list[Any] = []
    channel = SimpleNamespace(
        closed=False, send=lambda frames: sent.extend(frames) or 1, close=lambda: None
    )
    comm = comm_over(channel)
    comm.handshake_options = {"compression": compression}
    x = np.frombuffer(np.random.default_rng(0).bytes(4 << 20), "u1")
    await comm.write({"x": to_serialize(x)})
    comm.abort()
    assert (sum(len(frame) >= 1 << 19 for frame in sent) > 1) == is_split


@in_event_loop
@pytest.mark.parametrize("n_read", [0, 1, 3])
async def test_a_close_waits_while_the_peer_reads(
    n_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.mpi.comm.FLUSH_TIMEOUT_S", 0.02)
    channel = SimpleNamespace(close=lambda: None, closed=True, n_unsent=4, n_waits=0)

    async def flush() -> None:
        channel.n_waits += 1
        if channel.n_waits <= n_read:
            channel.n_unsent -= 1
        await asyncio.sleep(60)

    channel.flush = flush
    await asyncio.wait_for(comm_over(channel).close(), 30)
    assert channel.n_waits == n_read + 1


@in_event_loop
async def test_a_close_cancelled_as_the_last_message_leaves_is_cancelled() -> None:
    left = asyncio.get_running_loop().create_future()

    async def flush() -> None:
        await left

    channel = SimpleNamespace(close=lambda: None, flush=flush, closed=True, n_unsent=1)
    comm = comm_over(channel)
    closing = asyncio.ensure_future(comm.close())
    await asyncio.sleep(0.01)
    left.set_result(None)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing

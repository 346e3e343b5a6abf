"""One connection over MPI: messages each way, an orderly end, and a peer that may die.

Both ends count messages. So each knows, whatever the order in which MPI and the line deliver:
whether one is still under way when the peer rests or closes, and whether all has arrived, so that
the tag may be used again.

MPI can't take a send back. After a close or an abort the channel therefore lingers: it receives
and drops what the peer had already sent, until both ends have said CLOSE and every message has
arrived. Only a dead peer leaves something behind: sends that it never received stay with the
engine, and their buffers with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from commbench.mpi import wire
from commbench.mpi.engine import Engine, Transfer
from commbench.mpi.inbox import Inbox
from commbench.mpi.line import Line, Record
from commbench.mpi.patience import Patience

__all__ = ["Channel", "ChannelClosedError"]

GRACE_S = 1.0
"""How long to look for the announced messages of a peer that closed, and whose line is gone."""

Buffer = bytes | bytearray | memoryview


class ChannelClosedError(OSError):
    """There is nothing more to read, or nobody to write to."""


class Channel:
    """One end.

    Parameters
    ----------
    engine
        Of the event loop that the channel lives in.
    line
        Connected to the peer, its handshake done.
    communicator, rank
        Where the peer is.
    peer_pid
        The process at the other end.
    send_tag, receive_tag
        As the peer and this end have allocated them.
    mpi
        The module ``mpi4py.MPI``.
    release
        Called once nothing can arrive on `receive_tag` any more.

    Attributes
    ----------
    engine, communicator, rank
        As given.
    """

    def __init__(
        self,
        engine: Engine,
        line: Line,
        communicator: Any,
        rank: int,
        peer_pid: int,
        send_tag: int,
        receive_tag: int,
        mpi: Any,
        release: Callable[[], None],
    ) -> None:
        self.engine = engine
        self._line = line
        self.communicator = communicator
        self.rank = rank
        self._send_tag = send_tag
        self._byte = mpi.BYTE
        self._release = release

        self._n_sent = 0
        self._sending: set[Transfer] = set()
        self._peer_rests = True
        self._flushed: asyncio.Future[None] | None = None

        self._n_received = 0
        self._n_announced = 0
        self._inbox = Inbox(
            engine,
            communicator,
            rank,
            receive_tag,
            peer_pid,
            mpi,
            on_message=self._on_message,
            on_failure=self._fail,
        )
        self._message: list[memoryview] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._patience = Patience()
        self._told_rest = True
        self.spin_until = 0.0

        self._closing = False
        self._peer_closed = False
        self._lost: str | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._ended: str | None = None
        line.attach(self)

    # -- sending

    def send(self, frames: Sequence[Buffer], on_device: Collection[int] = ()) -> int:
        """Send one message and return its bytes; it need not be received for that.

        The frames must stay unchanged until they have left. Those at the places `on_device` arrive
        in GPU memory.

        Raises
        ------
        ChannelClosedError
            Where this end or the peer has closed.
        """
        if self._closing or self._peer_closed or self._ended is not None:
            raise ChannelClosedError(self._ended or "the connection is closed")
        header, large, nbytes = wire.pack(frames, on_device)
        send, rank, tag, byte = self.communicator.Isend, self.rank, self._send_tag, self._byte
        requests = []
        try:
            for buffer in (header, *large):
                requests.append(send((buffer, byte), rank, tag))
        except Exception as error:
            # What has left already can't be taken back, and announces what won't come.
            self.engine.park(Transfer(requests, (header, large), nbytes, False, self._on_sent))
            self._fail(f"MPI could not send: {error}")
            raise
        self._n_sent += 1
        if large or not requests[0].Test():
            transfer = Transfer(requests, (header, large), nbytes, False, self._on_sent)
            self._sending.add(transfer)
            self.engine.start(transfer)
        if self._peer_rests:
            self._line.record(Record.RING, self._n_sent)
        return nbytes

    def _on_sent(self, transfer: Transfer, error: BaseException | None) -> None:
        self._sending.discard(transfer)
        if error is not None:
            self._fail(f"MPI could not send: {error}")
        if not self._sending and self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        self._settle()

    # -- receiving

    async def receive(self) -> list[memoryview]:
        """Return the frames of the next message.

        Raises
        ------
        ChannelClosedError
            Where there is none left to come.
        """
        assert self._reader is None, "already reading"
        await self.engine.breathe()
        if self._message is None and not self._inbox.busy and not self._closing:
            self._look()
        if self._message is None:
            await self._wait()
        message, self._message = self._message, None
        if message is None:
            raise ChannelClosedError(self._why_no_more() or "the connection is closed")
        if self._peer_closed:
            self._settle()
        return message

    async def _wait(self) -> None:
        began = time.perf_counter()
        if self._patience.immediate and not self._told_rest:
            self.engine.look_now(self)
        if self._message is None:
            if (reason := self._why_no_more()) is not None:
                raise ChannelClosedError(reason)
            self._reader = self.engine.loop.create_future()
            try:
                if not self._inbox.busy:
                    self._watch()
                await self._reader
            finally:
                self._reader = None
                if not self._closing:
                    self.engine.ignore(self)
        self._patience.learn(time.perf_counter() - began)

    def _watch(self) -> None:
        if self._lost is not None:
            self._give_grace(self._lost)
        if self.expects():
            self.engine.listen(self)
        elif not (patience_s := self._patience.seconds):
            self.rest()
        else:
            if self._told_rest:
                self._told_rest = False
                self._line.record(Record.LOOK, self._n_received)
            self.engine.listen(self, patience_s)

    def _why_no_more(self) -> str | None:
        if self._ended is not None:
            return self._ended
        if self._peer_closed and not self.expects():
            return "the peer closed the connection"
        return "the connection is closed" if self._closing else None

    def poll(self) -> bool:
        """Look for a message; return whether to go on looking."""
        self._look()
        if self._ended is not None or self._inbox.busy:
            return False
        return self._message is None or self._closing

    def expects(self) -> bool:
        """Return whether the peer has announced more than has arrived."""
        return self._n_received < self._n_announced

    def rest(self) -> None:
        """Have the peer ring for every message."""
        if not self._told_rest:
            self._told_rest = True
            self._line.record(Record.REST, self._n_received)
        self.engine.rest(self)

    def _look(self) -> None:
        if not self._inbox.busy and self._message is None and self._ended is None:
            self._inbox.look()

    def _on_message(self, frames: list[memoryview]) -> None:
        self._n_received += 1
        if self._grace is not None:
            self._grace.cancel()
        if self._closing:
            self._linger()
            return
        self._message = frames
        if self._reader is not None:
            self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- the end

    @property
    def closed(self) -> bool:
        """Whether nothing more can be read."""
        return self._closing or (self._message is None and self._why_no_more() is not None)

    def close(self) -> None:
        """Send no more, and drop what still arrives."""
        if self._closing:
            return
        self._closing = True
        self._message = None
        self._wake_reader()
        if self._ended is None:
            self._line.record(Record.CLOSE, self._n_sent)
            self._linger()

    async def flush(self) -> None:
        """Wait until everything sent has left this process."""
        if self._sending and self._ended is None:
            self._flushed = self._flushed or self.engine.loop.create_future()
            await asyncio.shield(self._flushed)

    def on_record(self, record: Record, count: int) -> None:
        """React to what the peer says."""
        self.engine.take_breath(time.perf_counter())
        if record in (Record.REST, Record.LOOK):
            self._peer_rests = record is Record.REST
            if self._peer_rests and count < self._n_sent:
                self._line.record(Record.RING, self._n_sent)
            return
        self._n_announced = max(self._n_announced, count)
        if record is Record.CLOSE:
            self._peer_closed = True
            if self._n_received >= count:
                self._wake_reader()
        if self._closing:
            self._linger()
        elif self._reader is not None and not self._inbox.busy and self.expects() and self.poll():
            self.engine.listen(self)
        self._settle()

    def _linger(self) -> None:
        if not self._inbox.busy and self.expects() and self._ended is None:
            self.engine.listen(self)
        self._settle()

    def _settle(self) -> None:
        # Where the peer has closed and nothing is left to read, this end closes, too.
        if self._ended is not None or not self._peer_closed or self.expects():
            return
        if self._message is not None or self._inbox.busy:
            return
        if not self._closing:
            self.close()
        elif not self._sending:
            self._end("the connection is closed")
            self._line.close()

    def on_lost(self, reason: str) -> None:
        """Take note that the line is gone: the peer died, or both ends have closed."""
        if self._peer_closed and self.expects():
            # Its last messages may lie in shared memory still, and their reader be busy.
            self._lost = reason
            if self._reader is not None or self._closing:
                self._give_grace(reason)
        else:
            self._end(reason)

    def _give_grace(self, reason: str) -> None:
        self._grace = self.engine.loop.call_later(GRACE_S, self._end, reason)

    def _fail(self, reason: str) -> None:
        self._end(reason)
        self._line.abort()

    def _end(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        self.engine.ignore(self)
        if self._peer_closed and not self.expects() and not self._inbox.busy:
            self._release()
        self._inbox.give_up()
        for transfer in self._sending:
            self.engine.park(transfer)
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        self._wake_reader()

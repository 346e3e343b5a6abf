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
from collections.abc import Callable
from typing import Any

from commbench.mpi.engine import Engine
from commbench.mpi.inbox import Inbox
from commbench.mpi.line import Line, Record
from commbench.mpi.outbox import ChannelClosedError, Outbox
from commbench.mpi.patience import Patience

__all__ = ["Channel", "ChannelClosedError"]

GRACE_S = 1.0
"""How long to look for the announced messages of a peer that closed, and whose line is gone."""


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
        Called once MPI fills no more buffers on `receive_tag`.

    Attributes
    ----------
    engine, communicator, rank
        As given.
    send, flush
        The outbox's, without a call in between.
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
        self._release = release

        self._outbox = Outbox(
            engine,
            line,
            communicator,
            rank,
            send_tag,
            mpi,
            on_left=self._settle,
            on_failure=self._fail,
        )
        self.send = self._outbox.send
        self.flush = self._outbox.flush

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
            self._outbox.close()
            self._line.record(Record.CLOSE, self._outbox.n_sent)
            self._linger()

    def on_record(self, record: Record, count: int) -> None:
        """React to what the peer says."""
        self.engine.take_breath(time.perf_counter())
        if record in (Record.REST, Record.LOOK):
            outbox = self._outbox
            outbox.peer_rests = record is Record.REST
            if outbox.peer_rests and count < outbox.n_sent:
                self._line.record(Record.RING, outbox.n_sent)
            return
        self._n_announced = max(self._n_announced, count)
        if record is Record.CLOSE:
            self._peer_closed = True
            self._outbox.close()
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
        elif self._outbox.empty:
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
        if not self._inbox.busy:
            self._release()
        self._inbox.give_up()
        self._outbox.give_up(reason)
        self._wake_reader()

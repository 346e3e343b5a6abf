"""One connection over MPI: messages each way, an orderly close, and a peer that may die.

Both ends count messages. So each knows, in any order in which MPI and the TCP connection deliver,
whether a message is still under way when the peer goes idle or closes, and when all have arrived,
so that the tag may be used again::

                 read() while messages are frequent: send POLLING
      ┌──────┐ ─────────────────────────────────────────────► ┌─────────┐
    ─►│ IDLE │                                                │ POLLING │
      └──────┘ ◄───────────────────────────────────────────── └─────────┘
          │      no message within the spin time: send IDLE         │
          │                                                         │
          └───────────────────────┬─────────────────────────────────┘
                                  │  close(), or CLOSE received and all messages read: send CLOSE
                                  ▼
                            ┌───────────┐
                            │ LINGERING │
                            └───────────┘
                                  │  CLOSE sent and received, all messages received, all sends done
                                  ▼
                              ┌───────┐
                              │ ENDED │
                              └───────┘

While this end is IDLE, the peer sends DOORBELL with each message, and the engine polls until that
message has arrived. From every state, a failure of MPI ends the channel at once. So does the loss
of the TCP connection, unless messages may still arrive:

- announced ones are missing,
- this end is POLLING, so that the peer announces none,
- MPI has one that the peer sent before it read IDLE, or
- one is unread: MPI is not asked for more.

Then the channel ends when none has arrived for `GRACE_S` while this end waits for one.

A send can't be withdrawn from MPI. A channel that was closed or aborted therefore lingers: it
receives and drops what the peer had already sent. If the peer has died, sends that it never
received stay with the engine, with their buffers.
"""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from commbench.mpi.control import Control, Record, wake
from commbench.mpi.engine import Engine
from commbench.mpi.receive_queue import SENDERS
from commbench.mpi.receiver import Receiver
from commbench.mpi.sender import ChannelClosedError, Sender
from commbench.mpi.spin_policy import SpinPolicy

__all__ = ["Channel", "ChannelClosedError"]

GRACE_S = 1.0
"""How long to wait for the next message of a peer whose TCP connection is lost."""
N_LAST_PROBES = 10
"""MPI needs more than one call to find a message that has arrived."""


class Channel:
    """One end of a connection.

    Parameters
    ----------
    engine
        The engine of the channel's event loop.
    control
        The TCP connection to the peer, after the handshake.
    communicator, rank
        The communicator shared with the peer, and the peer's rank in it.
    peer_pid
        The peer's process id.
    send_tag, receive_tag
        The tags that the peer and this end have allocated.
    mpi
        The module ``mpi4py.MPI``.
    release
        Called once MPI fills no more buffers on `receive_tag`.

    Attributes
    ----------
    engine, communicator, rank
        As given.
    send, flush
        The methods of the sender.
    """

    def __init__(
        self,
        engine: Engine,
        control: Control,
        communicator: Any,
        rank: int,
        peer_pid: int,
        send_tag: int,
        receive_tag: int,
        mpi: Any,
        release: Callable[[], None],
    ) -> None:
        self.engine = engine
        self._control = control
        self.communicator = communicator
        self.rank = rank
        # If the event loop is closed, nothing else may refer to this channel.
        self._release = weakref.finalize(self, release)
        self._release.atexit = False

        self._sender = Sender(
            engine,
            control,
            communicator,
            rank,
            send_tag,
            mpi,
            on_drained=self._close_if_done,
            on_failure=self._fail,
        )
        self.send = self._sender.send
        self.flush = self._sender.flush

        self._n_received = 0
        self._n_announced = 0
        self._receiver = Receiver(
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
        self._spin_policy = SpinPolicy()
        self._announced_idle = True
        self.spin_until = 0.0

        self._closing = False
        self._peer_closed = False
        self._lost: str | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._ended: str | None = None
        engine.add(self)
        control.attach(self)

    # -- receiving

    async def receive(self) -> list[memoryview]:
        """Return the frames of the next message.

        Raises
        ------
        ChannelClosedError
            Where there is none left to come.
        """
        assert self._reader is None, "already reading"
        await self.engine.yield_to_loop()
        if self._message is None and not self._receiver.busy and not self._closing:
            self._probe()
        if self._message is None:
            await self._wait_for_message()
        message, self._message = self._message, None
        if message is None:
            raise ChannelClosedError(self.end_reason() or "the connection is closed")
        if self._peer_closed:
            self._close_if_done()
            # Nobody may read again.
            self._start_grace()
        return message

    async def _wait_for_message(self) -> None:
        began = time.perf_counter()
        if self._spin_policy.immediate and not self._announced_idle:
            self.engine.spin(self)
        if self._message is None:
            if (reason := self.end_reason()) is not None:
                raise ChannelClosedError(reason)
            self._reader = self.engine.loop.create_future()
            self._start_grace()
            try:
                if not self._receiver.busy:
                    self._watch()
                await self._reader
            finally:
                self._reader = None
                if not self._closing:
                    self.engine.unwatch(self)
        self._spin_policy.update(time.perf_counter() - began)

    def _watch(self) -> None:
        if self.expects():
            self.engine.watch(self)
        elif not (spin_s := self._spin_policy.spin_s):
            self.go_idle()
        else:
            if self._announced_idle:
                self._announced_idle = False
                self._control.record(Record.POLLING, self._n_received)
            self.engine.watch(self, spin_s)

    def end_reason(self) -> str | None:
        """Return why nothing more can be read, or None."""
        if self._ended is not None:
            return self._ended
        if self._peer_closed and not self.expects():
            return self._lost or "the peer closed the connection"
        return "the connection is closed" if self._closing else None

    def poll(self) -> bool:
        """Probe for a message; return whether to keep polling."""
        self._probe()
        if self._ended is not None or self._receiver.busy:
            return False
        return self._message is None or self._closing

    def expects(self) -> bool:
        """Return whether the peer has announced more than has arrived."""
        return self._n_received < self._n_announced

    def go_idle(self) -> None:
        """Tell the peer to ring for every message, and stop polling."""
        if not self._announced_idle:
            self._announced_idle = True
            self._control.record(Record.IDLE, self._n_received)
        self.engine.make_idle(self)

    def _probe(self) -> None:
        if not self._receiver.busy and self._message is None and self._ended is None:
            self._receiver.probe()

    def _on_message(self, frames: list[memoryview]) -> None:
        self._n_received += 1
        self._cancel_grace()
        if self._closing:
            self._linger()
            return
        self._message = frames
        wake(self._reader)

    # -- the end

    @property
    def closed(self) -> bool:
        """Whether nothing more can be read."""
        return self._closing or (self._message is None and self.end_reason() is not None)

    @property
    def n_unsent(self) -> int:
        """The number of pieces of messages that have not left this process."""
        return self._sender.n_unsent

    def close(self) -> None:
        """Close: send no more, and drop what still arrives."""
        if self._closing:
            return
        self._closing = True
        self._message = None
        wake(self._reader)
        if self._ended is None:
            self._sender.close()
            self._control.record(Record.CLOSE, self._sender.n_sent)
            self._linger()

    def on_record(self, record: Record, count: int) -> None:
        """Handle a record from the peer."""
        self.engine.note_loop_ran(time.perf_counter())
        if record in (Record.IDLE, Record.POLLING):
            sender = self._sender
            sender.peer_is_idle = record is Record.IDLE
            if sender.peer_is_idle and count < sender.n_sent:
                self._control.record(Record.DOORBELL, sender.n_sent)
            return
        self._n_announced = max(self._n_announced, count)
        if record is Record.CLOSE:
            self._peer_closed = True
            self._sender.close()
            if self._n_received >= count:
                wake(self._reader)
        if self._closing:
            self._linger()
        elif (
            self._reader is not None and not self._receiver.busy and self.expects() and self.poll()
        ):
            self.engine.watch(self)
        self._close_if_done()

    def _linger(self) -> None:
        self._start_grace()
        if not self._receiver.busy and self._ended is None:
            if self.expects():
                self.engine.watch(self)
            else:
                # Of a message that has left, UCX may have buffered a part for a full socket.
                self.engine.make_idle(self)
        self._close_if_done()

    def _close_if_done(self) -> None:
        # If the peer has closed and nothing is left to read, this end closes, too.
        if self._ended is not None or not self._peer_closed or self.expects():
            return
        if self._message is not None or self._receiver.busy:
            return
        if not self._closing:
            self.close()
        elif self._sender.empty or self._lost is not None:
            self._end(self._lost or "the connection is closed")
            self._control.close()

    def on_lost(self, reason: str) -> None:
        """Handle the loss of the TCP connection: the peer died, or both ends have closed."""
        # The number of missing messages: the peer announces none of those that it sends while this
        # end polls, or before it reads that this end is idle. A failed write discards what the
        # peer announced last.
        is_unknown = not self._peer_closed and (
            not self._announced_idle or self.expects() or self._finds_message()
        )
        if is_unknown:
            self._n_announced = sys.maxsize
        if self.expects():
            # Its last messages may still be in shared memory, until somebody reads.
            self._peer_closed = True
            self._sender.close(reason)
            self._lost = reason
            if self._message is None and (self._reader is not None or self._closing or is_unknown):
                self._linger()
        else:
            self._end(reason)

    def _finds_message(self) -> bool:
        """Return whether the peer may have sent more before it read that this end is idle."""
        n_received = self._n_received
        self._probe_last()
        unread = self._receiver.busy or self._message is not None
        return unread or self._n_received > n_received

    def _probe_last(self) -> None:
        for _ in range(N_LAST_PROBES):
            self._probe()

    def _start_grace(self) -> None:
        """Limit the wait for what the peer has announced, if it is gone."""
        self._cancel_grace()
        if self._lost is not None and self._ended is None and self.expects():
            due_s = self.engine.loop.time() + GRACE_S
            self._grace = self.engine.loop.call_at(due_s, self._on_grace, due_s)

    def _on_grace(self, due_s: float) -> None:
        is_known = self._n_announced < sys.maxsize
        if self.engine.loop.time() > due_s + GRACE_S / 10 or (is_known and SENDERS.are_blocked()):
            # The loop stood still, so that MPI was not asked for that long; or what the peer sent
            # before it closed may lie behind a slot that another sender has not written.
            self._start_grace()
        elif self._lost is not None:
            was_busy = self._receiver.busy
            self._probe_last()
            if self._receiver.busy and not was_busy:
                self._start_grace()
            elif self._message is None:
                self._end(self._lost)

    def _cancel_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _fail(self, reason: str) -> None:
        self._end(reason)
        self._control.abort()

    def _end(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        self._cancel_grace()
        self.engine.unwatch(self)
        self._abandon_receives()
        self._sender.abandon(reason)
        wake(self._reader)

    def _abandon_receives(self) -> None:
        """Release the tag once MPI fills no more buffers on it."""
        if (detached := self._release.detach()) is not None:
            self._receiver.abandon(detached[1])

    def retire(self) -> None:
        """End without the event loop, which is closed."""
        if self._ended is None:
            self._ended = "the event loop is closed"
            self._sender.close(self._ended)
            self._abandon_receives()

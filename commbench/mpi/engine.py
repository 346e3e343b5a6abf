"""The progress engine: one per event loop, over all its channels.

MPI moves nothing unless it is called. While a conversation is hot the engine calls it at every
turn of the event loop; then it backs off; and when nothing is due but messages that the peer may
or may not send, it tells the peers that it rests, stops, and waits for their doorbell.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from commbench.mpi.buffers import BUFFERS
from commbench.mpi.patience import SOON_S
from commbench.mpi.transfer import Transfer
from commbench.mpi.transfers import MAX_UNADMITTED, MOVED_S, SLICE_S, Transfers

__all__ = ["Engine", "Listening"]

EXPECT_S = 2e-3
"""How long to look at every turn for a message that the peer has announced."""
BREATH_S = 1e-3
"""So often at least the event loop has its turn."""
LOOK_S = 20e-6
"""How long a coroutine tests a request before it lets the event loop go on: a few turns of it."""
CONTENDED_S = 1e-3
CALM_S = 10e-3
"""Where yielding the core took longer than that, others want it: for this long, don't spin.

Who sleeps until the doorbell is woken at once; who yields waits until the others' time is up.
"""
FIRST_DELAY_S = 1e-3
"""The event loop's clock has steps of 1 ms."""
MAX_DELAY_S = 20e-3
SAFETY_S = 0.5
"""While channels rest, MPI is called so often: for what libraries below have left to do."""


class Listening(Protocol):
    """A channel, as the engine sees it."""

    spin_until: float

    def poll(self) -> bool:
        """Look for a message; return whether to go on looking."""

    def expects(self) -> bool:
        """Return whether a message is known to be under way."""

    def rest(self) -> None:
        """Tell the peer that nobody looks any more, and the engine."""


class Engine:
    """Polls MPI on behalf of the channels of one event loop."""

    _engines: ClassVar[dict[asyncio.AbstractEventLoop, Engine]] = {}
    _orphans: ClassVar[deque[Transfer]] = deque()
    """What closed event loops have left, for the next engine that comes along."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._transfers = Transfers()
        self._parked: list[Transfer] = []
        self._listening: dict[Listening, None] = {}
        self._resting: weakref.WeakSet[Listening] = weakref.WeakSet()
        self._handle: asyncio.Handle | None = None
        self._sleeping = True
        self._delay = 0.0
        self._contended_until = 0.0
        self._breathe_at = self._care_at = 0.0

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Engine:
        """Return the engine of `loop`."""
        engine = cls._engines.get(loop)
        if engine is None:
            engine = cls._engines[loop] = cls(loop)
            # Only the event loop refers to it, until it is closed.
            never_called = functools.partial(bool)
            weakref.finalize(never_called, engine._retire).atexit = False
            loop.call_later(1e9, never_called)
            engine._wake()
        return engine

    def _retire(self) -> None:
        """Let go of a closed event loop, and leave to other engines what MPI has not completed."""
        for transfer in (*self._transfers, *self._parked):
            transfer.forget()
            self._orphans.append(transfer)
        for collection in (self._transfers, self._parked, self._listening):
            collection.clear()
        self._handle, self._sleeping = None, True
        if (loop := self._loop()) is not None:
            self._engines.pop(loop, None)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop; every method must be called in its thread."""
        loop = self._loop()
        assert loop is not None, "the event loop is gone"
        return loop

    def start(self, transfer: Transfer) -> None:
        """See `transfer` to its end, which may be now."""
        if transfer.advance():
            transfer.finish()
            return
        self._transfers.append(transfer)
        self._wake()

    def admit(self, transfer: Transfer) -> None:
        """Post a receive when its turn comes, and see it to its end."""
        if transfer.nbytes > MAX_UNADMITTED:
            self._transfers.wait(transfer)
            self._wake()
        elif transfer.post():
            self.start(transfer)

    async def breathe(self) -> None:
        """Let the event loop go on, where its coroutines have not for a while.

        Messages that are always there at once would otherwise keep it from everything else.
        """
        if time.perf_counter() > self._breathe_at:
            await asyncio.sleep(0)
            self.take_breath(time.perf_counter())

    def take_breath(self, now: float) -> None:
        """Take note that the event loop goes on; to be told in its callbacks."""
        self._breathe_at = now + BREATH_S

    async def complete(self, request: Any, buffer: Any, *, receives: bool) -> None:
        """Wait for one request of MPI, which reads or writes the array `buffer`.

        Raises
        ------
        mpi4py.MPI.Exception
            Where MPI says so.
        """
        await self.breathe()
        until = 0.0
        while not request.Test():
            now = time.perf_counter()
            if not until:
                until = now + LOOK_S
            elif now > until:
                break
        else:
            return
        done = self.loop.create_future()

        def on_done(_: Transfer, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self.start(Transfer([request], buffer, buffer.nbytes, receives, on_done))
        await done

    def park(self, transfer: Transfer) -> None:
        """Keep a transfer whose peer is gone, and its buffers: it may never complete."""
        self._transfers.drop(transfer)
        if not transfer.advance():
            self._parked.append(transfer)
            self._wake()

    def listen(self, channel: Listening, patience_s: float = EXPECT_S) -> None:
        """Look for messages to `channel` until its `poll` says no, or it rests."""
        channel.spin_until = time.perf_counter() + patience_s
        self._listening[channel] = None
        self._resting.discard(channel)
        self._wake()

    def rest(self, channel: Listening) -> None:
        """Don't look for messages to `channel`: its peer rings for each."""
        self._listening.pop(channel, None)
        self._resting.add(channel)
        if self._handle is None:
            self._schedule(spin=False)

    def look_now(self, channel: Listening) -> None:
        """Look for a message to `channel` for `SOON_S` without a turn of the event loop.

        Such a turn costs about 10 µs, and another one until the reader goes on. So this is for
        answers that are known to come that soon, while the engine has nothing else to do.
        """
        if self._listening or self._transfers.any:
            return
        now = time.perf_counter()
        until = now + SOON_S
        while self._contended_until < now < until and channel.poll():
            self._yield_core(now)
            now = time.perf_counter()

    def ignore(self, channel: Listening) -> None:
        """Stop looking."""
        self._listening.pop(channel, None)
        self._resting.discard(channel)

    def _wake(self) -> None:
        self._delay = 0.0
        if self._sleeping:
            if self._handle is not None:
                self._handle.cancel()
            if (loop := self._loop()) is None or loop.is_closed():
                self._retire()
                return
            self._sleeping = False
            self._handle = loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._sleeping = False
        spin = False
        try:
            spin = self._look()
        finally:
            self._schedule(spin)

    def _look(self) -> bool:
        """Call MPI for all that is due; return whether to do so again at the next turn."""
        # What is called below may start and end transfers and channels.
        moved = progressed = False
        self._transfers.admit()
        if self._transfers:
            moved, progressed = self._transfers.advance(self._delay)
        now = time.perf_counter()
        self.take_breath(now)
        if now > self._care_at or self._orphans:
            moved = self._care(now) or moved
        calm = now > self._contended_until
        spin = False
        for channel in list(self._listening):
            if time.perf_counter() - now > SLICE_S:
                spin = True
                break
            # Behind the others, which have their turn first where the time is up.
            self._listening.pop(channel, None)
            self._listening[channel] = None
            if not channel.poll():
                self._listening.pop(channel, None)
                progressed = True
            elif channel.spin_until > now and (calm or channel.expects()):
                # MPI needs more than one call to find what the peer has rung for.
                spin = True
            elif not channel.expects():
                channel.rest()
        # Now, for what has arrived may have begun a transfer.
        spin = spin or moved or (calm and any(t.spin_until > now for t in self._transfers))
        if spin and not moved and not progressed:
            self._yield_core(now)
        return spin

    def _care(self, now: float) -> bool:
        """See to what nobody waits for; return whether data moved."""
        with suppress(IndexError):  # Another thread's engine may be quicker.
            while self._orphans:
                self._parked.append(self._orphans.popleft())
        began = time.perf_counter()
        self._parked = [transfer for transfer in self._parked if not transfer.advance()]
        moved = time.perf_counter() - began > MOVED_S * (1 + len(self._parked))
        self._care_at = now if moved else now + SAFETY_S
        BUFFERS.trim()
        return moved

    def _yield_core(self, now: float) -> None:
        # On a busy machine the peer may be waiting for this very core.
        os.sched_yield()
        yielded = time.perf_counter()
        if yielded - now > CONTENDED_S:
            self._contended_until = yielded + CALM_S

    def _schedule(self, spin: bool) -> None:
        loop = self.loop
        if spin:
            self._delay = 0.0
            self._handle = loop.call_soon(self._turn)
        elif self._transfers.any or self._listening:
            self._sleeping = True
            self._delay = min(max(self._delay * 1.5, FIRST_DELAY_S), MAX_DELAY_S)
            self._handle = loop.call_later(self._delay, self._turn)
        elif self._resting or self._parked or BUFFERS.n_free_bytes:
            self._sleeping = True
            self._handle = loop.call_later(SAFETY_S, self._check)
        else:
            self._sleeping = True
            self._handle = None

    def _check(self) -> None:
        # Correct without it: every message is rung for. It lets MPI finish what it still owes
        # the peers, such as the set-up of a connection.
        self._sleeping = False
        for channel in list(self._resting):
            channel.poll()
        self._turn()

"""The progress engine: one per event loop, for all its channels.

MPI progresses only while it is called. The engine calls it in every iteration of the event loop
while messages follow each other closely; then less and less often. Once nothing is pending, it
asks the peers to ring (`Record.IDLE`), and calls MPI only every `SAFETY_S` until a doorbell rings.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from commbench.mpi.buffers import BUFFERS
from commbench.mpi.spin_policy import SOON_S
from commbench.mpi.transfers import MAX_UNADMITTED, MOVED_S, SLICE_S, Transfer, Transfers

__all__ = ["Engine", "Watched"]

ANNOUNCED_SPIN_S = 2e-3
"""How long to poll in every iteration of the loop for a message that the peer has announced."""
MAX_HOLD_S = 1e-3
"""The longest time that coroutines receive messages without letting the event loop run."""
TEST_S = 20e-6
"""How long a coroutine tests a request before it awaits: a few iterations of the loop."""
CONTENDED_S = 1e-3
BACK_OFF_S = 10e-3
"""If yielding the core lasted longer than the first, other processes want it: for the second, don't
spin. A process that sleeps is woken by the doorbell at once; one that yields waits for its turn.
"""
FIRST_DELAY_S = 1e-3
"""The event loop's clock has steps of 1 ms."""
MAX_DELAY_S = 20e-3
SAFETY_S = 0.5
"""The period of calls to MPI while all channels are idle: libraries below may need progress."""


class Watched(Protocol):
    """The interface of a channel to the engine, which polls for it."""

    spin_until: float

    def poll(self) -> bool:
        """Probe for a message; return whether to keep polling."""

    def expects(self) -> bool:
        """Return whether the peer has announced a message that has not arrived."""

    def go_idle(self) -> None:
        """Tell the peer to ring, and the engine to stop polling."""

    def retire(self) -> None:
        """End without the event loop, which is closed."""


class Engine:
    """Polls MPI on behalf of the channels of one event loop."""

    _engines: ClassVar[dict[asyncio.AbstractEventLoop, Engine]] = {}
    _orphans: ClassVar[deque[Transfer]] = deque()
    """Transfers of closed event loops; the next engine that runs adopts them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._transfers = Transfers()
        self._parked: list[Transfer] = []
        self._channels: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._watched: dict[Watched, None] = {}
        self._idle: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._unpolled: list[weakref.ref[Watched]] = []
        self._handle: asyncio.Handle | None = None
        self._sleeping = True
        self._delay = 0.0
        self._contended_until = 0.0
        self._yield_at = self._parked_at = 0.0

    @classmethod
    def for_loop(cls, loop: asyncio.AbstractEventLoop) -> Engine:
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
        """Drop a closed event loop, and leave its incomplete transfers to other engines."""
        for channel in list(self._channels):
            channel.retire()
        for transfer in self._transfers.drop_all():
            transfer.forget()
            self._orphans.append(transfer)
        self._orphans.extend(self._parked)
        self._parked.clear()
        self._watched.clear()
        self._handle, self._sleeping = None, True
        BUFFERS.remove_trimmer(self)
        if (loop := self._loop()) is not None:
            self._engines.pop(loop, None)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop; every method must be called in its thread."""
        loop = self._loop()
        assert loop is not None, "the event loop is gone"
        return loop

    def start(self, transfer: Transfer) -> None:
        """Progress `transfer` until it is complete."""
        # Before MPI is called: an interrupt would lose it.
        self._transfers.append(transfer)
        if transfer.advance():
            self._transfers.pop()
            transfer.finish()
            return
        self._wake()

    def extend(self, transfer: Transfer, request: Any, buffer: Any, nbytes: int) -> None:
        """Add a request to a transfer that was started, and progress it soon."""
        transfer.extend(request, buffer, nbytes)
        self._wake()

    def admit(self, transfer: Transfer) -> None:
        """Post a receive, at once or when others are complete, and progress it."""
        if transfer.nbytes > MAX_UNADMITTED:
            self._transfers.wait(transfer)
            self._wake()
        elif transfer.post():
            self.start(transfer)

    async def yield_to_loop(self) -> None:
        """Let the event loop run if it has not for `MAX_HOLD_S`.

        A stream of messages that have all arrived already would otherwise starve it.
        """
        if time.perf_counter() > self._yield_at:
            await asyncio.sleep(0)
            self.note_loop_ran(time.perf_counter())

    def note_loop_ran(self, now: float) -> None:
        """Record that the event loop runs; to be called in its callbacks."""
        self._yield_at = now + MAX_HOLD_S

    async def complete(self, request: Any, buffer: Any, *, receives: bool) -> None:
        """Await one MPI request on `buffer`.

        Raises
        ------
        mpi4py.MPI.Exception
            If the request failed.
        """
        try:
            await self.yield_to_loop()
        except BaseException:
            self.park([Transfer([request], buffer, buffer.nbytes, receives, None)])
            raise
        until = 0.0
        while not request.Test():
            now = time.perf_counter()
            if not until:
                until = now + TEST_S
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

    def add(self, channel: Watched) -> None:
        """Call the channel's `retire` if the event loop is closed."""
        self._channels.add(channel)

    def park(
        self,
        transfers: Collection[Transfer],
        then: Callable[[], None] | None = None,
        *,
        cancel: bool = False,
    ) -> None:
        """Keep transfers and their buffers though the peer is gone: they may never complete.

        When one does, `then` is called, and no other callback. `cancel` has MPI give them up.
        """
        self._transfers.drop(transfers)
        loop = self._loop()
        is_closed = loop is None or loop.is_closed()
        for transfer in transfers:
            transfer.forget(then)
            if transfer.advance():
                transfer.finish()
                continue
            if cancel:
                # Once it is an orphan, another thread may test what MPI cancels.
                transfer.cancel()
            if is_closed:
                self._orphans.append(transfer)
            else:
                self._parked.append(transfer)
                self._wake()

    def watch(self, channel: Watched, spin_s: float = ANNOUNCED_SPIN_S) -> None:
        """Poll for messages to `channel` until its `poll` returns False, or it goes idle."""
        channel.spin_until = time.perf_counter() + spin_s
        self._watched[channel] = None
        self._idle.discard(channel)
        self._wake()

    def make_idle(self, channel: Watched) -> None:
        """Stop polling for `channel`: its peer rings for each message."""
        self._watched.pop(channel, None)
        self._idle.add(channel)
        if self._handle is None:
            self._schedule(spin=False)

    def spin(self, channel: Watched) -> None:
        """Poll for a message to `channel` for up to `SOON_S`, without the event loop.

        An iteration of the event loop takes about 10 µs, and it takes two to wake a reader. This is
        for answers that come about that soon, while the engine has nothing else to do.
        """
        if self._watched or self._transfers.any:
            return
        now = time.perf_counter()
        until = now + SOON_S
        while self._contended_until < now < until and channel.poll():
            self._yield_core(now)
            now = time.perf_counter()

    def unwatch(self, channel: Watched) -> None:
        """Forget `channel`."""
        self._watched.pop(channel, None)
        self._idle.discard(channel)

    def _wake(self) -> None:
        self._delay = 0.0
        if self._sleeping:
            if self._handle is not None:
                self._handle.cancel()
            if (loop := self._loop()) is None or loop.is_closed():
                self._retire()
                return
            self._sleeping = False
            self._handle = loop.call_soon(self._step)

    def _step(self) -> None:
        self._sleeping = False
        spin = False
        try:
            spin = self._progress()
        finally:
            self._schedule(spin)

    def _progress(self) -> bool:
        """Call MPI for all that is due; return whether to do so in the next iteration, too."""
        # The calls below may start and end transfers and channels.
        moved = progressed = False
        self._transfers.admit()
        if self._transfers:
            moved, progressed = self._transfers.advance(self._delay)
        now = time.perf_counter()
        self.note_loop_ran(now)
        if now > self._parked_at or self._orphans:
            moved = self._progress_parked(now) or moved
        calm = now > self._contended_until
        spin = False
        for channel in list(self._watched):
            if time.perf_counter() - now > SLICE_S:
                spin = True
                break
            # To the end of the queue: if the time is up, the others come first next time.
            self._watched.pop(channel, None)
            self._watched[channel] = None
            if not channel.poll():
                self._watched.pop(channel, None)
                progressed = True
            elif channel.spin_until > now and (calm or channel.expects()):
                # MPI needs more than one call to find what the peer has rung for.
                spin = True
            elif not channel.expects():
                channel.go_idle()
        # Only now: what has arrived may have started a transfer.
        spin = spin or moved or (calm and any(t.spin_until > now for t in self._transfers))
        if spin and not moved and not progressed:
            self._yield_core(now)
        return spin

    def _progress_parked(self, now: float) -> bool:
        """Progress parked transfers, and trim buffers; return whether data moved."""
        with suppress(IndexError):  # Another thread's engine may pop the last one first.
            while self._orphans:
                self._parked.append(self._orphans.popleft())
        began = time.perf_counter()
        complete = [transfer for transfer in self._parked if transfer.advance()]
        self._parked = [transfer for transfer in self._parked if transfer.requests]
        for transfer in complete:
            transfer.finish()
        moved = time.perf_counter() - began > MOVED_S * (1 + len(self._parked))
        self._parked_at = now if moved else now + SAFETY_S
        BUFFERS.trim()
        return moved

    def _yield_core(self, now: float) -> None:
        # On a busy machine the peer may be waiting for this very core.
        os.sched_yield()
        yielded = time.perf_counter()
        if yielded - now > CONTENDED_S:
            self._contended_until = yielded + BACK_OFF_S

    def _schedule(self, spin: bool) -> None:
        loop = self.loop
        if spin:
            self._delay = 0.0
            self._handle = loop.call_soon(self._step)
        elif self._transfers.any or self._watched:
            self._sleeping = True
            self._delay = min(max(self._delay * 1.5, FIRST_DELAY_S), MAX_DELAY_S)
            self._handle = loop.call_later(self._delay, self._step)
        elif self._idle or self._parked or BUFFERS.n_free_bytes:
            self._sleeping = True
            delay = FIRST_DELAY_S if self._unpolled else SAFETY_S
            self._handle = loop.call_later(delay, self._safety_step)
        else:
            self._sleeping = True
            self._handle = None
        if self._handle is None:
            BUFFERS.remove_trimmer(self)
        else:
            BUFFERS.add_trimmer(self)

    def _safety_step(self) -> None:
        # Not needed to receive: the peers ring for every message. MPI may have other work to
        # progress, such as setting up a connection.
        self._sleeping = False
        began = time.perf_counter()
        self._unpolled = self._unpolled or list(map(weakref.ref, self._idle))
        try:
            while self._unpolled and time.perf_counter() - began < SLICE_S:
                channel = self._unpolled.pop()()
                if channel is not None and channel in self._idle:
                    channel.poll()
        finally:
            self._step()

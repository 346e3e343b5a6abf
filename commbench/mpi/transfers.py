"""Sends and receives that MPI has begun and not completed.

`Transfers` decides which transfer is tested next, and which receive is posted.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

__all__ = ["INTERRUPTED", "MAX_UNADMITTED", "MOVED_S", "SLICE_S", "Transfer", "Transfers"]

logger = logging.getLogger(__name__)

SPIN_S = 2e-3
RECEIVE_SECONDS_PER_BYTE = 10e-9
SEND_SECONDS_PER_BYTE = 1e-9
"""The time within which a transfer is expected to be complete; until then it is polled."""
MAX_SPIN_S = 1.0
"""Polling ends that long after the last request was complete: the peer may stand still. What a
network card moves can't be seen; 1 GB/s is enough for a piece of 1 GiB.
"""
MOVED_S = 10e-6
"""A call to MPI that lasts longer has moved a fragment of a large message, and the next call will
move another: MPI returns after half a MB or less.
"""
BULK = 64 * 1024
BULK_SHARE = 0.1
"""A larger message that is overdue still gets this share of a core."""
SLICE_S = 500e-6
"""The time that one step moves fragments, and polls, before the event loop runs."""
MAX_UNADMITTED = 2**20
"""A larger receive waits until it is admitted."""
MAX_MOVING = 32 * 2**20
"""The bytes of the admitted receives that still move, unless it is a single larger one."""
STILL_S = 10e-3
"""Where nothing has moved for that long, others are admitted: the senders may stand still."""
INTERRUPTED: list[Any] = []
"""Buffers for good: an interrupt may lose the request by which MPI uses one of them."""


class Transfer:
    """Requests that belong together, and what they read or write.

    Parameters
    ----------
    requests
        In the order in which MPI will complete them, or nearly so.
    buffers
        Kept until the requests are complete; of a deque, each until its request is.
    nbytes
        The bytes of all requests; if there is a buffer for each, those of the largest.
    receives
        Whether they receive: within a host that is where the work of a large message is done.
    on_done
        Called once, with this and the error if there was one.
    post
        Adds the requests and the buffers later; returns whether it could.

    Attributes
    ----------
    buffers, nbytes, receives
        As given.
    requests
        Those that are incomplete.
    due
        When it should be complete, if it moves.
    spin_until
        When to stop polling for it.
    """

    __slots__ = (
        "_error", "_on_done", "_post", "buffers", "due", "nbytes", "receives", "requests",
        "spin_until",
    )  # fmt: skip

    def __init__(
        self,
        requests: list[Any],
        buffers: Any,
        nbytes: int,
        receives: bool,
        on_done: Callable[[Transfer, BaseException | None], None] | None,
        post: Callable[[], bool] | None = None,
    ) -> None:
        self.requests = deque(requests)
        self._on_done = on_done
        self._post = post
        self._error: BaseException | None = None
        self.buffers = buffers
        self.nbytes = nbytes
        self.receives = receives
        self._expect()

    def _expect(self) -> None:
        now = time.perf_counter()
        per_byte = RECEIVE_SECONDS_PER_BYTE if self.receives else SEND_SECONDS_PER_BYTE
        self.due = now + SPIN_S + self.nbytes * per_byte
        self.spin_until = min(self.due, now + MAX_SPIN_S)

    def extend(self, request: Any, buffer: Any, nbytes: int) -> None:
        """Add a request that MPI completes after all others, or nearly so, and what it reads.

        The buffers are a deque with one for each request: they are released one by one.
        """
        # In this order: after an interrupt a buffer may stay, and none may be missing.
        self.buffers.append(buffer)
        self.requests.append(request)
        self.nbytes = max(self.nbytes, nbytes)
        self._expect()

    def post(self) -> bool:
        """Post a receive that has waited; return whether that succeeded."""
        self._expect()
        post, self._post = self._post, None
        return post is None or post()

    def advance(self) -> bool:
        """Call MPI; return whether all is complete."""
        requests, began = self.requests, time.perf_counter()
        # Only the first that is incomplete needs a test: all of them have to complete anyway.
        while requests:
            try:
                if not requests[0].Test():
                    return False
            except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
                self._error = error
            requests.popleft()
            now = time.perf_counter()
            self.spin_until = min(self.due, now + MAX_SPIN_S)
            if type(self.buffers) is deque:
                self.buffers.popleft()
                if now - began > SLICE_S:
                    return not requests
        return True

    def cancel(self) -> None:
        """Ask MPI to give up the receives: they still have to complete."""
        for request in self.requests:
            try:
                request.Cancel()
            except Exception:
                logger.debug("MPI can't cancel %s", request, exc_info=True)

    def forget(self, then: Callable[[], None] | None = None) -> None:
        """Drop the callbacks, and call only `then` at the end; requests and buffers stay."""
        self._on_done = None if then is None else lambda *_: then()
        self._post = None

    @property
    def has_failed_early(self) -> bool:
        """Whether a request failed whose buffer nothing else uses, while others go on."""
        return self._error is not None and type(self.buffers) is deque

    def finish(self) -> None:
        """Report the end."""
        self.buffers = None
        self.report()

    def report(self) -> None:
        """Report the end, or an error before it, unless that was reported."""
        on_done, self._on_done = self._on_done, None
        if on_done is None:
            return
        try:
            on_done(self, self._error)
        except Exception:
            # The engine must go on for all the others.
            logger.exception("A transfer could not be reported")


class Transfers(deque[Transfer]):
    """Transfers in the order in which they are tested, and the large receives that wait.

    Large receives are posted a few at a time, in the order in which they arrive: their memory stays
    in cache, and each is complete sooner than if all progressed in turns.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[Transfer] = deque()
        self._moved_at = 0.0

    @property
    def any(self) -> bool:
        """Whether there are any, begun or waiting."""
        return bool(self or self._waiting)

    def wait(self, transfer: Transfer) -> None:
        """Queue a receive to be posted later."""
        self._waiting.append(transfer)
        self.admit()

    def admit(self) -> None:
        """Post waiting receives, up to `MAX_MOVING` bytes in progress."""
        if not self._waiting:
            return
        now = time.perf_counter()
        moving = [t.nbytes for t in self if t.receives and t.due > now]
        n_moving = sum(moving) if now - self._moved_at < STILL_S else 0
        while self._waiting and (not n_moving or n_moving + self._waiting[0].nbytes <= MAX_MOVING):
            transfer = self._waiting.popleft()
            n_moving += transfer.nbytes
            self._moved_at = now
            if transfer.post():
                self.append(transfer)

    def drop(self, transfers: Collection[Transfer]) -> None:
        """Remove transfers; post those that wait, because their senders may wait for that."""
        dropped = set(transfers)
        kept = [transfer for transfer in self if transfer not in dropped]
        self.clear()
        self.extend(kept)
        waiting = [transfer for transfer in self._waiting if transfer in dropped]
        self._waiting = deque(transfer for transfer in self._waiting if transfer not in dropped)
        for transfer in waiting:
            transfer.post()

    def drop_all(self) -> list[Transfer]:
        """Remove all, as `drop` does, and return them."""
        transfers = [*self, *self._waiting]
        self.drop(transfers)
        return transfers

    def advance(self, delay_s: float) -> tuple[bool, bool]:
        """Call MPI for all; return whether data moved, and whether a transfer ended.

        It repeats while data moves. With a large message it also repeats for a tenth of `delay_s`,
        the time since the last call. If the time is up, the next call begins with the next
        transfer.
        """
        moved = ended = False
        began = called = time.perf_counter()
        n_still = 0
        while self:
            transfer = self[0]
            complete = transfer.advance()
            # Not before: an interrupt of MPI would lose it.
            self.rotate(-1)
            now = time.perf_counter()
            n_still += 1
            moves = now - called > MOVED_S
            if moves:
                moved, n_still = True, 0
            if (moves or complete) and transfer.receives and transfer.nbytes > MAX_UNADMITTED:
                self._moved_at = now
            if complete:
                ended = True
                self.pop()
                transfer.finish()
                self.admit()
            elif transfer.has_failed_early:
                # The others may never be complete.
                transfer.report()
            called = time.perf_counter()
            spent = called - began
            if n_still < len(self):
                if spent > SLICE_S:
                    break
            elif spent >= delay_s * BULK_SHARE or not any(t.nbytes >= BULK for t in self):
                break
        return moved, ended

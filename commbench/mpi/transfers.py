"""The transfers of an engine: which call of MPI comes next, and which receive is posted."""

from __future__ import annotations

import time
from collections import deque

from commbench.mpi.transfer import Transfer

__all__ = ["MAX_UNADMITTED", "MOVED_S", "SLICE_S", "Transfers"]

MOVED_S = 10e-6
"""A call to MPI that takes so long has moved a fragment of a large message, and the next one
will move another: MPI stops after half a MB or less.
"""
BULK = 64 * 1024
BULK_SHARE = 0.1
"""Where a message larger than that takes longer, it still gets this share of a core."""
SLICE_S = 500e-6
"""For how long one turn moves fragments, and looks for messages, before the event loop goes on."""
MAX_UNADMITTED = 2**20
"""A larger receive waits until it is admitted."""
MAX_MOVING = 32 * 2**20
"""The bytes of the admitted receives that still move, unless it is a single larger one."""
STILL_S = 10e-3
"""Where nothing has moved for that long, others are admitted: the senders may stand still."""


class Transfers(deque[Transfer]):
    """Those that MPI has begun, in the order in which they are tested.

    Large receives are admitted a few at a time, first come first served: their memory stays warm,
    and the last of many need not wait for all others to move by turns.
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
        """Post a receive when its turn comes."""
        self._waiting.append(transfer)
        self.admit()

    def admit(self) -> None:
        """Post those whose turn it is."""
        if not self._waiting:
            return
        now = time.perf_counter()
        moving = [t.nbytes for t in self if t.receives and t.spin_until > now]
        n_moving = sum(moving) if now - self._moved_at < STILL_S else 0
        while self._waiting and (not n_moving or n_moving + self._waiting[0].nbytes <= MAX_MOVING):
            transfer = self._waiting.popleft()
            n_moving += transfer.nbytes
            self._moved_at = now
            if transfer.post():
                self.append(transfer)

    def drop(self, transfer: Transfer) -> None:
        """Take out a transfer, wherever it is."""
        for transfers in (self, self._waiting):
            if transfer in transfers:
                transfers.remove(transfer)

    def clear(self) -> None:
        """Take out all."""
        super().clear()
        self._waiting.clear()

    def advance(self, delay_s: float) -> tuple[bool, bool]:
        """Call MPI for all; return whether data moved, and whether a transfer ended.

        It goes on at once while data moves, and where there is a large message for a share of
        `delay_s`, the time since the last turn. Where the time is up, the next turn goes on
        with the next transfer.
        """
        moved = ended = False
        began = called = time.perf_counter()
        n_still = 0
        while self:
            transfer = self.popleft()
            complete = transfer.advance()
            now = time.perf_counter()
            n_still += 1
            moves = now - called > MOVED_S
            if moves:
                moved, n_still = True, 0
            if (moves or complete) and transfer.receives and transfer.nbytes > MAX_UNADMITTED:
                self._moved_at = now
            if complete:
                ended = True
                transfer.finish()
                self.admit()
            else:
                self.append(transfer)
            called = time.perf_counter()
            spent = called - began
            if n_still < len(self):
                if spent > SLICE_S:
                    break
            elif spent >= delay_s * BULK_SHARE or not any(t.nbytes >= BULK for t in self):
                break
        return moved, ended

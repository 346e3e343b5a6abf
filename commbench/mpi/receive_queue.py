"""UCX's receive queue in shared memory, freed of slots that a dead sender left unwritten.

All processes of a host write to one queue of the receiver. A sender takes the next slot, attaches
more of the receiver's memory if it needs that, writes its message, and marks the slot as written;
the receiver reads the slots in their order (``uct_mm_ep_am_common_send`` and
``uct_mm_iface_poll_fifo`` in UCX 1.20, ``src/uct/sm/mm/base``). So a sender that is killed between
the first and the last of these leaves the receiver deaf to all others, for ever: UCX has no way
out of it. Here the receiver writes an empty message into that slot.

That is safe only if no living process will still write there. See `Senders.look`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from commbench.mpi.shared_memory import mapped

__all__ = ["SENDERS", "ReceiveQueue", "Senders"]

PATIENCE_S = 0.5
"""How long a slot stays unwritten before its sender may count as dead."""

_N_SLOTS, _SLOT_BYTES, _FIRST_SLOT = 256, 128, 192
"""UCX's default size of the queue, and where its slots begin."""
_PID_OFFSET = 136
_SEGMENT_OFFSET = 4
"""Where a slot names the segment for what does not fit in it."""
_WRITTEN, _INLINE = 1, 2
"""Flags of a slot. That for *written* is set in every other round through the queue."""
_UNKNOWN_MESSAGE = 31
"""The largest id of a message in UCX. It handles none that has it, and drops it with a warning."""


class ReceiveQueue:
    """The queue in which this process receives, at an address.

    Parameters
    ----------
    address
        Of the segment that it is in.
    """

    def __init__(self, address: int) -> None:
        size = _FIRST_SLOT + _N_SLOTS * _SLOT_BYTES
        self._bytes = memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")
        self._address = address

    @classmethod
    def find(cls, segments: Iterable[int]) -> ReceiveQueue | None:
        """Return the queue that is in one of these segments of this process; None if none is.

        To be called before anything has been received: all slots must be as UCX makes them, or this
        is another version of UCX, or the queue has another size.
        """
        if sys.byteorder != "little":
            return None
        own = set(segments)
        for start, end in mapped(own):
            if end - start >= _FIRST_SLOT + _N_SLOTS * _SLOT_BYTES:
                queue = cls(start)
                if queue._is_new(own):
                    return queue
        return None

    def _is_new(self, segments: set[int]) -> bool:
        pid = int.from_bytes(self._bytes[_PID_OFFSET : _PID_OFFSET + 4], "little")
        first = range(_FIRST_SLOT, len(self._bytes), _SLOT_BYTES)
        named = {
            int.from_bytes(self._bytes[i + _SEGMENT_OFFSET : i + _SEGMENT_OFFSET + 8], "little")
            for i in first
        }
        return (
            self.head == 0
            and pid == os.getpid()
            and {self._bytes[i] for i in first} == {_WRITTEN}
            and named <= segments
        )

    @property
    def head(self) -> int:
        """The number of slots that were taken so far."""
        # The uppermost bit is a flag.
        return ctypes.c_uint64.from_address(self._address).value & (2**63 - 1)

    def unwritten(self) -> list[int]:
        """Return the numbers of the slots that were taken and have not been written."""
        head = self.head
        flags = self._bytes[_FIRST_SLOT::_SLOT_BYTES].tobytes()
        return [
            number
            for number in range(max(0, head - _N_SLOTS), head)
            if flags[number % _N_SLOTS] & _WRITTEN != number // _N_SLOTS % 2
        ]

    def take(self) -> int:
        """Take a slot, as a sender would that nobody competes with, and return its number."""
        number = self.head
        ctypes.c_uint64.from_address(self._address).value = number + 1
        return number

    def skip(self, number: int) -> None:
        """Write an empty message into a slot."""
        address = self._address + _FIRST_SLOT + number % _N_SLOTS * _SLOT_BYTES
        # Flags, id and length, in one store: the receiver may look at any time.
        flags = _INLINE | (number // _N_SLOTS % 2) * _WRITTEN
        ctypes.c_uint32.from_address(address).value = flags | _UNKNOWN_MESSAGE << 8


class _Seen(NamedTuple):
    at: float
    threads: dict[int, dict[str, tuple[str, int]]]


class Senders:
    """The processes on this host that can write into this process's queue."""

    def __init__(self) -> None:
        self.queue: ReceiveQueue | None = None
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._seen: dict[int, _Seen] = {}

    def add(self, pid: int) -> None:
        """Add a process, before it can write."""
        with self._lock:
            self._pids.add(pid)

    def look(self) -> bool:
        """Skip slots of dead senders; return whether there are slots to look at again soon.

        A slot is skipped if it has been unwritten for `PATIENCE_S`, a sender has died, and each
        thread of all others has since slept or used the processor. A thread does neither for that
        long while it writes: not even where it is stopped, or waits for a core or for memory.
        """
        if self.queue is None:
            return False
        with self._lock:
            now, slots = time.monotonic(), self.queue.unwritten()
            threads = {pid: _threads(pid) for pid in self._pids}
            alive = {pid for pid in self._pids if threads[pid]}
            new = _Seen(now, threads)
            self._seen = {number: self._seen.get(number, new) for number in slots}
            if not slots:
                self._pids = alive
            elif alive != self._pids:
                for number, seen in self._seen.items():
                    if now - seen.at >= PATIENCE_S and not any(
                        _may_write(seen.threads.get(pid, {}), threads[pid]) for pid in alive
                    ):
                        self.queue.skip(number)
            return bool(slots)


def _threads(pid: int) -> dict[str, tuple[str, int]]:
    """Return the state, and the ticks of CPU time, of each thread of a process that lives."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            state, *fields = thread.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state not in "ZX":
            found[thread.parent.name] = (state, int(fields[10]) + int(fields[11]))
    return found


def _may_write(before: dict[str, tuple[str, int]], now: dict[str, tuple[str, int]]) -> bool:
    """Return whether a thread may have been in the middle of a write all the time."""
    return any(
        thread in before and state not in "SI" and ticks == before[thread][1]
        for thread, (state, ticks) in now.items()
    )


SENDERS = Senders()
"""Those of this process."""

"""Skip slots of UCX's receive queue in shared memory that a dead sender left unwritten.

All processes of a host write to one queue of the receiver. A sender reserves the next slot,
attaches more of the receiver's memory if necessary, writes its message, and marks the slot as
written; the receiver reads the slots in order (``uct_mm_ep_am_common_send`` and
``uct_mm_iface_poll_fifo`` in UCX 1.20, ``src/uct/sm/mm/base``). A sender that is killed after the
first step and before the last therefore blocks the queue for all other senders, and UCX never
recovers. Here the receiver writes an empty message into that slot.

This is safe only if no living process will still write there; see `Senders.skip_abandoned`.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from commbench.mpi.shared_memory import mapped

__all__ = ["SENDERS", "ReceiveQueue", "Senders", "has_ended", "started_at"]

logger = logging.getLogger(__name__)

ABANDONED_S = 0.5
"""How long a slot must have been unwritten before it is skipped."""
RAN_TICKS = 2
"""The increase of a thread's user time, in clock ticks, that proves that it ran.

The count is rounded down. System time proves nothing: a page fault within a write may last long.
"""

_N_SLOTS, _SLOT_BYTES, _FIRST_SLOT = 256, 128, 192
"""UCX's default size of the queue, and where its slots begin."""
_QUEUE_BYTES = _FIRST_SLOT + _N_SLOTS * _SLOT_BYTES
_HEADER_BYTES = 28
"""The first bytes of a slot; the rest is zero until the slot is used."""
_CACHE_LINE_BYTES = 64
_PID_OFFSET = 136
_SEGMENT_OFFSET = 4
"""Offset of the name of the segment with what does not fit into a slot."""
_WRITTEN, _INLINE = 1, 2
"""Flags of a slot. That for *written* is set in every other round through the queue."""
_UNKNOWN = -1
_ENDED = (b"Z", b"X")
"""The states of a process or thread that has ended."""
_EXITING = 0x4
"""``PF_EXITING``: the kernel closes a process's connections before it is a zombie."""
_UNKNOWN_MESSAGE = 31
"""The largest message id in UCX. It has no handler: UCX drops such a message with a warning."""


class ReceiveQueue:
    """The receive queue of this process.

    Parameters
    ----------
    address
        The address at which its segment is mapped.
    """

    def __init__(self, address: int) -> None:
        self._bytes = memoryview((ctypes.c_uint8 * _QUEUE_BYTES).from_address(address)).cast("B")
        self._address = address

    @classmethod
    def find(cls, segments: Iterable[int]) -> ReceiveQueue | None:
        """Return the queue in one of these segments of this process, or None.

        It must be called before anything has been received. Any slot that is not as UCX 1.20
        initializes it means another version of UCX, or another size of the queue.
        """
        if sys.byteorder != "little":
            return None
        ids = set(segments)
        for start, end in mapped(ids):
            # UCX asks for a cache line more, and the kernel rounds up to pages.
            if end - start == _rounded(_QUEUE_BYTES + _CACHE_LINE_BYTES - 1, mmap.PAGESIZE):
                queue = cls(start)
                if queue._is_new(ids):
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
            # Otherwise slots of 64 bytes would pass for half as many of 128.
            and not any(any(self._bytes[i + _HEADER_BYTES : i + _SLOT_BYTES]) for i in first)
        )

    @property
    def head(self) -> int:
        """The number of slots reserved so far."""
        # The uppermost bit is a flag.
        return ctypes.c_uint64.from_address(self._address).value & (2**63 - 1)

    def unwritten(self) -> list[int]:
        """Return the numbers of the slots that are reserved and not written."""
        head = self.head
        flags = self._bytes[_FIRST_SLOT::_SLOT_BYTES].tobytes()
        return [
            number
            for number in range(max(0, head - _N_SLOTS), head)
            if flags[number % _N_SLOTS] & _WRITTEN != number // _N_SLOTS % 2
        ]

    def skip(self, number: int) -> None:
        """Write an empty message into a slot."""
        address = self._address + _FIRST_SLOT + number % _N_SLOTS * _SLOT_BYTES
        # Flags, id and length in one store: another thread may poll the queue at any time.
        flags = _INLINE | (number // _N_SLOTS % 2) * _WRITTEN
        ctypes.c_uint32.from_address(address).value = flags | _UNKNOWN_MESSAGE << 8


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


class _Thread(NamedTuple):
    in_call: bool
    """Whether it sleeps in a system call; a write contains none that sleeps."""
    user_ticks: int


class _Sender(NamedTuple):
    """A process by its id, which another one may have later, and `started_at`."""

    pid: int | None
    started: int | None

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self.pid is not None and has_ended(self.pid, self.started)

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or is about to."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[6]) & _EXITING:
                return True
        except (OSError, ValueError, IndexError):
            pass
        return self.is_dead

    def threads(self) -> dict[str, _Thread] | None:
        """Return its threads: none if it has died, None if they are not visible."""
        if self.pid is None:
            return None
        threads = _threads(self.pid)
        return {} if self.is_dead else threads


class _Seen(NamedTuple):
    at: float
    threads: dict[_Sender, dict[str, _Thread] | None]


class Senders:
    """The processes on this host that can write into this process's queue.

    Attributes
    ----------
    has_skipped
        Whether a slot was skipped.
    """

    def __init__(self) -> None:
        self.has_skipped = False
        self._queue: ReceiveQueue | None = None
        self._lock = threading.RLock()
        self._checking = threading.Lock()
        self._counts: Counter[_Sender] = Counter()
        self._slots: set[int] = set()
        self._seen: dict[int, _Seen] = {}

    def watch(self, queue: ReceiveQueue | None) -> None:
        """Watch `queue` from now on, or none."""
        with self._checking:
            self._queue = queue

    def add(self, pid: int | None) -> _Sender:
        """Add a process before it can write, and return it; None for one that is not visible.

        No slot is skipped while there is a process that is not visible.
        """
        sender = _Sender(pid, None if pid is None else started_at(pid))
        with self._lock:
            self._counts[sender] += 1
        return sender

    def discard(self, sender: _Sender) -> None:
        """Take back one `add`, unless the process dies and may have left a slot unwritten."""
        with self._lock:
            if self._queue is None or not sender.is_ending:
                self._counts[sender] -= 1
                self._counts += Counter()

    def are_blocked(self) -> bool:
        """Return whether a slot is unwritten now; if none is, forget the dead."""
        with self._checking:
            if self._queue is None:
                return False
            senders = list(self._counts)
            dead = {sender for sender in senders if sender.is_dead}
            if self._queue.unwritten():
                return True
            self._slots, self._seen = set(), {}
            with self._lock:
                for sender in dead:
                    del self._counts[sender]
            return False

    def skip_abandoned(self) -> bool:
        """Skip slots of dead senders; return whether to check again soon.

        A slot is skipped if it has been unwritten for `ABANDONED_S`, a sender has died, and every
        thread of all other senders has slept in a system call or has run since. A thread in the
        middle of a write can't have done so: if the write lasts that long, the thread is stopped
        or frozen, or waits for a core or for memory.
        """
        if not self.are_blocked():
            return False
        with self._checking:
            if self._queue is None:
                return False
            slots, now = self._queue.unwritten(), time.monotonic()
            # Most are about to be written. Reading all threads is only worth it for the others.
            stuck, self._slots = self._slots.intersection(slots), set(slots)
            if not stuck:
                return True
            with self._lock:
                senders = list(self._counts)
        # Event loops need the lock, and this takes long.
        threads = {sender: sender.threads() for sender in senders}
        with self._checking:
            if self._queue is None:
                return False
            new = _Seen(now, threads)
            self._seen = {number: self._seen.get(number, new) for number in stuck}
            if {} in threads.values():
                # Some may have been written while the threads were read.
                for number in self._queue.unwritten():
                    if number in self._seen and self._is_abandoned(
                        self._seen[number], now, threads
                    ):
                        logger.warning(
                            "A process died while it wrote a message to this one: skipped"
                        )
                        self.has_skipped = True
                        self._queue.skip(number)
            return True

    @staticmethod
    def _is_abandoned(
        seen: _Seen, now: float, threads: dict[_Sender, dict[str, _Thread] | None]
    ) -> bool:
        return now - seen.at >= ABANDONED_S and not any(
            _may_write(seen.threads.get(sender, {}), threads[sender]) for sender in threads
        )


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended.

    A zombie has ended. The result is `_UNKNOWN` if ``/proc`` can't be read: the process is not
    visible there, or this one can't open more files.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    try:
        # A name can be any bytes.
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # The main thread may end before others.
        if state in _ENDED and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1:
            return None
        return int(fields[18])
    except (OSError, ValueError, IndexError):
        return _UNKNOWN


def has_ended(pid: int, started: int | None) -> bool:
    """Return whether the process with that id for which `started_at` was `started` has ended."""
    now = started_at(pid)
    return None in (started, now) or (started != now and _UNKNOWN not in (started, now))


def _threads(pid: int) -> dict[str, _Thread] | None:
    """Return the threads of a process: none if it has died, None if they are not visible."""
    threads, n_dead = {}, 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                # A name can be any bytes.
                state, *fields = (thread / "stat").read_bytes().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state in _ENDED:
                n_dead += 1
            else:
                in_call = state == b"S" and _is_in_call(thread)
                threads[thread.name] = _Thread(in_call, int(fields[10]))
    except (FileNotFoundError, ProcessLookupError):
        pass  # It has ended, or is not visible.
    except OSError:
        return None
    return None if not threads and not n_dead and started_at(pid) is not None else threads


def _may_write(before: dict[str, _Thread] | None, now: dict[str, _Thread] | None) -> bool:
    """Return whether a thread may have been in the middle of a write from then until now."""
    if now == {}:
        return False
    if before is None or now is None:
        return True
    return any(
        not before[name].in_call
        and not thread.in_call
        and thread.user_ticks < before[name].user_ticks + RAN_TICKS
        for name, thread in now.items()
        if name in before
    )


def _is_in_call(thread: Path) -> bool:
    """Return whether a thread is in a system call, not in a page fault, frozen or unknown."""
    try:
        return (thread / "syscall").read_bytes().split()[0].isdigit()
    except OSError:
        return False


SENDERS = Senders()
"""The senders that can write into the queue of this process."""

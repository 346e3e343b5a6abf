"""Receive buffers, reused when the last reference to them is gone.

Fresh memory costs more than the transfer, because the kernel zeroes every page at its first use. A
Dask worker pays this for each buffer above 128 KiB: its allocator returns freed memory at once
(``MALLOC_TRIM_THRESHOLD_``).
"""

from __future__ import annotations

import mmap
import sys
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np

__all__ = ["BUFFERS", "Buffers"]


_UNSHARED = 2
"""``sys.getrefcount`` of a buffer with a single reference."""


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """A view of a buffer; when it and all arrays made of it are gone, the buffer is free.

    NumPy makes an array of a view refer to the view's base instead, if that is an array itself. So
    the base must not be an array.
    """


class Buffers:
    """A pool of buffers.

    Any thread may drop the last reference to a buffer at any point, so this uses no lock, only
    atomic operations.

    Parameters
    ----------
    max_free
        The bytes of free buffers to keep at most.
    keep_s
        How long to keep a free buffer, in seconds.
    trimmers
        Those that call `trim`. If given, nothing is kept while it is empty.

    Examples
    --------
    >>> buffers = Buffers()
    >>> first = buffers.take(1_000_000)
    >>> len(first), buffers.n_free_bytes
    (1000000, 0)
    >>> del first
    >>> buffers.n_free_bytes
    1048576
    >>> second = buffers.take(999_999)
    >>> buffers.n_free_bytes
    0
    """

    SMALL = 128 * 1024
    """Smaller buffers are left to the allocator, which reuses them."""

    def __init__(
        self, max_free: int = 256 * 2**20, keep_s: float = 5.0, trimmers: set[Any] | None = None
    ) -> None:
        self._trimmers = trimmers
        self._max_free = max_free
        self._keep_s = keep_s
        self._free: dict[int, deque[tuple[float, mmap.mmap]]] = {}
        self._leases: dict[int, weakref.ref[_Lease]] = {}

    def take(self, nbytes: int) -> memoryview:
        """Return a writable buffer of `nbytes` bytes, whose content is arbitrary.

        Raises
        ------
        MemoryError
            If there is not that much memory.
        """
        if nbytes < self.SMALL:
            return np.empty(nbytes, np.uint8).data
        size = _size_class(nbytes)
        memory = None
        with suppress(KeyError, IndexError):
            memory = self._free[size].pop()[1]
        # The garbage collector calls this before a finalizer may resurrect the view.
        if memory is None or sys.getrefcount(memory) > _UNSHARED:
            memory = _map(size)
        lease = _Lease((nbytes,), np.uint8, buffer=memory)

        def give_back(reference: weakref.ref[_Lease]) -> None:
            del self._leases[id(reference)]
            is_trimmed = self._trimmers is None or self._trimmers
            if is_trimmed and self.n_free_bytes + size <= self._max_free:
                self._free.setdefault(size, deque()).append((time.monotonic(), memory))

        reference = weakref.ref(lease, give_back)
        self._leases[id(reference)] = reference
        return lease.data

    def add_trimmer(self, trimmer: Any) -> None:
        """Keep free buffers, because `trimmer` calls `trim` from now on."""
        assert self._trimmers is not None
        self._trimmers.add(trimmer)

    def remove_trimmer(self, trimmer: Any) -> None:
        """Keep no free buffers if no other calls `trim`."""
        assert self._trimmers is not None
        self._trimmers.discard(trimmer)
        if not self._trimmers:
            self._free.clear()

    @property
    def n_free_bytes(self) -> int:
        """The bytes of all free buffers."""
        return sum(size * len(free) for size, free in list(self._free.items()))

    def trim(self) -> None:
        """Free buffers that were not used for `keep_s`."""
        oldest = time.monotonic() - self._keep_s
        for free in list(self._free.values()):
            # The oldest are on the left. Another thread may pop the last one first.
            with suppress(IndexError):
                while free[0][0] < oldest:
                    free.popleft()


def _map(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no memory for a message of {size} B: {error}") from error
    # As NumPy does; a kernel without huge pages refuses.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _size_class(nbytes: int) -> int:
    """Return the next larger size class, of which there are four per power of two.

    Examples
    --------
    >>> _size_class(1 << 20), _size_class((1 << 20) + 1) / (1 << 20)
    (1048576, 1.25)
    """
    step = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


BUFFERS = Buffers(trimmers=set())
"""The pool of this process."""

"""Receive buffers, recycled when the last that refers to them is gone.

Fresh memory costs more than the transfer: the kernel zeroes every page at its first use. A Dask
worker pays that for each buffer above 128 KiB, for its allocator gives freed memory back at once
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
"""The references to a buffer of which there is one: that, and the one asked with."""


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """A view of a buffer that lives as long as anything made of it: its end frees the buffer.

    An array made of a view refers to the owner of the view's memory, and not to the view, where
    that owner is an array itself. So the owner must be none.
    """


class Buffers:
    """Lends buffers, and keeps those that are free for a while.

    Any thread may drop the last reference to a buffer, in the middle of anything: so there is no
    lock here, only operations that are atomic.

    Parameters
    ----------
    max_free
        Bytes to keep for later at most.
    keep_s
        Seconds to keep them.

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
    """Below that the allocator recycles by itself."""

    def __init__(self, max_free: int = 256 * 2**20, keep_s: float = 5.0) -> None:
        self._max_free = max_free
        self._keep_s = keep_s
        self._free: dict[int, deque[tuple[float, mmap.mmap]]] = {}
        self._leases: dict[int, weakref.ref[_Lease]] = {}

    def take(self, nbytes: int) -> memoryview:
        """Return a writable buffer of `nbytes` bytes, whose content is arbitrary.

        Raises
        ------
        MemoryError
            Where there is not that much memory.
        """
        if nbytes < self.SMALL:
            return np.empty(nbytes, np.uint8).data
        size = _size_class(nbytes)
        memory = None
        with suppress(KeyError, IndexError):
            memory = self._free[size].pop()[1]
        # A garbage collector tells the end of what it collects before a finalizer may revive it.
        if memory is None or sys.getrefcount(memory) > _UNSHARED:
            memory = _map(size)
        lease = _Lease((nbytes,), np.uint8, buffer=memory)

        def give_back(reference: weakref.ref[_Lease]) -> None:
            del self._leases[id(reference)]
            if self.n_free_bytes + size <= self._max_free:
                self._free.setdefault(size, deque()).append((time.monotonic(), memory))

        reference = weakref.ref(lease, give_back)
        self._leases[id(reference)] = reference
        return lease.data

    @property
    def n_free_bytes(self) -> int:
        """How much is kept for later."""
        return sum(size * len(free) for size, free in list(self._free.items()))

    def trim(self) -> None:
        """Let go of what nobody has wanted for a while."""
        oldest = time.monotonic() - self._keep_s
        for free in list(self._free.values()):
            # The oldest are on the left, unless another thread is quicker.
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
    """Return the next of four sizes per power of two.

    Examples
    --------
    >>> _size_class(1 << 20), _size_class((1 << 20) + 1) / (1 << 20)
    (1048576, 1.25)
    """
    step = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


BUFFERS = Buffers()
"""Those of this process."""

"""Tags: every channel receives on one of its own."""

from __future__ import annotations

import threading

__all__ = ["TagAllocator"]


class TagAllocator:
    """Hands out tags that no open channel of this process receives on.

    The next tag is always the one that has been out of use longest, so that a message which is
    still under way to a closed channel meets nobody. A tag whose channel was not drained is never
    given back.

    Parameters
    ----------
    upper_bound
        The largest tag that MPI takes (``MPI_TAG_UB``).

    Examples
    --------
    >>> tags = TagAllocator(3)
    >>> tags.allocate(), tags.allocate()
    (1, 2)
    >>> tags.release(1)
    >>> tags.allocate(), tags.allocate()
    (3, 1)
    """

    def __init__(self, upper_bound: int) -> None:
        self._upper_bound = upper_bound
        self._last = 0
        self._in_use: set[int] = set()
        self._lock = threading.Lock()

    def allocate(self) -> int:
        """Return a tag between 1 and the upper bound.

        Raises
        ------
        OSError
            Where every tag is in use.
        """
        with self._lock:
            for _ in range(len(self._in_use) + 1):
                self._last = self._last % self._upper_bound + 1
                if self._last not in self._in_use:
                    self._in_use.add(self._last)
                    return self._last
        raise OSError(f"all {self._upper_bound} MPI tags are in use")

    def release(self, tag: int) -> None:
        """Give back a tag on which nothing can arrive any more."""
        with self._lock:
            self._in_use.discard(tag)

    def __len__(self) -> int:
        return len(self._in_use)

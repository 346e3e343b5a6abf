"""Tags: every channel receives on one of its own."""

from __future__ import annotations

import threading

__all__ = ["TagAllocator"]


class TagAllocator:
    """Hands out tags that no open channel of this process receives on.

    The next tag is always the one that has been out of use longest, so that a message which is
    still under way to a closed channel meets nobody. A tag is not given back while MPI may still
    fill a buffer on it.

    Parameters
    ----------
    first, last
        The range of tags. In world mode, channels share a communicator with the application: the
        upper half of what MPI takes (``MPI_TAG_UB``) is theirs.

    Examples
    --------
    >>> tags = TagAllocator(7, 9)
    >>> tags.allocate(), tags.allocate()
    (7, 8)
    >>> tags.release(7)
    >>> tags.allocate(), tags.allocate()
    (9, 7)
    """

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._range = last - first + 1
        self._next = 0
        self._in_use: set[int] = set()
        self._lock = threading.Lock()

    def allocate(self) -> int:
        """Return a free tag.

        Raises
        ------
        OSError
            Where every tag is in use.
        """
        with self._lock:
            for _ in range(len(self._in_use) + 1):
                tag = self._first + self._next
                self._next = (self._next + 1) % self._range
                if tag not in self._in_use:
                    self._in_use.add(tag)
                    return tag
        raise OSError(f"all {self._range} MPI tags are in use")

    def release(self, tag: int) -> None:
        """Give back a tag on which nothing can arrive any more."""
        with self._lock:
            self._in_use.discard(tag)

    def __len__(self) -> int:
        return len(self._in_use)

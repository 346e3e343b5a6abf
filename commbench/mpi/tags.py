"""Tags: each channel receives on a different one."""

from __future__ import annotations

import threading

__all__ = ["TagAllocator"]


class TagAllocator:
    """Allocates tags that no open channel of this process receives on.

    The next tag is the least recently used one, so that a message still under way to a closed
    channel is not received by another. A tag must not be released while MPI may still fill a
    buffer on it.

    Parameters
    ----------
    first, last
        The range of tags. In world mode, channels share a communicator with the application, and
        use the upper half of the tags up to ``MPI_TAG_UB``.

    Attributes
    ----------
    reserved
        The tag before the first, for the exchange of keys.

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
        self.reserved = first - 1
        self._range = last - first + 1
        self._next = 0
        self._in_use: set[int] = set()
        # The garbage collector may release a tag within `allocate`.
        self._lock = threading.RLock()

    def allocate(self) -> int:
        """Return a free tag.

        Raises
        ------
        OSError
            If every tag is in use.
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
        """Free a tag on which nothing can arrive any more."""
        with self._lock:
            self._in_use.discard(tag)

    def __contains__(self, tag: int) -> bool:
        """Return whether a tag is in the range."""
        return self._first <= tag < self._first + self._range

    def __len__(self) -> int:
        return len(self._in_use)

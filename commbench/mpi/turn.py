"""One thing at a time in a process, whichever event loop it is asked for in."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future

__all__ = ["Turn"]


class Turn:
    """A lock that coroutines of any event loop take, first come first served.

    Examples
    --------
    >>> async def twice():
    ...     turn = Turn()
    ...     await turn.take()
    ...     second = asyncio.ensure_future(turn.take())
    ...     await asyncio.sleep(0)
    ...     waiting = not second.done()
    ...     turn.give_back()
    ...     await second
    ...     return waiting
    >>> asyncio.run(twice())
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    async def take(self) -> None:
        """Return when it is the caller's turn."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            granted: Future[None] = Future()
            self._waiting.append(granted)
        try:
            await asyncio.wrap_future(granted)
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Let the next one have its turn; from any thread."""
        with self._lock:
            while self._waiting:
                granted = self._waiting.popleft()
                if granted.set_running_or_notify_cancel():
                    granted.set_result(None)
                    return
            self._taken = False

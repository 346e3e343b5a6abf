"""What MPI has been asked to send or receive, and has not completed."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Transfer"]

logger = logging.getLogger(__name__)

SPIN_S = 2e-3
RECEIVE_SECONDS_PER_BYTE = 10e-9
SEND_SECONDS_PER_BYTE = 1e-9
"""How long a transfer is polled at every turn, and counts as one that moves."""


class Transfer:
    """Requests that belong together, and what they read or write.

    Parameters
    ----------
    requests
        In the order in which MPI will complete them, or nearly so.
    buffers
        Kept until the requests are complete.
    nbytes
        Of all of them.
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
    spin_until
        When it should be complete, if it moves.
    """

    __slots__ = (
        "_error", "_on_done", "_post", "buffers", "nbytes", "receives", "requests", "spin_until",
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
        self.spin_until = self._due()

    def _due(self) -> float:
        per_byte = RECEIVE_SECONDS_PER_BYTE if self.receives else SEND_SECONDS_PER_BYTE
        return time.perf_counter() + SPIN_S + self.nbytes * per_byte

    def post(self) -> bool:
        """Begin, where that has waited; return whether it could."""
        self.spin_until = self._due()
        post, self._post = self._post, None
        return post is None or post()

    def advance(self) -> bool:
        """Call MPI; return whether all is complete."""
        requests = self.requests
        # Only the first that is incomplete needs a test: all of them have to complete anyway.
        while requests:
            try:
                if not requests[0].Test():
                    return False
            except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
                self._error = error
            requests.popleft()
        return True

    def cancel(self) -> None:
        """Ask MPI to give up the receives: they still have to complete."""
        for request in self.requests:
            try:
                request.Cancel()
            except Exception:
                logger.debug("MPI can't cancel %s", request, exc_info=True)

    def forget(self) -> None:
        """Report to nobody: what MPI uses stays."""
        self._on_done = self._post = None

    def finish(self) -> None:
        """Report the end."""
        self.buffers = None
        if self._on_done is None:
            return
        try:
            self._on_done(self, self._error)
        except Exception:
            # The engine must go on for all the others.
            logger.exception("A transfer could not be reported")

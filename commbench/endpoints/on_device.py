"""Messages in GPU memory over an endpoint: as they are, or staged through pinned host memory."""

from __future__ import annotations

from typing import Any

from commbench.endpoints import Endpoint
from commbench.mpi import device

_KEPT = 4
"""Buffers of a size: a message, its reply, what the peer sends, and an acknowledgement."""


class DirectEndpoint(Endpoint):
    """An endpoint that takes GPU memory, one message or one window at a time.

    It has a ``ping`` and ``pong`` of single messages, whatever the carrier's are: the loop of C
    around many of MPI's compares what has come, which the host can't read.

    Parameters
    ----------
    endpoint
        What carries them.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.carrier = endpoint

    async def send(self, buffer: Any) -> None:  # noqa: D102
        await self.carrier.send(buffer)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        await self.carrier.receive(buffer)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        await self.carrier.send_window(buffer, count)

    async def receive_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        await self.carrier.receive_window(buffer, count)

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:  # noqa: D102
        await self.carrier.cross_windows(sent, received, count)

    async def close(self) -> None:  # noqa: D102
        await self.carrier.close()

    def abort(self) -> None:  # noqa: D102
        self.carrier.abort()


class StagedEndpoint(DirectEndpoint):
    """An endpoint of host memory: every message is copied down, sent, received and copied up.

    Of a window all messages are copied down before the first is sent, and copied up when the last
    has arrived. What lies in host memory, as announcements do, is not copied.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._pinned: list[tuple[Any, Any]] = []

    def _host(self, buffer: Any) -> Any:
        """Return the host memory of a buffer, which stays the same while that does."""
        if not device.is_device(buffer):
            return buffer
        for known, host in self._pinned:
            if known is buffer:
                return host
        self._pinned = [(buffer, device.pinned(buffer.nbytes)), *self._pinned[: _KEPT - 1]]
        return self._pinned[0][1]

    def _down(self, buffer: Any, count: int) -> Any:
        host = self._host(buffer)
        for _ in range(count if host is not buffer else 0):
            device.copy_down(buffer, host)
        return host

    def _up(self, buffer: Any, count: int) -> None:
        host = self._host(buffer)
        for _ in range(count if host is not buffer else 0):
            device.copy_up(host, buffer)

    async def send(self, buffer: Any) -> None:  # noqa: D102
        await self.carrier.send(self._down(buffer, 1))

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        await self.carrier.receive(self._host(buffer))
        self._up(buffer, 1)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        await self.carrier.send_window(self._down(buffer, count), count)

    async def receive_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        await self.carrier.receive_window(self._host(buffer), count)
        self._up(buffer, count)

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:  # noqa: D102
        down = self._down(sent, count)
        await self.carrier.cross_windows(down, self._host(received), count)
        self._up(received, count)


def on_device(endpoint: Endpoint) -> DirectEndpoint:
    """Return `endpoint` for messages in GPU memory."""
    return DirectEndpoint(endpoint) if endpoint.takes_gpu else StagedEndpoint(endpoint)

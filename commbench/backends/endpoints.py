"""Each backend's own send and receive, without Dask: the layers ``coroutine`` and ``raw``.

Messages go from a buffer of the caller's into a buffer of the caller's: no serialization, no
framing, no fresh memory, except where the library's coroutines allocate by themselves. At the layer
``raw`` the methods block, and never come back to the event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from commbench.backends.base import Backend, Transport
from commbench.errors import LaunchError
from commbench.mpi import device


def repeats(size: int) -> int:
    """Return how often a message of `size` bytes goes into a sample where Python's part is lost."""
    return 100 if size <= 8192 else 10 if size < 1 << 20 else 1


class Endpoint(ABC):
    """One end of a connection.

    Besides, it has what the backend's ``transport`` reads from one of Dask's comms.
    """

    takes_gpu: bool = False
    """Whether buffers may lie in GPU memory."""

    @abstractmethod
    async def send(self, buffer: Any) -> None:
        """Send the bytes of an array; it may be written to again when this returns."""

    @abstractmethod
    async def receive(self, buffer: Any) -> None:
        """Fill an array with the next message, which has just its size."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    def abort(self) -> None:  # noqa: B027 - nothing is the right thing for most
        """Drop the connection at once, where something went wrong."""

    def round_trips(self, size: int) -> int:
        """Return how many round trips of messages of `size` bytes make up one sample."""
        del size
        return 1

    async def ping(self, message: Any, reply: Any) -> None:
        """Send `message` and fill `reply`, as often as ``round_trips`` says."""
        await self.send(message)
        await self.receive(reply)

    async def pong(self, buffer: Any) -> None:
        """Answer what one ``ping`` sends."""
        await self.receive(buffer)
        await self.send(buffer)

    async def send_window(self, buffer: Any, count: int) -> None:
        """Send `count` messages from the same buffer, all of them under way at once."""
        await asyncio.gather(*(self.send(buffer) for _ in range(count)))

    async def receive_window(self, buffer: Any, count: int) -> None:
        """Receive `count` messages into the same buffer, expecting all of them at once."""
        await asyncio.gather(*(self.receive(buffer) for _ in range(count)))

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:
        """Send `count` messages and receive as many at the same time."""
        await asyncio.gather(self.send_window(sent, count), self.receive_window(received, count))


Handler = Callable[[Endpoint], Awaitable[None]]


class Endpoints(NamedTuple):
    """How two processes on this host come to be the ends of a connection."""

    listen: Callable[[Handler], AbstractAsyncContextManager[str]]
    """Serve each connection with a handler while the context lasts; it gives the address."""
    connect: Callable[[str], Awaitable[Endpoint]]
    """Connect to that address."""


class ToolTimes(NamedTuple):
    """What a `Tool` measured: seconds per message, one way."""

    median_s: float
    mean_s: float


class Tool(ABC):
    """A program that measures the layer ``raw`` between two processes that it starts itself."""

    name: ClassVar[str]

    @abstractmethod
    def run(
        self, mode: str, size: int, n_messages: int, n_warmups: int, *, window: int, device: str,
        scratch: Path, environs: Sequence[Mapping[str, str]],
    ) -> tuple[ToolTimes, tuple[Transport, Transport]]:  # fmt: skip
        """Exchange messages; return the times, and what carried them as either end sees it.

        Parameters
        ----------
        mode
            Of pingpong: one of those for which the backend's ``unavailable_layer`` returned None.
        size
            Bytes of a message.
        n_messages, n_warmups
            How many count, and how many come before.
        window
            How many are under way at once, where the mode is not ``latency``.
        device
            ``cpu`` or ``gpu``: where the messages lie.
        scratch
            A folder for logs.
        environs
            What each end's environment has in addition to this process's.

        Raises
        ------
        LaunchError
            Where the program fails.
        """


_KEPT = 4
"""Buffers of a size: a message, its reply, what the peer sends, and an acknowledgement."""


class DeviceEndpoint(Endpoint):
    """An endpoint for messages in GPU memory, one or one window at a time.

    Where the carrier is one of host memory, every message is copied down, sent, received and copied
    up. Of a window all messages are copied down before the first is sent, and copied up when the
    last has arrived. What lies in host memory, as announcements do, is not copied.

    It has a ``ping`` and ``pong`` of single messages, unlike MPI's endpoint: the loop of C around
    many of them compares what has come, which the host can't read.

    Parameters
    ----------
    endpoint
        What carries them.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.carrier = endpoint
        self._pinned: list[tuple[Any, Any]] = []

    def _host(self, buffer: Any) -> Any:
        """Return what the carrier takes for a buffer; it stays the same while that does."""
        if self.carrier.takes_gpu or not device.is_device(buffer):
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

    async def close(self) -> None:  # noqa: D102
        await self.carrier.close()

    def abort(self) -> None:  # noqa: D102
        self.carrier.abort()


def get_endpoints(backend: Backend, layer: str) -> Endpoints:
    """Return the endpoints of a layer below Dask.

    Raises
    ------
    LaunchError
        Where the backend has none, or a program in their stead.
    """
    found = backend.endpoints(layer)
    if not isinstance(found, Endpoints):
        raise LaunchError(
            f"the backend {backend.head} has a {type(found).__name__} at the layer {layer}, and "
            "endpoints are needed there; its method unavailable_layer must say so"
        )
    return found

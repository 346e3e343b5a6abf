"""Send and receive of each backend without Dask: the layers ``coroutine`` and ``raw``.

Messages are transferred between buffers of the callers, without serialization, framing or fresh
memory, unless the library's coroutines allocate. At the layer ``raw`` the methods block, and never
return to the event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from commbench.backends.backend import Transport
from commbench.mpi import gpu_frames


def repeats(size: int) -> int:
    """Return the messages of `size` bytes per sample, enough to make Python's part negligible."""
    return 100 if size <= 8192 else 10 if size < 1 << 20 else 1


class Endpoint(ABC):
    """One end of a connection.

    It also has the attributes of Dask's comms that the backend's ``transport`` reads.
    """

    takes_gpu: bool = False
    """Whether buffers may lie in GPU memory."""

    @abstractmethod
    async def send(self, buffer: Any) -> None:
        """Send the bytes of an array, which may be reused when this returns."""

    @abstractmethod
    async def receive(self, buffer: Any) -> None:
        """Fill an array with the next message, which has the same size."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    def abort(self) -> None:  # noqa: B027 - optional
        """Drop the connection at once, after an error."""

    def round_trips(self, size: int) -> int:
        """Return the number of round trips of messages of `size` bytes per sample."""
        del size
        return 1

    async def ping(self, message: Any, reply: Any) -> None:
        """Send `message` and fill `reply`, ``round_trips`` times."""
        await self.send(message)
        await self.receive(reply)

    async def pong(self, buffer: Any) -> None:
        """Answer all messages of one ``ping``."""
        await self.receive(buffer)
        await self.send(buffer)

    async def send_window(self, buffer: Any, count: int) -> None:
        """Send `count` messages from the same buffer concurrently."""
        await asyncio.gather(*(self.send(buffer) for _ in range(count)))

    async def receive_window(self, buffer: Any, count: int) -> None:
        """Receive `count` messages into the same buffer concurrently."""
        await asyncio.gather(*(self.receive(buffer) for _ in range(count)))

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:
        """Send `count` messages and receive as many at the same time."""
        await asyncio.gather(self.send_window(sent, count), self.receive_window(received, count))


Handler = Callable[[Endpoint], Awaitable[None]]


class Endpoints(NamedTuple):
    """Functions to connect two processes."""

    listen: Callable[[Handler, str], AbstractAsyncContextManager[str]]
    """A context manager that listens on an IP address of this host, serves each connection with a
    handler, and yields the address to connect to."""
    connect: Callable[[str], Awaitable[Endpoint]]
    """Connects to that address."""


class ToolTimes(NamedTuple):
    """Times measured by a `Tool`: seconds per message, one way."""

    median_s: float
    mean_s: float


class Tool(ABC):
    """A program that measures the layer ``raw`` between two processes that it starts."""

    name: ClassVar[str]

    @abstractmethod
    def run(
        self, mode: str, size: int, n_messages: int, n_warmups: int, *, window: int, device: str,
        scratch: Path, environs: Sequence[Mapping[str, str]],
    ) -> tuple[ToolTimes, tuple[Transport, Transport]]:  # fmt: skip
        """Exchange messages; return the times, and the transport as seen by each end.

        Parameters
        ----------
        mode
            A mode of pingpong for which the backend's ``unavailable_layer`` returned None.
        size
            Bytes of a message.
        n_messages, n_warmups
            The numbers of measured messages, and of warm-up messages before them.
        window
            The number of messages in flight, none of which is acknowledged; unused for
            ``latency``.
        device
            ``cpu`` or ``gpu``: the memory of the messages.
        scratch
            A folder for logs.
        environs
            The environment variables of each end, in addition to this process's.

        Raises
        ------
        LaunchError
            If the program fails.
        """


_N_BUFFERS = 4
"""The number of buffers: a message, its reply, the peer's message, an acknowledgement."""


class DeviceEndpoint(Endpoint):
    """An endpoint for messages in GPU memory, one or one window at a time.

    If the carrier only takes host memory, every message is copied down, sent, received and copied
    up. All messages of a window are copied down before the first is sent, and copied up after the
    last has arrived. Buffers in host memory, such as announcements, are not copied.

    Its ``ping`` and ``pong`` exchange single messages, unlike MPI's, whose loop in C compares the
    received bytes and can't read GPU memory.

    Parameters
    ----------
    endpoint
        The carrier of the messages.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.carrier = endpoint
        self._pinned: list[tuple[Any, Any]] = []

    def _host(self, buffer: Any) -> Any:
        """Return the buffer to pass to the carrier; it is the same for the same `buffer`."""
        if self.carrier.takes_gpu or not gpu_frames.is_device(buffer):
            return buffer
        for known, host in self._pinned:
            if known is buffer:
                return host
        self._pinned = [(buffer, gpu_frames.pinned(buffer.nbytes)), *self._pinned[: _N_BUFFERS - 1]]
        return self._pinned[0][1]

    def _down(self, buffer: Any, count: int) -> Any:
        host = self._host(buffer)
        for _ in range(count if host is not buffer else 0):
            gpu_frames.copy_down(buffer, host)
        return host

    def _up(self, buffer: Any, count: int) -> None:
        host = self._host(buffer)
        for _ in range(count if host is not buffer else 0):
            gpu_frames.copy_up(host, buffer)

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

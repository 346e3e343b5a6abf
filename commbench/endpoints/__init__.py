"""Each backend's own send and receive, without Dask: the layers ``coroutine`` and ``raw``.

Messages go from a buffer of the caller's into a buffer of the caller's: no serialization, no
framing, no fresh memory, except where the library's coroutines allocate by themselves. At the layer
``raw`` the methods block, and never come back to the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any


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
Listen = Callable[[Handler], AbstractAsyncContextManager[str]]
"""Serve each connection with a handler, for as long as the context lasts; it gives the address."""
Connect = Callable[[str], Awaitable[Endpoint]]

_MODULES = {"coroutine": "commbench.endpoints.{}", "raw": "commbench.endpoints.blocking_{}"}


def known(layer: str, protocol: str) -> bool:
    """Return whether there is an endpoint of this protocol at that layer."""
    return importlib.util.find_spec(_MODULES[layer].format(protocol)) is not None


def of(layer: str, protocol: str) -> tuple[Listen, Connect]:
    """Return ``listen`` and ``connect`` of the protocol ``tcp``, ``ucx`` or ``mpi``.

    At the layer ``raw`` there is no ``ucx``: UCX has a program for that.
    """
    module = importlib.import_module(_MODULES[layer].format(protocol))
    return module.listen, module.connect

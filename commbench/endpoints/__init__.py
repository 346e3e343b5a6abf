"""The coroutine layer: each backend's own asynchronous send and receive, without Dask.

Messages go from a buffer of the caller's into a buffer of the caller's: no serialization, no
framing, no fresh memory, except where the library's coroutines allocate by themselves.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any


class Endpoint(ABC):
    """One end of a connection.

    Besides, it has what the backend's ``transport`` reads from one of Dask's comms.
    """

    @abstractmethod
    async def send(self, buffer: Any) -> None:
        """Send the bytes of an array; it may be written to again when this returns."""

    @abstractmethod
    async def receive(self, buffer: Any) -> None:
        """Fill an array with the next message, which has just its size."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""


Handler = Callable[[Endpoint], Awaitable[None]]
Listen = Callable[[Handler], AbstractAsyncContextManager[str]]
"""Serve each connection with a handler, for as long as the context lasts; it gives the address."""
Connect = Callable[[str], Awaitable[Endpoint]]


def of(protocol: str) -> tuple[Listen, Connect]:
    """Return ``listen`` and ``connect`` of the protocol ``tcp``, ``ucx`` or ``mpi``."""
    module = importlib.import_module(f"commbench.endpoints.{protocol}")
    return module.listen, module.connect

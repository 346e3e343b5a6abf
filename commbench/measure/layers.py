"""One connection between two processes, as a layer of the software sees it.

Both ends of the two layers are here side by side: what the timed loop talks through, and the echo
that answers it in the peer process.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from commbench import endpoints
from commbench.backends.base import Backend, Transport
from commbench.workloads.base import PairWorkload

_ASK_TRANSPORT = {"commbench": "transport"}
"""The one message at the comm layer that is answered otherwise."""
_ROUND = struct.Struct("<QQ")


class Conversation(ABC):
    """The initiator's end."""

    @abstractmethod
    async def announce(self, size: int, count: int) -> None:
        """Tell the peer that `count` messages of `size` bytes come next; not timed."""

    @abstractmethod
    async def exchange(self, payload: Any) -> Any:
        """Send `payload` and return the peer's reply: the timed call."""

    @abstractmethod
    async def transports(self) -> tuple[Transport, Transport]:
        """Return what carries the connection, as this end and as the peer sees it."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""


class CommConversation(Conversation):
    """``distributed.comm``: read and write, with Dask's serialization."""

    def __init__(self, comm: Any, backend: Backend, workload: PairWorkload) -> None:
        self._comm, self._backend, self._workload = comm, backend, workload

    async def announce(self, size: int, count: int) -> None:  # noqa: D102
        pass

    async def exchange(self, payload: Any) -> Any:  # noqa: D102
        return await self._workload.exchange(self._comm, payload)

    async def transports(self) -> tuple[Transport, Transport]:  # noqa: D102
        own = self._backend.transport(self._comm)
        await self._comm.write(_ASK_TRANSPORT)
        theirs = await self._comm.read()
        return own, Transport(theirs["name"], theirs["evidence"])

    async def close(self) -> None:  # noqa: D102
        await self._comm.close()


class CoroutineConversation(Conversation):
    """The backend's own coroutines, between buffers that stay the same for a size."""

    def __init__(self, endpoint: endpoints.Endpoint, backend: Backend) -> None:
        self._endpoint, self._backend = endpoint, backend
        self._reply: Any = None

    async def announce(self, size: int, count: int) -> None:  # noqa: D102
        await self._endpoint.send(_array(_ROUND.pack(size, count)))

    async def exchange(self, payload: Any) -> Any:  # noqa: D102
        if self._reply is None or self._reply.shape != payload.shape:
            self._reply = payload.copy()
        await self._endpoint.send(payload)
        await self._endpoint.receive(self._reply)
        return self._reply

    async def transports(self) -> tuple[Transport, Transport]:  # noqa: D102
        # Both ends are of one kind: the lanes of the one are those of the other.
        own = self._backend.transport(self._endpoint)
        return own, own

    async def close(self) -> None:  # noqa: D102
        # The end of the rounds; a message of nothing would not be one everywhere.
        await self.announce(0, 0)
        await self._endpoint.close()


def _array(content: bytes) -> Any:
    import numpy

    return numpy.frombuffer(bytearray(content), numpy.uint8)


async def open_conversation(
    layer: str, address: str, backend: Backend, workload: PairWorkload
) -> Conversation:
    """Connect to the peer that `serve` made, at the layer ``comm`` or ``coroutine``."""
    if layer == "comm":
        from distributed.comm import connect

        return CommConversation(await connect(address), backend, workload)
    _, connect_endpoint = endpoints.of(backend.protocol)
    return CoroutineConversation(await connect_endpoint(address), backend)


@asynccontextmanager
async def serve(layer: str, backend: Backend) -> AsyncIterator[str]:
    """Echo at that layer, and give the address."""
    if layer == "comm":
        from distributed.comm import listen

        async with listen(f"{backend.protocol}://127.0.0.1:0", _comm_echo(backend)) as listener:
            yield listener.contact_address
    else:
        listen_endpoint, _ = endpoints.of(backend.protocol)
        async with listen_endpoint(_coroutine_echo) as address:
            yield address


def _comm_echo(backend: Backend) -> Any:
    from distributed.comm import CommClosedError
    from distributed.protocol import to_serialize

    async def echo(comm: Any) -> None:
        try:
            while True:
                message = await comm.read()
                if isinstance(message, dict):
                    used = backend.transport(comm)
                    await comm.write({"name": used.name, "evidence": used.evidence})
                else:
                    await comm.write(to_serialize(message))
        except CommClosedError:
            pass

    return echo


async def _coroutine_echo(endpoint: endpoints.Endpoint) -> None:
    header = _array(bytes(_ROUND.size))
    buffer = header
    while True:
        await endpoint.receive(header)
        size, count = _ROUND.unpack(header.data)
        if not size:
            return
        if buffer.size != size:
            buffer = _array(bytes(size))
        for _ in range(count):
            await endpoint.receive(buffer)
            await endpoint.send(buffer)

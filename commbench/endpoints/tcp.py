"""asyncio's streams, with TCP_NODELAY as asyncio sets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from commbench.endpoints import Endpoint, Handler

_LIMIT = 16 << 20
"""How much a reader buffers before it lets the sender wait."""


class TcpEndpoint(Endpoint):
    """A pair of asyncio streams; ``readexactly`` allocates what it returns."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.local_address, self.peer_address = (
            "tcp://{}:{}".format(*writer.get_extra_info(name)[:2])
            for name in ("sockname", "peername")
        )

    async def send(self, buffer: Any) -> None:  # noqa: D102
        self._writer.write(buffer.data)
        await self._writer.drain()

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        buffer.data[:] = await self._reader.readexactly(buffer.nbytes)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        # A stream has one order, and one reader at a time.
        for _ in range(count):
            await self.send(buffer)

    async def receive_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        for _ in range(count):
            await self.receive(buffer)

    def abort(self) -> None:  # noqa: D102
        self._writer.transport.abort()

    async def close(self) -> None:  # noqa: D102
        self._writer.close()


@asynccontextmanager
async def listen(handler: Handler) -> AsyncIterator[str]:
    """Listen on the loopback interface."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handler(TcpEndpoint(reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_LIMIT)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


async def connect(address: str) -> TcpEndpoint:
    """Connect to what `listen` gave."""
    host, _, port = address.partition(":")
    return TcpEndpoint(*await asyncio.open_connection(host, int(port), limit=_LIMIT))

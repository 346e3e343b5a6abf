"""ucxx's endpoints, in the context and the progress mode that Dask gives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from commbench.endpoints import Endpoint, Handler


class UcxEndpoint(Endpoint):
    """One of ucxx's endpoints, with tagged messages."""

    takes_gpu = True

    def __init__(self, ep: Any) -> None:
        self.ep = ep

    async def send(self, buffer: Any) -> None:  # noqa: D102
        await self.ep.send(buffer)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        await self.ep.recv(buffer)

    async def close(self) -> None:  # noqa: D102
        await self.ep.close()


def _ucxx() -> Any:
    import ucxx
    from distributed_ucxx.ucxx import init_once

    init_once()
    return ucxx


@asynccontextmanager
async def listen(handler: Handler) -> AsyncIterator[str]:
    """Listen on every interface, as ucxx does."""

    async def serve(ep: Any) -> None:
        await handler(UcxEndpoint(ep))

    listener = _ucxx().create_listener(serve)
    try:
        yield str(listener.port)
    finally:
        listener.close()
        await asyncio.sleep(0)


async def connect(address: str) -> UcxEndpoint:
    """Connect to what `listen` gave, on this host."""
    return UcxEndpoint(await _ucxx().create_endpoint("127.0.0.1", int(address)))

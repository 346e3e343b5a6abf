"""Messages of MPI awaited by the progress engine of ``mpi://``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from distributed.comm import connect as dask_connect
from distributed.comm import listen as dask_listen

from commbench.endpoints import Endpoint, Handler
from commbench.mpi import device
from commbench.mpi.endpoint import MPIEndpoint


class MpiEndpoint(Endpoint):
    """``Isend`` and ``Irecv`` on a tag of their own, beside a connection of ``mpi://``."""

    def __init__(self, comm: Any, endpoint: MPIEndpoint) -> None:
        self._comm = comm
        self._endpoint = endpoint
        self.extra_info = comm.extra_info
        self.takes_gpu = comm.extra_info["gpu_memory"] == device.DIRECT
        self.local_address, self.peer_address = comm.local_address, comm.peer_address

    async def send(self, buffer: Any) -> None:  # noqa: D102
        await self._endpoint.send(buffer)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        await self._endpoint.receive(buffer)

    async def close(self) -> None:  # noqa: D102
        self._endpoint.close()
        await self._comm.close()


@asynccontextmanager
async def listen(handler: Handler) -> AsyncIterator[str]:
    """Listen on the loopback interface."""

    async def serve(comm: Any) -> None:
        await handler(MpiEndpoint(comm, await MPIEndpoint.beside(comm)))

    async with dask_listen("mpi://127.0.0.1:0", serve) as listener:
        yield listener.contact_address


async def connect(address: str) -> MpiEndpoint:
    """Connect to what `listen` gave."""
    comm = await dask_connect(address)
    return MpiEndpoint(comm, await MPIEndpoint.beside(comm))

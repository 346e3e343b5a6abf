"""Frames beyond 32 bits; both ranks run it as ``mpiexec -n 2 python world_messages.py``."""

from __future__ import annotations

import asyncio

import distributed.protocol.numpy  # noqa: F401 - registers arrays
import numpy as np
from distributed.comm import connect, listen
from distributed.protocol import to_serialize
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
SIZES = (2**31 - 1, 2**31, 2**31 + 1)


async def send() -> None:
    """Send an array of each size, of which the ends and what is around 1 GiB are marked."""
    read = asyncio.Event()

    async def answer(comm: object) -> None:
        for nbytes in SIZES:
            x = np.zeros(nbytes, "u1")
            x[[0, 2**30 - 1, 2**30, -1]] = 1, 2, 3, 4
            await comm.write(to_serialize(x))
            assert await comm.read() == "next"
        read.set()

    async with listen("mpi://127.0.0.1:0", answer) as listener:
        WORLD.bcast(listener.contact_address, root=0)
        await read.wait()


async def receive(address: str) -> None:
    """Check them."""
    comm = await connect(address)
    assert comm.extra_info["mode"] == "world"
    for nbytes in SIZES:
        x = await comm.read()
        assert x.nbytes == nbytes
        assert x[[0, 2**30 - 1, 2**30, -1]].tolist() == [1, 2, 3, 4]
        assert np.count_nonzero(x) == 4
        del x
        print("whole", flush=True)
        await comm.write("next")
    await comm.close()


if __name__ == "__main__":
    if WORLD.rank == 0:
        asyncio.run(send())
    else:
        asyncio.run(receive(WORLD.bcast(None, root=0)))
    WORLD.Barrier()

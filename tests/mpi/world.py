"""What every rank of a world does; the ranks run it as ``mpiexec -n 4 python world.py``.

Rank 0 is the scheduler, 1 the client, the others are workers: what dask-mpi does, in its order. The
scheduler listens before it tells the others its address.
"""

from __future__ import annotations

import asyncio

import dask.array as da
from distributed import Client, Scheduler, Worker
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


async def schedule() -> None:
    """Be the scheduler until the client ends it."""
    async with Scheduler(protocol="mpi", port=0, dashboard_address=":0") as scheduler:
        WORLD.bcast(scheduler.address, root=0)
        WORLD.Barrier()
        await scheduler.finished()


async def work(address: str) -> None:
    """Be a worker until the scheduler goes."""
    async with Worker(address, nthreads=1) as worker:
        await worker.finished()


def use(address: str) -> None:
    """Compute, check, print the modes, and end all."""
    with Client(address) as client:
        client.wait_for_workers(WORLD.size - 2, timeout=60)
        x = da.random.default_rng(0).random((2000, 2000), chunks=500).persist()
        assert abs((x + x.T).sum().compute() - 2 * x.sum().compute()) < 1e-6
        infos = client.run(lambda dask_worker: dask_worker.batched_stream.comm.extra_info)
        print(*{info["mode"] for info in infos.values()}, flush=True)
        client.shutdown()


if __name__ == "__main__":
    if WORLD.rank == 0:
        asyncio.run(schedule())
    else:
        address = WORLD.bcast(None, root=0)
        WORLD.Barrier()
        if WORLD.rank == 1:
            use(address)
        else:
            asyncio.run(work(address))
    WORLD.Barrier()

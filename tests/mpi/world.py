"""What every rank of a world does: ``mpiexec -n 4 python world.py cluster`` or ``-n 2 … frames``.

With ``-n 2 … open`` mpi:// imports mpi4py first, and the client of the cluster stays open. With
``-n 2 … finalize`` the application finalizes MPI itself.

In a cluster rank 0 is the scheduler, 1 the client, the others are workers: what dask-mpi does, in
its order. The scheduler listens before it sends the others its address.
"""

import asyncio
import atexit
import sys

import dask.array as da
import distributed.protocol.numpy  # noqa: F401 - registers arrays
import mpi4py
import numpy as np
from distributed import Client, Scheduler, Worker
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

if "open" in sys.argv[1:]:
    from commbench.mpi.runtime import runtime

    WORLD = runtime("127.0.0.1").mpi.COMM_WORLD
else:
    if "finalize" in sys.argv[1:]:
        mpi4py.rc.finalize = False
    from mpi4py import MPI

    WORLD = MPI.COMM_WORLD
SIZES = (2**31 - 1, 2**31 + 1)


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


def leave(address: str) -> None:
    """Have the scheduler end soon, and leave the client open."""

    def end_soon(dask_scheduler: Scheduler) -> None:
        dask_scheduler.loop.call_later(1, dask_scheduler.close)

    Client(address).run_on_scheduler(end_soon)
    print("open", flush=True)


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
    """Check the arrays."""
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


if sys.argv[1:] == ["finalize"]:
    from commbench.mpi.runtime import runtime

    atexit.register(MPI.Finalize)
    runtime("127.0.0.1")
    print("started", flush=True)
elif __name__ == "__main__":
    is_cluster = sys.argv[1] != "frames"
    if WORLD.rank == 0:
        asyncio.run(schedule() if is_cluster else send())
    else:
        address = WORLD.bcast(None, root=0)
        if not is_cluster:
            asyncio.run(receive(address))
        else:
            WORLD.Barrier()
            if WORLD.rank > 1:
                asyncio.run(work(address))
            elif sys.argv[1] == "open":
                leave(address)
            else:
                use(address)
    if sys.argv[1] != "open":
        WORLD.Barrier()

"""Arrays in GPU memory, made up by the fakes, over a connection of ``mpi://`` with itself."""

import asyncio
import sys
from typing import Any

import cupy
import numpy
import rmm
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize

from commbench.mpi import gpu_frames, wire_format
from commbench.mpi.wire_format import LARGE

SIZES = (0, 1, 1000, LARGE - 1, LARGE, 5_000_000)


async def answer(comm: Any) -> None:
    """Send everything back."""
    try:
        while True:
            message = await comm.read()
            await comm.write({name: to_serialize(value) for name, value in message.items()})
    except CommClosedError:
        pass


async def exchange(path: str) -> None:
    """Arrays of all sizes come back as they went, several in a message, with host memory."""
    async with listen("mpi://127.0.0.1:0", answer) as listener:
        comm = await connect(listener.contact_address)
        assert comm.extra_info["gpu_memory"] == path, comm.extra_info
        random = numpy.random.default_rng(1)
        for size in SIZES:
            sent = random.integers(0, 256, size, "u1")
            message = {"gpu": cupy.asarray(sent), "also": cupy.asarray(~sent), "host": sent}
            await comm.write({name: to_serialize(value) for name, value in message.items()})
            found = await comm.read()
            for name, value in message.items():
                assert type(found[name]) is type(value), (name, type(found[name]))
                assert (found[name] == value).all(), (name, size)
        await comm.close()


async def staged() -> None:
    """Each frame is copied down to pinned memory and up from it, once for each way."""
    await exchange(gpu_frames.STAGED)
    n_frames = 2 * 2 * (len(SIZES) - 1)
    assert cupy.COUNTS["pinned"] == 2 * n_frames, cupy.COUNTS
    assert cupy.COUNTS["down"] == cupy.COUNTS["up"] == n_frames, cupy.COUNTS


async def direct() -> None:
    """MPI gets GPU memory as it is, after the GPU has been waited for, and nothing is copied."""
    gpu_frames.is_cuda_aware = lambda: True
    await exchange(gpu_frames.DIRECT)
    assert not cupy.COUNTS["pinned"] + cupy.COUNTS["down"] + cupy.COUNTS["up"], cupy.COUNTS
    assert cupy.COUNTS["synchronize"] == 2 * 2 * 2 * (len(SIZES) - 1), cupy.COUNTS


async def in_pieces() -> None:
    """What is larger than MPI may be asked for at once comes in pieces, on either path."""
    wire_format.MAX_PIECE = 1_000_001
    await exchange(gpu_frames.STAGED)
    gpu_frames.is_cuda_aware = lambda: True
    await exchange(gpu_frames.DIRECT)


async def host() -> None:
    """Where an end has loaded no library of GPUs, Dask copies to the host itself."""
    gpu_frames.path = lambda: gpu_frames.HOST
    await exchange(gpu_frames.HOST)
    assert cupy.COUNTS["pinned"] == 0, cupy.COUNTS
    assert cupy.COUNTS["down"] > 0, cupy.COUNTS


async def forwarded() -> None:
    """What a scheduler has received, it can send on over any connection."""
    received = []

    async def keep(comm: Any) -> None:
        received.append((await comm.read())["gpu"])

    async with (
        listen("mpi://127.0.0.1:0", answer) as listener,
        listen("mpi://127.0.0.1:0", keep, deserialize=False) as scheduler,
    ):
        comm = await connect(scheduler.contact_address)
        sent = numpy.arange(100_000, dtype="u1")
        await comm.write({"gpu": to_serialize(cupy.asarray(sent))})
        while not received:
            await asyncio.sleep(0.01)
        path, gpu_frames.path = gpu_frames.path, lambda: gpu_frames.HOST
        other = await connect(listener.contact_address)
        gpu_frames.path = path
        await other.write({"gpu": received[0]})
        assert (cupy.asnumpy((await other.read())["gpu"]) == sent).all()


async def no_memory() -> None:
    """A GPU that is full ends the connection: nobody waits for what can't arrive."""
    async with listen("mpi://127.0.0.1:0", answer) as listener:
        comm = await connect(listener.contact_address)

        def full(size: int) -> Any:
            raise MemoryError("std::bad_alloc: out_of_memory")

        rmm.DeviceBuffer = full
        await comm.write({"gpu": to_serialize(cupy.zeros(100_000, "u1"))})
        try:
            await asyncio.wait_for(comm.read(), 20)
        except CommClosedError:
            return
        raise AssertionError("something was read")


if __name__ == "__main__":
    asyncio.run({"staged": staged, "direct": direct, "in_pieces": in_pieces, "host": host,
        "no_memory": no_memory, "forwarded": forwarded}[sys.argv[1]]())  # fmt: skip

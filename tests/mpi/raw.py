"""Blocking MPI between two processes, the floor under ``mpi://``: ``python raw.py MIB [MIB …]``.

Prints the one-way bandwidth of a ping-pong for every size, into warm buffers and into fresh ones.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from distributed.comm import connect, listen

N_WARMUPS, N_MESSAGES = 3, 12


def ping_pong(endpoint: Any, size: int, *, first: bool, fresh: bool) -> float:
    """Return the median seconds of one way."""
    communicator, rank = endpoint.channel.communicator, endpoint.channel.rank
    send_tag, receive_tag = (90_001, 90_002) if first else (90_002, 90_001)
    sent, received = np.ones(size, "u1"), np.ones(size, "u1")
    seconds = []
    for _ in range(N_WARMUPS + N_MESSAGES):
        began = time.perf_counter()
        if first:
            communicator.Send(sent, rank, send_tag)
        if fresh:
            received = np.empty(size, "u1")
        communicator.Recv(received, rank, receive_tag)
        if not first:
            communicator.Send(sent, rank, send_tag)
        seconds.append((time.perf_counter() - began) / 2)
    return statistics.median(seconds[N_WARMUPS:])


async def measure(comm: Any, sizes: list[int], *, first: bool) -> None:
    """Do it for every size; the initiator prints."""
    await asyncio.sleep(0.3)
    for size in sizes:
        for fresh in (False, True):
            seconds = ping_pong(comm, size, first=first, fresh=fresh)
            if first:
                name = "fresh" if fresh else "warm"
                print(f"{size >> 20} MiB {name}: {size / seconds / 1e9:.2f} GB/s", flush=True)


async def main(sizes: list[int]) -> None:
    """Be the initiator, and start the other process."""
    peer = subprocess.Popen(
        [sys.executable, __file__, "serve", *(str(size >> 20) for size in sizes)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    comm = await connect(peer.stdout.readline().strip())
    await measure(comm, sizes, first=True)
    comm.abort()
    peer.kill()
    peer.wait()


async def serve(sizes: list[int]) -> None:
    """Be the other end."""

    async def handle(comm: Any) -> None:
        await measure(comm, sizes, first=False)

    async with listen("mpi://127.0.0.1:0", handle) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    is_peer = sys.argv[1] == "serve"
    numbers = [int(word) << 20 for word in sys.argv[1 + is_peer :]]
    asyncio.run((serve if is_peer else main)(numbers))

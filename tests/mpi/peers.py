"""Another process that speaks ``mpi://``, for scenarios: ``python peers.py mpi`` serves one.

It does what a message's ``op`` says: ``echo`` it, ``send`` so many bytes, ``take`` what comes and
answer its sum, ``connect`` to other addresses and exchange a message with each, ``usage`` tells its
descriptors, resident bytes and CPU seconds.
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import distributed.protocol.numpy  # noqa: F401 - registers arrays
import numpy as np
import psutil
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize


def usage() -> dict[str, float]:
    """Return what this process holds."""
    process = psutil.Process()
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "resident": process.memory_info().rss,
        "cpu": time.process_time(),
    }


@functools.lru_cache(1)
def payload(nbytes: int) -> np.ndarray[Any, Any]:
    """Return bytes whose sum gives away where any are missing."""
    return np.tile(np.arange(251, dtype="u1"), nbytes // 251 + 1)[:nbytes]


async def handler(comm: Any) -> None:
    """Do what the messages say."""
    try:
        while True:
            message = await comm.read()
            match message["op"]:
                case "echo":
                    await comm.write(message)
                case "send":
                    await comm.write({"x": to_serialize(payload(message["nbytes"]))})
                case "take":
                    await comm.write(int(message["x"].sum(dtype="u8")))
                case "connect":
                    comms = await asyncio.gather(*map(connect, message["addresses"]))
                    for other in comms:
                        await other.write({"op": "echo", "from": os.getpid()})
                        assert (await other.read())["from"] == os.getpid()
                        await other.close()
                    await comm.write("connected")
                case "usage":
                    await comm.write(usage())
    except CommClosedError:
        await comm.close()


class Peer:
    """A started process and its address."""

    def __init__(self, protocol: str = "mpi") -> None:
        command = [sys.executable, __file__, protocol]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.protocol, self.address = protocol, ""

    async def ready(self) -> None:
        """Wait for the address."""
        assert self.process.stdout is not None
        self.address = (await asyncio.to_thread(self.process.stdout.readline)).strip()
        assert self.address.startswith(self.protocol), self.address

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@asynccontextmanager
async def peers(number: int, protocol: str = "mpi") -> AsyncIterator[list[Peer]]:
    """Start so many processes."""
    started = [Peer(protocol) for _ in range(number)]
    try:
        await asyncio.gather(*(peer.ready() for peer in started))
        yield started
    finally:
        for peer in started:
            peer.end()


async def _serve(protocol: str) -> None:
    async with await listen(f"{protocol}://127.0.0.1:0", handler) as listener:
        print(listener.contact_address, flush=True)
        # Ends with the process that started it, even if that one is killed.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    asyncio.run(_serve(sys.argv[1]))

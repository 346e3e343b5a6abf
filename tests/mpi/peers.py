"""Another process that speaks ``mpi://``, for scenarios: ``python peers.py mpi`` serves one.

It does what a message's ``op`` says: ``echo`` it, ``send`` so many bytes, ``take`` what comes and
answer its sum, ``connect`` to other addresses and exchange a message with each, ``usage`` tells its
descriptors, resident bytes and CPU seconds, ``faint`` sends it a signal in the middle of a write.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import socket
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

from commbench.mpi.receive_queue import ReceiveQueue
from commbench.mpi.shared_memory import mapped


def usage() -> dict[str, float]:
    """Return what this process holds."""
    process = psutil.Process()
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "resident": process.memory_info().rss,
        "cpu": time.process_time(),
    }


def addresses() -> set[str]:
    """Return the IPv4 addresses of this machine's interfaces."""
    return {
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    }


class Turns:
    """Measures how long the event loop does not get to a task that always wants to run."""

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._task = asyncio.ensure_future(self._measure())

    async def _measure(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            self._worst_s, last = max(self._worst_s, now - last - 0.001), now

    async def stop(self) -> float:
        """Return the longest time in seconds."""
        self._task.cancel()
        await asyncio.wait([self._task])
        return self._worst_s


@functools.lru_cache(1)
def payload(nbytes: int) -> np.ndarray[Any, Any]:
    """Return bytes whose sum gives away where any are missing."""
    return np.tile(np.arange(251, dtype="u1"), nbytes // 251 + 1)[:nbytes]


def take(queue: ReceiveQueue) -> int:
    """Take a slot of a queue in which nobody else writes, and return its number."""
    number = queue.head
    ctypes.c_uint64.from_address(queue._address).value = number + 1
    return number


async def handler(comm: Any) -> None:
    """Do what the messages say."""
    turns: Turns | None = None
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
                case "faint":
                    # As a signal would come while UCX writes a message to the owner of `segments`.
                    start, _ = min(mapped(message["segments"]), key=lambda m: m[1] - m[0])
                    queue = ReceiveQueue(start)
                    number = take(queue)
                    os.kill(os.getpid(), message["signal"])
                    queue.skip(number)
                case "turns":
                    await comm.write(0.0 if turns is None else await turns.stop())
                    turns = Turns() if turns is None else None
    except CommClosedError:
        await comm.close()


class Peer:
    """A started process and its address.

    Parameters
    ----------
    command
        The script and its arguments.
    """

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.address = ""

    async def ready(self) -> None:
        """Wait for the address."""
        assert self.process.stdout is not None
        self.address = (await asyncio.to_thread(self.process.stdout.readline)).strip()
        assert "://" in self.address, self.address

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
    """Start `number` processes that listen; an address may take the place of the protocol."""
    address = protocol if "://" in protocol else f"{protocol}://127.0.0.1:0"
    started = [Peer(__file__, address) for _ in range(number)]
    try:
        await asyncio.gather(*(peer.ready() for peer in started))
        yield started
    finally:
        for peer in started:
            peer.end()


async def _serve(address: str) -> None:
    async with listen(address, handler) as listener:
        print(listener.contact_address, flush=True)
        # Ends with the process that started it, even if that one is killed.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    asyncio.run(_serve(sys.argv[1]))

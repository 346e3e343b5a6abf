"""Other processes that speak ``mpi://``, and what tests do with them.

``python peers.py ADDRESS`` listens there and does what the ``op`` of each message says: ``echo``
it, ``send`` an array, answer the ``sum`` of one, ``connect`` to other addresses and exchange a
message with each, return its ``usage`` of resources, ``sleep`` and read no more, ``faint``: get a
signal in the middle of a write, ``falter``: stop between a header and what it announces, ``limit``
its memory, or ``share`` a segment with a key.
``python peers.py connect ADDRESS`` connects there and exchanges messages until it is killed.
"""

import asyncio
import ctypes
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import distributed.protocol.numpy  # noqa: F401 - registers arrays
import numpy as np
import psutil
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize

from commbench.mpi import pairing, wire_format
from commbench.mpi.receive_queue import ReceiveQueue
from commbench.mpi.shared_memory import mapped

SOON_S = (0.25, 0.5, 1, 2, 4, 8, 16)
"""When to check whether a peer has died."""


def usage() -> dict[str, float]:
    """Return the resources that this process uses."""
    process = psutil.Process()
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "resident": process.memory_info().rss,
    }


def addresses() -> set[str]:
    """Return the IPv4 addresses of this machine's interfaces."""
    return {
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    }


@functools.lru_cache(1)
def payload(nbytes: int) -> np.ndarray[Any, Any]:
    """Return bytes of which none can be missing without a change of the sum."""
    return np.tile(np.arange(251, dtype="u1"), nbytes // 251 + 1)[:nbytes]


def reserve(queue: ReceiveQueue) -> int:
    """Reserve a slot of a queue in which nobody else writes, and return its number."""
    number = queue.head
    ctypes.c_uint64.from_address(queue._address).value = number + 1
    return number


class Faltering:
    """A communicator that stops this process before a large message."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def Isend(self, message: Any, rank: int, tag: int) -> Any:  # noqa: N802
        """Send, perhaps later."""
        if len(message[0]) > wire_format.MAX_HEADER:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._communicator.Isend(message, rank, tag)


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
                case "sum":
                    await comm.write(int(message["x"].sum(dtype="u8")))
                case "connect":
                    comms = await asyncio.gather(*map(connect, message["addresses"]))
                    for other in comms:
                        await exchange(other)
                        await other.close()
                    await comm.write("connected")
                case "usage":
                    await comm.write(usage())
                case "sleep":
                    await asyncio.sleep(1e6)
                case "faint":
                    # As a signal would come while UCX writes a message to the owner of `segments`.
                    start, _ = min(mapped(message["segments"]), key=lambda m: m[1] - m[0])
                    queue = ReceiveQueue(start)
                    number = reserve(queue)
                    os.kill(os.getpid(), message["signal"])
                    queue.skip(number)
                case "limit":
                    nbytes = psutil.Process().memory_info().vms + message["nbytes"]
                    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
                    await comm.write("limited")
                case "share":
                    key, flags = os.getpid(), 0o3600  # IPC_CREAT | IPC_EXCL
                    await comm.write(ctypes.CDLL(None).shmget(key, message["nbytes"], flags))
                case "falter":
                    comm.channel._sender._communicator = Faltering(comm.channel.communicator)
                    await comm.write({"x": to_serialize(payload(message["nbytes"]))})
    except CommClosedError:
        await comm.close()


async def ask(comm: Any, op: str, **fields: Any) -> Any:
    """Return a peer's answer to a message."""
    await comm.write({"op": op, **fields})
    return await comm.read()


async def exchange(comm: Any) -> None:
    """Check that a small message comes back over a connection."""
    assert await ask(comm, "echo", pid=os.getpid()) == {"op": "echo", "pid": os.getpid()}


async def check_echo(address: str, timeout: float | None = None) -> None:
    """Check that a small message comes back over a new connection."""
    comm = await connect(address, timeout=timeout)
    await exchange(comm)
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

    async def check(self) -> None:
        """Check that a new connection carries small and large messages."""
        comm = await connect(self.address)
        for nbytes in (1, 10_000_000):
            x = payload(nbytes)
            assert await ask(comm, "sum", x=to_serialize(x)) == x.sum(dtype="u8")
        await comm.close()

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
    """Start processes that listen; an address may stand for the protocol."""
    address = protocol if "://" in protocol else f"{protocol}://127.0.0.1:0"
    started = [Peer(__file__, address) for _ in range(number)]
    try:
        await asyncio.gather(*(peer.ready() for peer in started))
        yield started
    finally:
        for peer in started:
            peer.end()


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for `condition`, with a bound that only a hang misses."""
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def no_connect_is_left() -> None:
    """Wait until no thread is in, or kept after, a call of MPI_Comm_connect."""
    await until(
        lambda: not any(thread.name == "mpi-connect" for thread in threading.enumerate()),
        "threads are left",
    )
    assert not pairing._connecting


async def _serve(address: str) -> None:
    async with listen(address, handler) as listener:
        print(listener.contact_address, flush=True)
        # Ends with the process that started it, even if that one is killed.
        await asyncio.to_thread(sys.stdin.read)


async def _connect(address: str) -> None:
    print("connecting", flush=True)
    comm = await connect(address)
    while True:
        await exchange(comm)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]) if len(sys.argv) == 2 else _connect(sys.argv[2]))

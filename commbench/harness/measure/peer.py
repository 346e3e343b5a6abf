"""The other process of a pair: it answers what the timed loop sends it.

Run as ``python -m commbench.harness.measure.peer BACKEND LAYER``; it prints its address and serves
until it is ended. The initiator announces of what kind and size the next exchanges are; at the
layer ``comm`` what is no announcement is sent back.
"""

from __future__ import annotations

import asyncio
import enum
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from commbench import backends
from commbench.backends.base import Backend
from commbench.backends.endpoints import DeviceEndpoint, Endpoint, get_endpoints
from commbench.errors import LaunchError
from commbench.machine import gpu, process
from commbench.workloads.device import array_library

STAMP_BYTES = 8
"""How much of a window's last message the acknowledgement holds."""
ROUND = struct.Struct("<QQQQ")
"""An announcement between endpoints: size, number of exchanges, kind, window."""


class Kind(enum.IntEnum):
    """What may be announced."""

    END = 0
    """Nothing more comes."""
    PING = 1
    """Messages to be sent back, one by one."""
    STREAM = 2
    """Windows of messages, each to be acknowledged."""
    CROSS = 3
    """The same while as many are sent the other way; what to send comes first."""
    SHOW = 4
    """A request for the whole of the last message."""
    TRANSPORT = 5
    """A question: what carries this connection?"""


def byte_array(content: bytes) -> Any:
    """Return a NumPy array of `content` that can be written to."""
    import numpy

    return numpy.frombuffer(bytearray(content), numpy.uint8)


async def write_window(comm: Any, payload: Any, count: int) -> None:
    """Write `payload` to `comm` `count` times."""
    from distributed.protocol import to_serialize

    for _ in range(count):
        await comm.write(to_serialize(payload))


async def read_window(comm: Any, count: int) -> Any:
    """Read `count` messages from `comm` and return the last."""
    for _ in range(count):
        message = await comm.read()
    return message


@contextmanager
def started(
    backend: str, layer: str, log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start such a process, with `environ` besides, give it and its address, and end it.

    Raises
    ------
    LaunchError
        Where it ends before it listens.
    """
    with log.open("ab") as errors:
        peer = subprocess.Popen(
            [sys.executable, "-m", "commbench.harness.measure.peer", backend, layer],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **(environ or {})},
        )
    with peer:
        try:
            assert peer.stdout is not None
            address = peer.stdout.readline().decode().strip()
            if not address:
                raise LaunchError(
                    f"the peer {process.describe_exit(peer.wait())} before it listened"
                    + process.tail(log)
                )
            yield peer, address
        finally:
            peer.terminate()


@asynccontextmanager
async def serve(layer: str, backend: Backend) -> AsyncIterator[str]:
    """Answer at that layer, and give the address."""
    if layer == "comm":
        from distributed.comm import listen

        async with listen(f"{backend.protocol}://127.0.0.1:0", _comm_answers(backend)) as listener:
            yield listener.contact_address
    else:
        async with get_endpoints(backend, layer).listen(_endpoint_answers) as address:
            yield address


def _comm_answers(backend: Backend) -> Any:
    from distributed.comm import CommClosedError
    from distributed.protocol import to_serialize

    async def answer(comm: Any) -> None:
        last: Any = None
        try:
            while True:
                message = await comm.read()
                if not isinstance(message, dict):
                    await comm.write(to_serialize(message))
                elif message["kind"] == Kind.TRANSPORT:
                    used = backend.transport(comm)
                    await comm.write({"name": used.name, "evidence": used.evidence})
                elif message["kind"] == Kind.SHOW:
                    await comm.write(to_serialize(last))
                else:
                    crosses, window = message["kind"] == Kind.CROSS, message["window"]
                    theirs = await comm.read() if crosses else None
                    for _ in range(message["count"]):
                        writing = write_window(comm, theirs, window if crosses else 0)
                        last, _ = await asyncio.gather(read_window(comm, window), writing)
                        await comm.write(to_serialize(last[:STAMP_BYTES]))
        except CommClosedError:
            pass

    return answer


def _blank(size: int) -> Any:
    """Return an array of zeros where this process's messages lie."""
    found = byte_array(bytes(size))
    if gpu.in_use():
        found = array_library("gpu").asarray(found)
        gpu.synchronize()
    return found


async def _endpoint_answers(endpoint: Endpoint) -> None:
    if gpu.in_use():
        endpoint = DeviceEndpoint(endpoint)
    header = byte_array(bytes(ROUND.size))
    buffer = theirs = header[:0]
    while True:
        await endpoint.receive(header)
        size, count, kind, window = ROUND.unpack(header.data)
        if kind == Kind.END:
            return
        if kind == Kind.SHOW:
            await endpoint.send(buffer)
            continue
        if buffer.size != size:
            buffer, theirs = _blank(size), _blank(size)
        acknowledgement = buffer[:STAMP_BYTES]
        if kind == Kind.CROSS:
            await endpoint.receive(theirs)
        for _ in range(count):
            if kind == Kind.PING:
                await endpoint.pong(buffer)
                continue
            if kind == Kind.STREAM:
                await endpoint.receive_window(buffer, window)
            else:
                await endpoint.cross_windows(theirs, buffer, window)
            await endpoint.send(acknowledgement)


async def main(backend: str, layer: str) -> None:
    """Serve and print the address."""
    gpu.set_up()
    async with serve(layer, backends.parse(backend)) as address:
        print(address, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    process.die_with_parent()
    asyncio.run(main(*sys.argv[1:]))

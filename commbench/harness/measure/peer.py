"""The peer process of a pair, which answers the messages of the timed loop.

Run as ``python -m commbench.harness.measure.peer BACKEND LAYER``, it prints its address and serves
until it is terminated. The initiator announces the kind and size of the next exchanges; at the
layer ``comm`` all other messages are echoed.
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
"""The bytes of a window's last message in the acknowledgement."""
ROUND = struct.Struct("<QQQQ")
"""An announcement between endpoints: size, number of exchanges, kind, window."""


class Kind(enum.IntEnum):
    """The kinds of announcements."""

    END = 0
    """The end of the connection."""
    PING = 1
    """Messages to echo one by one."""
    STREAM = 2
    """Windows of messages, each of which is acknowledged."""
    CROSS = 3
    """Windows in both directions; the peer's message follows the announcement."""
    SHOW = 4
    """A request for the whole of the last message."""
    TRANSPORT = 5
    """A request for the connection's transport."""


def byte_array(content: bytes) -> Any:
    """Return a writable NumPy array of `content`."""
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
    """Start a peer process with further variables `environ`; yield it and its address.

    Raises
    ------
    LaunchError
        If it ends before it listens.
    """
    arguments = ("commbench.harness.measure.peer", backend, layer)
    with running(*arguments, log=log, environ=environ or {}, stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None
        address = peer.stdout.readline().decode().strip()
        if not address:
            raise LaunchError(
                f"the peer {process.describe_exit(peer.wait())} before it listened"
                + process.tail(log)
            )
        yield peer, address


@contextmanager
def running(
    *module: str, log: Path, environ: Mapping[str, str], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python module with arguments in a process, whose errors go to `log`; end it after."""
    with log.open("ab") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", *module],
            stderr=errors, env={**os.environ, **environ}, **options,
        )  # fmt: skip
    with child:
        try:
            yield child
        finally:
            child.terminate()


@asynccontextmanager
async def serve(layer: str, backend: Backend) -> AsyncIterator[str]:
    """Serve connections at `layer`, and yield the address."""
    if layer == "comm":
        from distributed import Security
        from distributed.comm import listen

        secrets = Security().get_listen_args("worker")
        address = f"{backend.protocol}://127.0.0.1:0"
        async with listen(address, _comm_answers(backend), **secrets) as listener:
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
    """Return an array of zeros, in GPU memory if the launch measures it."""
    zeros = byte_array(bytes(size))
    if gpu.in_use():
        zeros = array_library("gpu").asarray(zeros)
        gpu.synchronize()
    return zeros


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

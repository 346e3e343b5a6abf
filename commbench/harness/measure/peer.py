"""The other process of a pair: it answers every message with what it read.

Run as ``python -m commbench.harness.measure.peer BACKEND LAYER``; it prints its address and serves
until it is ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from commbench import backends
from commbench.errors import LaunchError
from commbench.harness.measure import answers
from commbench.machine import gpu, process


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
    assert peer.stdout is not None
    try:
        address = peer.stdout.readline().decode().strip()
        if not address:
            raise LaunchError(
                f"the peer {process.describe_exit(peer.wait())} before it listened"
                + process.tail(log)
            )
        yield peer, address
    finally:
        peer.terminate()
        peer.stdout.close()
        peer.wait()


async def main(backend: str, layer: str) -> None:
    """Serve and print the address."""
    gpu.set_up()
    async with answers.serve(layer, backends.parse(backend)) as address:
        print(address, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    process.die_with_parent()
    asyncio.run(main(*sys.argv[1:]))

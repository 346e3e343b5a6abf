"""The other process of a pair: it answers every message with what it read.

Run as ``python -m commbench.measure.peer BACKEND LAYER``; it prints its address and serves until
it is ended.
"""

from __future__ import annotations

import asyncio
import sys

from commbench import backends, process
from commbench.measure import answers


async def main(backend: str, layer: str) -> None:
    """Serve and print the address."""
    async with answers.serve(layer, backends.parse(backend)) as address:
        print(address, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    process.die_with_parent()
    asyncio.run(main(*sys.argv[1:]))

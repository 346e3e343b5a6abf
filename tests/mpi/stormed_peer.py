"""A process that connects to an address and exchanges messages until it is killed."""

from __future__ import annotations

import asyncio
import sys

from distributed.comm import connect


async def main(address: str) -> None:
    """Say when the first connect begins, and go on for ever."""
    print("connecting", flush=True)
    comm = await connect(address)
    while True:
        await comm.write({"op": "echo"})
        await comm.read()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

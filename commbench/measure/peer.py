"""The other process of a pair: it answers every message with what it read.

Run as ``python -m commbench.measure.peer BACKEND``; it prints its address and serves until it is
ended.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from commbench import backends, process
from commbench.backends.base import Backend

ASK_TRANSPORT = {"commbench": "transport"}
"""The one message that is answered otherwise: with what carries the connection at this end."""


async def serve(backend: Backend) -> None:
    """Listen on the loopback interface and print the address."""
    from distributed.comm import CommClosedError, listen
    from distributed.protocol import to_serialize

    async def echo(comm: Any) -> None:
        try:
            while True:
                message = await comm.read()
                if isinstance(message, dict):
                    used = backend.transport(comm)
                    await comm.write({"name": used.name, "evidence": used.evidence})
                else:
                    await comm.write(to_serialize(message))
        except CommClosedError:
            pass

    async with listen(f"{backend.protocol}://127.0.0.1:0", echo) as listener:
        print(listener.contact_address, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    process.die_with_parent()
    asyncio.run(serve(backends.parse(sys.argv[1])))

"""A cluster of many workers in one process, whose logs are filled: ``python tests/simulated.py N``.

Scheduler and workers are Dask's own, each worker with a tcp address of its own; they share one
event loop, so what is simulated is their number, not their speed. Prints the scheduler's address
and lives until standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any

_AT_ONCE = 50


async def serve(n_workers: int) -> None:
    """Start the cluster, tell where it is, and keep it until standard input ends."""
    import dask
    from distributed import Scheduler, Worker

    # Profiling and heartbeats of many workers would keep the one loop busy by themselves.
    dask.config.set({"distributed.worker.profile.enabled": False})
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(
            Scheduler(host="127.0.0.1", port=0, dashboard=False)
        )
        workers = [
            Worker(
                scheduler.address, name=str(number), nthreads=1, host="127.0.0.1",
                dashboard=False, memory_limit=0, heartbeat_interval="60s",
            )
            for number in range(n_workers)
        ]  # fmt: skip
        for first in range(0, n_workers, _AT_ONCE):
            await asyncio.gather(*map(stack.enter_async_context, workers[first : first + _AT_ONCE]))
        print(scheduler.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        # To part from a thousand workers in an orderly way takes minutes.
        os._exit(0)


def fill(count: int, senders: list[str], dask_worker: Any) -> None:
    """Append `count` entries to the worker's log, each like those that Dask makes."""
    for number in range(count):
        start, who = 1.8e9 + number / 1000, senders[number % len(senders)]
        dask_worker.transfer_incoming_log.append(
            {
                "start": start, "stop": start + 0.0005, "middle": start + 0.00025,
                "duration": 0.001, "who": who, "keys": {("x", number, 0): 1_000_000},
                "total": 1_000_000 + number, "bandwidth": 1e9,
            }
        )  # fmt: skip


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))

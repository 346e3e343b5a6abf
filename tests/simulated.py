"""Clusters of many workers in few processes, whose logs are filled, to see what collecting costs.

Scheduler and workers are Dask's own, each worker with a tcp address of its own. What is simulated
is their number, not their speed: the scheduler has a process for itself, and the workers share the
event loops of ``N_PROCESSES`` others. ``python tests/simulated.py scheduler`` prints the
scheduler's address, ``python tests/simulated.py ADDRESS FIRST LAST`` starts workers of these
numbers; each lives until its standard input ends.
"""

import asyncio
import contextlib
import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

N_PROCESSES = 4
_AT_ONCE = 50
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1h",
    "distributed.admin.tick.cycle": "1h",
    "distributed.admin.system-monitor.interval": "1h",
}
"""Each costs a worker little: of hundreds in one event loop, or for minutes, it is much."""
_QUIET = QUIET | {
    "distributed.comm.timeouts.connect": "120s",
    "logging": {"distributed": "error"},
}


@contextmanager
def cluster(n_workers: int) -> Iterator[str]:
    """Start a simulated cluster and give its scheduler's address."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(_process("scheduler"))
        edges = [n_workers * number // N_PROCESSES for number in range(N_PROCESSES + 1)]
        for first, last in itertools.pairwise(edges):
            if first < last:
                stack.enter_context(_process(address, str(first), str(last)))
        yield address


@contextmanager
def _process(*arguments: str) -> Iterator[str]:
    """Start a part of a cluster, give what it says when it is there, and end it."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline().strip()
            assert line, f"{command} ended with status {process.wait()}"
            yield line
        finally:
            # To part from a thousand workers in an orderly way takes minutes.
            process.kill()


class Traffic:
    """Counts the bytes that this process, the scheduler's, reads from and writes to comms."""

    def __init__(self) -> None:
        from distributed.comm import tcp

        self.n_read = self.n_written = 0
        read, write = tcp.read_bytes_rw, tcp.TCP.write

        async def counted_read(stream: Any, n: int) -> Any:
            self.n_read += n
            return await read(stream, n)

        async def counted_write(comm: Any, *args: Any, **kwargs: Any) -> Any:
            nbytes = await write(comm, *args, **kwargs)
            self.n_written += nbytes
            return nbytes

        tcp.read_bytes_rw, tcp.TCP.write = counted_read, counted_write


def told(dask_scheduler: Any) -> tuple[int, int, float]:
    """Return the bytes read, the bytes written and the CPU seconds used; runs on the scheduler."""
    import time

    traffic = dask_scheduler.commbench_traffic
    return traffic.n_read, traffic.n_written, time.process_time()


def fill(count: int, dask_worker: Any) -> None:
    """Append `count` entries to the worker's log, each like those that Dask makes."""
    senders = dask_worker.commbench_peers
    for number in range(count):
        start, who = 1.8e9 + number / 1000, senders[number % len(senders)]
        dask_worker.transfer_incoming_log.append(
            {
                "start": start, "stop": start + 0.0005, "middle": start + 0.00025,
                "duration": 0.001, "who": who, "keys": {("x", number, 0): 1_000_000},
                "total": 1_000_000 + number, "bandwidth": 1e9,
            }
        )  # fmt: skip


async def _schedule() -> None:
    from distributed import Scheduler

    traffic = Traffic()
    async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
        scheduler.commbench_traffic = traffic
        print(scheduler.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _work(address: str, first: int, last: int) -> None:
    from distributed import Worker

    async with contextlib.AsyncExitStack() as stack:
        workers = [
            Worker(
                address, name=str(number), nthreads=1, host="127.0.0.1", dashboard=False,
                memory_limit=0, heartbeat_interval="120s",
            )
            for number in range(first, last)
        ]  # fmt: skip
        for begin in range(0, len(workers), _AT_ONCE):
            some = workers[begin : begin + _AT_ONCE]
            await asyncio.gather(*map(stack.enter_async_context, some))
        for worker in workers:
            worker.commbench_peers = [worker.address for worker in workers]
        print(f"{first} to {last}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)


def main(address: str, *edges: str) -> None:
    """Be the scheduler, or some workers."""
    import dask

    # Two descriptors a worker at each end.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    dask.config.set(_QUIET)
    asyncio.run(_schedule() if address == "scheduler" else _work(address, *map(int, edges)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One of several pairs: a process that streams windows of messages to its peer.

Run as ``python -m commbench.harness.measure.stream FD`` by :mod:`commbench.harness.measure.pairs`,
which tells it over that connection when to begin and to stop. Once it has sent as many windows as
asked for it says so, and goes on: no pair may stop while another one still counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from commbench.backends.base import Backend
from commbench.errors import CommbenchError, LaunchError
from commbench.harness.measure.layers import open_conversation
from commbench.harness.measure.windows import Timing, Windows
from commbench.machine import gpu, process
from commbench.workloads.base import PairWorkload

_MIN_WINDOWS = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a pair is told first."""

    pair: int
    backend: Backend
    layer: str
    address: str
    workload: PairWorkload
    warmups: int
    iterations: int


async def stream(told: Connection) -> None:
    """Do what is told, and answer each step when it is done."""
    # A thread that waits for a word costs nothing, and whether one has come is known at once.
    listener = ThreadPoolExecutor(1)

    def word() -> Future[Any]:
        return listener.submit(told.recv)

    job: Job = await asyncio.wrap_future(word())
    workload = job.workload
    gpu.set_up()
    conversation = await open_conversation(
        job.layer, job.address, job.backend, workload, workload.mode
    )
    told.send(None)
    await asyncio.wrap_future(word())
    for size in workload.sizes:
        windows = Windows(conversation, workload, size, job.pair)
        await _warm_up(windows, job, size)
        told.send(None)
        start_s = await asyncio.wrap_future(word())
        stop = word()
        await asyncio.sleep(max(0.0, start_s - time.perf_counter()))
        timings: list[Timing] = []
        enough = False
        while not stop.done():
            timings.append(await windows.exchange())
            if not enough and _is_enough(timings, job, size):
                enough = True
                told.send(None)
        stop.result()
        told.send(timings)
        await asyncio.wrap_future(word())
        await windows.finish()
    told.send(await conversation.transports())
    await asyncio.wrap_future(word())
    await conversation.close()
    told.send(None)


async def _warm_up(windows: Windows, job: Job, size: int) -> None:
    began = time.perf_counter()
    for _ in range(job.workload.n_samples(size, job.warmups)):
        await windows.exchange()
        if time.perf_counter() - began > job.workload.seconds_per_size:
            break


def _is_enough(timings: list[Timing], job: Job, size: int) -> bool:
    took_s = timings[-1][1] - timings[0][0]
    return len(timings) >= job.workload.n_samples(size, job.iterations) or (
        len(timings) >= _MIN_WINDOWS and took_s > job.workload.seconds_per_size
    )


def main(descriptor: int) -> None:
    """Stream, and tell what went wrong."""
    told = Connection(descriptor)
    try:
        asyncio.run(stream(told))
    except CommbenchError as error:
        told.send(error)
    except Exception as error:  # noqa: BLE001 - whatever went wrong must reach the report
        traceback.print_exc()
        told.send(LaunchError(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    process.die_with_parent()
    main(int(sys.argv[1]))

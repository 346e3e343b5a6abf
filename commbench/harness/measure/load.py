"""A stream of large messages that runs beside a measurement, over a connection of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from commbench.harness.measure.layers import Conversation
from commbench.harness.measure.windows import Windows
from commbench.workloads.base import PairWorkload


async def under_load(
    measure: Callable[[], Awaitable[None]], conversation: Conversation, workload: PairWorkload
) -> tuple[int, float]:
    """Await `measure` while windows of the load's size follow each other without a pause.

    It begins when a first window has arrived. Where the load breaks off, so does the measurement:
    nothing must pass for measured under load that was not.

    Parameters
    ----------
    measure
        What to measure.
    conversation
        A connection of which an exchange is a window, used by nothing else.
    workload
        Makes the messages and checks them; its ``load_size`` is theirs.

    Returns
    -------
    tuple
        The bytes that the load moved, and the seconds in which it did.
    """
    flows, stop = asyncio.Event(), asyncio.Event()

    async def stream() -> tuple[int, float]:
        windows = Windows(conversation, workload, workload.params.load_size)
        await windows.exchange()
        flows.set()
        began, n_windows = time.perf_counter(), 0
        while not stop.is_set():
            await windows.exchange()
            n_windows += 1
        seconds = time.perf_counter() - began
        await windows.finish()
        return n_windows * workload.window * workload.params.load_size, seconds

    async def measured() -> None:
        await flows.wait()
        await measure()

    load, measuring = asyncio.create_task(stream()), asyncio.create_task(measured())
    try:
        await asyncio.wait((load, measuring), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        moved = await load
        await measuring
    finally:
        load.cancel()
        measuring.cancel()
        await asyncio.gather(load, measuring, return_exceptions=True)
    return moved

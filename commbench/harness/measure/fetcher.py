"""What fetches blocks on the workers of all-to-all, and holds them until they are checked.

A worker fetches by ``distributed.worker.get_data_from_worker``, as it does for what a task needs,
and reads its clocks at the same two places as Dask's own transfer log, which sees nothing of it.
What it fetched it keeps only until its bytes are checked: no fetch is spared.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from commbench.errors import VerificationError
from commbench.machine import gpu
from commbench.workloads.base import FetchWorkload

_BUSY_SECONDS = 0.15
"""How long Dask waits before it asks a busy sender again."""


class Fetcher(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that fetches blocks, and holds them until they are checked."""

    name = "commbench-fetcher"

    def __init__(self, workload: FetchWorkload) -> None:
        self._workload = workload
        self._fetched: list[tuple[int, int, Any]] = []
        self._log: list[tuple[int, float, float, int]] = []

    def setup(self, worker: Any) -> None:
        """Remember whose fetches these are."""
        self._worker = worker

    async def fetch(self, owner: int, address: str, size: int) -> None:
        """Fetch one block; a busy sender is asked again, and only the last answer is timed."""
        from distributed.worker import get_data_from_worker

        n_busy = 0
        while True:
            began_at, began = time.time(), time.perf_counter()
            answer = await get_data_from_worker(
                rpc=self._worker.rpc,
                keys=[key(owner, size)],
                worker=address,
                who=self._worker.address,
            )
            gpu.synchronize(self._workload.context.device)
            seconds = time.perf_counter() - began
            if answer["status"] != "busy":
                break
            n_busy += 1
            await asyncio.sleep(_BUSY_SECONDS)
        self._fetched.append((owner, size, answer["data"][key(owner, size)]))
        self._log.append((owner, began_at, began_at + seconds, n_busy))

    def take(self) -> str:
        """Return what was logged since the last call, and forget it."""
        log, self._log = self._log, []
        names = ("owner", "start_s", "stop_s", "n_busy")
        return json.dumps(dict(zip(names, zip(*log, strict=True), strict=True)))

    def check(self) -> str:
        """Check all that was fetched, let go of it, and return what is wrong with it, if it is."""
        fetched, self._fetched = self._fetched, []
        try:
            for block in fetched:
                self._workload.check(*block)
        except VerificationError as error:
            return str(error)
        return ""


def key(owner: int, size: int) -> str:
    """Return the key of a block."""
    return f"commbench-block-{owner}-{size}"


async def in_turn(owners: Sequence[tuple[int, str]], size: int, dask_worker: Any) -> None:
    """Fetch a block of each of `owners`, one after another; runs on a worker."""
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    for owner in owners:
        await fetcher.fetch(*owner, size)


async def at_once(
    owners: Sequence[tuple[int, str]], size: int, begin_at_s: float, ahead: dict[str, float],
    dask_worker: Any,
) -> None:  # fmt: skip
    """Fetch a block of each of the other `owners`, all at once; runs on a worker.

    Parameters
    ----------
    ahead
        By how many seconds the clocks of workers on other hosts are ahead, by address.
    """
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    own = [address for _, address in owners].index(dask_worker.address)
    # Each begins with its next one: else all would ask the same sender first.
    others = (*owners[own + 1 :], *owners[:own])
    await asyncio.sleep(begin_at_s + ahead.get(dask_worker.address, 0.0) - time.time())
    await asyncio.gather(*(fetcher.fetch(*owner, size) for owner in others))


def check(dask_worker: Any) -> str:
    """Return what is wrong with what was fetched, or nothing; runs on a worker."""
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    return fetcher.check()


def take(dask_worker: Any) -> str:
    """Return the fetches since the last call; runs on a worker.

    Returns
    -------
    JSON of an object of lists, one item per fetch
        ``owner`` by number, ``start_s`` and ``stop_s`` since the epoch on the worker's own clock,
        ``n_busy`` answers before it.
    """
    fetcher: Fetcher = dask_worker.plugins[Fetcher.name]
    return fetcher.take()

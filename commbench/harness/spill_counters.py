"""Counters of what full workers do: write values to disk, and pause."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_CHANGES = ("worker-status-change", "remove-worker")


def written(dask_worker: Any) -> tuple[int, int]:
    """Return the number of values that a worker has spilled so far, and their bytes on disk.

    Dask doesn't count them without a memory limit, or with dask-cuda's store. Runs on a worker.
    """
    metrics = getattr(dask_worker.data, "cumulative_metrics", {})
    counts = (metrics.get(("disk-write", unit), 0) for unit in ("count", "bytes"))
    n_values, nbytes = map(int, counts)
    return n_values, nbytes


def paused(
    addresses: Collection[str], since_s: float, until_s: float, dask_scheduler: Any
) -> dict[str, float]:
    """Return the seconds in which workers were paused between two times, by address.

    The scheduler also knows this of workers that have left. Those that never were paused are left
    out. Runs on the scheduler, whose clock counts.
    """
    seconds = dict[str, float]()
    for address in addresses:
        began_s, total_s = None, 0.0
        for at_s, event in dask_scheduler.get_events(address):
            if not isinstance(event, dict) or event.get("action") not in _CHANGES:
                continue
            if event.get("status") == "paused":
                began_s = at_s
            elif began_s is not None:
                total_s += max(0.0, min(at_s, until_s) - max(began_s, since_s))
                began_s = None
        if began_s is not None:
            total_s += max(0.0, until_s - max(began_s, since_s))
        if total_s:
            seconds[address] = total_s
    return seconds

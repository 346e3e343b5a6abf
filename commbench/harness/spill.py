"""What workers wrote to disk because their memory was full."""

from __future__ import annotations

from typing import Any, NamedTuple


class Written(NamedTuple):
    """Since the worker's start: values that it wrote to disk, and their size there."""

    n_values: int
    nbytes: int


def written(dask_worker: Any) -> Written:
    """Return what a worker has spilled so far; runs on a worker.

    A worker without a limit of memory, or with a store of its own as dask-cuda's, spills nothing
    that Dask knows of.
    """
    metrics = getattr(dask_worker.data, "cumulative_metrics", {})
    counts = (metrics.get(("disk-write", unit), 0) for unit in ("count", "bytes"))
    return Written(*map(int, counts))

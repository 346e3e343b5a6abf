"""Values that workers wrote to disk because their memory was full."""

from __future__ import annotations

from typing import Any


def written(dask_worker: Any) -> tuple[int, int]:
    """Return the number of values that a worker has spilled so far, and their bytes on disk.

    Dask doesn't count them without a memory limit, or with dask-cuda's store. Runs on a worker.
    """
    metrics = getattr(dask_worker.data, "cumulative_metrics", {})
    counts = (metrics.get(("disk-write", unit), 0) for unit in ("count", "bytes"))
    n_values, nbytes = map(int, counts)
    return n_values, nbytes

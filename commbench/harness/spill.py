"""Values that workers wrote to disk because their memory was full."""

from __future__ import annotations

from typing import Any, NamedTuple


class Written(NamedTuple):
    """The values that a worker has written to disk since its start, and their size there."""

    n_values: int
    nbytes: int


def written(dask_worker: Any) -> Written:
    """Return the values that a worker has spilled so far; runs on a worker.

    Dask doesn't count spilled values without a memory limit, or with dask-cuda's store.
    """
    metrics = getattr(dask_worker.data, "cumulative_metrics", {})
    counts = (metrics.get(("disk-write", unit), 0) for unit in ("count", "bytes"))
    return Written(*map(int, counts))

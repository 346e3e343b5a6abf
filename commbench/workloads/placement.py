"""Restore the distribution of a workload's input over the workers before every iteration.

A worker that fetches a block of persisted input keeps the copy as long as the input exists, so a
second computation on the same input would move less than the first. The bytes moved also depend on
which worker happened to create a block. dask-cuda's benchmarks create new input for every run;
here its blocks are moved back instead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from commbench.errors import LaunchError

_SECONDS = 120.0


def rebalance(client: Any, *collections: Any) -> None:
    """Move blocks so that each worker has one run of successive blocks, and drop other copies.

    Blocks are sorted by index and workers by name, so every iteration of every launch starts from
    the same layout. The collections are persisted arrays or data frames; each is distributed over
    all workers.

    Raises
    ------
    LaunchError
        If the blocks have not been moved after two minutes.
    """
    from distributed import futures_of

    groups = [
        [future.key for future in sorted(futures_of(collection), key=lambda f: tuple(f.key[1:]))]
        for collection in collections
    ]
    deadline = time.monotonic() + _SECONDS
    while n_left := client.run_on_scheduler(_rebalance_once, groups):
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{n_left} blocks of the input can't be moved to their workers within {_SECONDS:g} "
                "s; workers may be short of memory"
            )
        time.sleep(0.01)


def _rebalance_once(groups: Sequence[Sequence[Any]], dask_scheduler: Any) -> int:
    from distributed.active_memory_manager import (
        ActiveMemoryManagerExtension,
        ActiveMemoryManagerPolicy,
        Suggestion,
    )

    workers = sorted(dask_scheduler.workers.values(), key=lambda w: (len(str(w.name)), str(w.name)))
    homes = {
        dask_scheduler.tasks[key]: workers[index * len(workers) // len(keys)]
        for keys in groups
        for index, key in enumerate(keys)
    }

    class AtHome(ActiveMemoryManagerPolicy):  # type: ignore[misc] # distributed is untyped
        def run(self) -> Any:
            for task, home in homes.items():
                if home not in task.who_has:
                    yield Suggestion("replicate", task, {home})
                else:
                    for other in task.who_has - {home}:
                        yield Suggestion("drop", task, {other})

    ActiveMemoryManagerExtension(dask_scheduler, {AtHome()}, register=False, start=False).run_once()
    return sum(task.who_has != {home} for task, home in homes.items())

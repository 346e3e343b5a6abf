"""Where a workload's input lies: block by block on one worker, the same in every iteration.

A worker that fetches a block of persisted input keeps its copy for as long as the input lives, so
that a second computation on the same input moves less than the first and a third perhaps nothing.
And which worker creates a block is a matter of luck, on which the bytes moved depend. dask-cuda's
benchmarks create their input anew for every run; here it is put back in place instead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from commbench.errors import LaunchError

_SECONDS = 120.0


def settle(client: Any, *collections: Any, seconds: float = _SECONDS) -> None:
    """Leave one copy of each block: equal runs of successive blocks on successive workers.

    Blocks are taken in the order of their places (arrays row by row) and workers in that of
    their names, so that every iteration of every launch starts from the same layout.

    Parameters
    ----------
    client
        The client of the cluster.
    collections
        Persisted arrays or data frames, each spread over the workers by itself.
    seconds
        How long it may take.

    Raises
    ------
    LaunchError
        Where the blocks are not in place by then.
    """
    from distributed import futures_of

    groups = [
        [future.key for future in sorted(futures_of(collection), key=lambda f: tuple(f.key[1:]))]
        for collection in collections
    ]
    deadline = time.monotonic() + seconds
    while n_left := client.run_on_scheduler(_settle_once, groups):
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{n_left} blocks of the input can't be put in place within {seconds:g} s; "
                "workers may be short of memory"
            )
        time.sleep(0.01)


def _settle_once(groups: Sequence[Sequence[Any]], dask_scheduler: Any) -> int:
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

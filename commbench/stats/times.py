"""What each worker did with the wall time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.stats.intervals import spans_in, union_length
from commbench.stats.selection import measured

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData


def worker_times(run: RunData) -> pd.DataFrame:
    """Divide the wall time of every iteration, per worker, by what the worker was doing.

    Returns
    -------
    DataFrame
        One row per case, launch, iteration and worker: ``wall_s`` and the four parts that add up
        to it: ``transfer_only_s`` (at least one incoming fetch and no task), ``overlap_s`` (both),
        ``compute_only_s`` (at least one task), ``neither_s``.
    """
    import numpy as np
    import pandas as pd

    key = ["case_id", "launch", "iteration", "worker"]
    fetches = dict(iter(run.transfers.rename(columns={"dst": "worker"}).groupby(key)))
    tasks = dict(iter(run.tasks[run.tasks.action == "compute"].groupby(key)))
    rows = []
    for sample in measured(run.samples).itertuples():
        counts = run.log_counts
        here = (counts.case_id == sample.case_id) & (counts.launch == sample.launch)
        window = (sample.started_at_s, sample.started_at_s + sample.seconds)
        for worker in counts[here & (counts.iteration == sample.iteration)].worker:
            place = (sample.case_id, sample.launch, sample.iteration, worker)
            transfer = spans_in(fetches.get(place), window)
            compute = spans_in(tasks.get(place), window)
            either = union_length(np.concatenate([transfer, compute]))
            in_transfer, in_compute = union_length(transfer), union_length(compute)
            rows.append(
                {
                    **dict(zip(key, place, strict=True)),
                    "workload": sample.workload,
                    "backend": sample.backend,
                    "wall_s": sample.seconds,
                    "transfer_only_s": either - in_compute,
                    "overlap_s": in_transfer + in_compute - either,
                    "compute_only_s": either - in_transfer,
                    "neither_s": sample.seconds - either,
                }
            )
    return pd.DataFrame(rows)

"""What each worker did with the wall time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commbench.stats.intervals import Spans, divide
from commbench.stats.selection import measured

if TYPE_CHECKING:
    import pandas as pd

    from commbench.analysis.run import Run

_PARTS = ("transfer_only_s", "overlap_s", "compute_only_s", "neither_s")


def worker_times(run: Run) -> pd.DataFrame:
    """Divide the wall time of every iteration, per worker, by what the worker was doing.

    Returns
    -------
    DataFrame
        One row per case, launch, iteration and worker: ``wall_s`` and the four parts that add up
        to it: ``transfer_only_s`` (at least one incoming fetch and no task), ``overlap_s`` (both),
        ``compute_only_s`` (at least one task), ``neither_s``.
    """
    import pandas as pd

    key = ["case_id", "launch", "iteration", "worker"]
    fetches = Spans(run.transfers, [*key[:3], "dst"])
    tasks = Spans(run.tasks[run.tasks.action == "compute"], key)
    # Every worker has a count in every iteration, whatever it did.
    samples = measured(run)
    windows = samples[samples["layer"] == "workload"].merge(run.log_counts[key], on=key[:3])
    rows = []
    for window in windows.itertuples():
        place = (window.case_id, window.launch, window.iteration, window.worker)
        transfer = fetches.within(place, window.started_at_s, window.seconds)
        compute = tasks.within(place, window.started_at_s, window.seconds)
        parts = divide(window.seconds, transfer, compute)
        rows.append((*place, window.workload, window.backend, window.seconds, *parts))
    return pd.DataFrame(rows, columns=[*key, "workload", "backend", "wall_s", *_PARTS])

"""Threads that are no task's and hold the GIL, for which tasks wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import MIN_EFFECT, CaseRecords, Rule
from commbench.model import Finding

_WINDOW = ["launch", "iteration"]
_KEY = [*_WINDOW, "worker"]
_CONTENDED = 0.1
"""The least share of the time in which a request for the GIL has to wait."""
_MIN_RESTS = 3
"""The readings of a worker's use of cores without a task that show what its threads do then."""
_LEAST = 0.1
"""Dask's threads that write P2P shuffles, or sample where tasks are, use less of a core."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if tasks are blocked while Python threads that are no task's compute.

    Tasks can be blocked by such a thread for as long as it is on a core. One worker that is late
    may delay the others.
    """
    threads = case.measured_rows("threads")
    threads = threads[threads["role"].isin(["other", "actors"])]
    workers = case.profiles[case.profiles["process"] == "workers"].set_index(_KEY)
    spent_s = threads.groupby(_KEY, observed=True)["cpu_seconds"].sum()
    used = spent_s.reindex(workers.index, fill_value=0.0) / workers["wall_s"]
    used = used.where(~_rest_with_tasks(case, used), 0.0)
    # If gilknocker is installed, it is known how often the GIL is busy.
    gil = case.share("gil_s")
    is_free = gil.median() < _CONTENDED
    lost = np.minimum(workers["blocked_s"] / workers["wall_s"], used.where(used >= _LEAST, 0.0))
    by_window = lost.groupby(level=_WINDOW)
    # While the GIL is free, nobody waits for it.
    average, worst = np.fmin(by_window.mean(), gil), np.fmin(by_window.max(), gil)
    if is_free or not average.median() >= MIN_EFFECT:
        return
    busy = used.groupby(level=_WINDOW).max().median()
    blocked = workers["blocked_s"] / workers["wall_s"]
    yield Finding(
        statement="Python threads that run no task use "
        f"{busy:.1f} cores of a worker; on one, tasks sleep "
        f"{blocked.groupby(level=_WINDOW).max().median():.0%} of the time, as for the GIL",
        evidence="threads: cpu_seconds of the roles other and actors; profile: blocked",
        effect=case.effect(average, worst, *[0 * average] * bool(gil.isna().all())),
        remedy="find out what these threads do (py-spy dump --pid PID of a worker), and let them "
        "sleep, do less, or run in another process",
        doubt="threads of a pool that a task starts and waits for look the same; so may a lock"
        + "; install gilknocker on the workers to tell" * bool(gil.isna().all()),
    )


def _rest_with_tasks(case: CaseRecords, used: pd.Series[float]) -> pd.Series[bool]:
    """Return whether the threads of each worker rest while it has no task, if that is known.

    Such are the readers of zarr, and other pools whose tasks wait for them.

    Parameters
    ----------
    used
        The cores that they use, by launch, iteration and worker.
    """
    busy, resting = used.groupby(level="worker").mean(), set[str]()
    for worker, rows in case.measured_rows("process_use").groupby("worker", observed=True):
        tasks = case.tasks[case.tasks["worker"] == worker].sort_values("start_s")
        n_begun = np.searchsorted(tasks["start_s"], rows["stop_s"])
        ends_s = np.maximum.accumulate([-np.inf, *tasks["stop_s"]])
        rests = rows["n_cores"][ends_s[n_begun] <= rows["start_s"]]
        if len(rests) >= _MIN_RESTS and rests.median() < busy.get(worker, 0.0) / 2:
            resting.add(str(worker))
    its = used.index.get_level_values("worker").isin(resting)
    return pd.Series(its, used.index)


RULE = Rule(
    title="threads without tasks hold the GIL",
    limit="5 % of the tasks' time, and a tenth of a core",
    find=find,
)

"""Tasks that run again, because nobody kept their results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule, memory_pauses, spilling
from commbench.model import Finding
from commbench.model.units import format_bytes

_LEAST = 0.1
"""The smallest effect: a worker that leaves takes some results with it."""
_MAX_NAMED = 3


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if tasks run again within an iteration or region.

    Without them, task threads would save their share of the time if all are busy. If the others
    wait meanwhile, it is the time in which any of these tasks runs.
    """
    window = ["launch", "iteration"]
    tasks = case.tasks[case.tasks["key"] != ""].sort_values("start_s")
    again = tasks[tasks.duplicated([*window, "key"])]
    if again.empty:
        return
    n_threads = case.n_workers * case.case.cluster.threads_per_worker
    index, n_windows = case.wall_s.index, len(case.wall_s)
    spent_s = again.groupby(window)["seconds"].sum().reindex(index, fill_value=0.0) / n_threads
    running_s = case.busy_s(again, *window).reindex(index, fill_value=0.0)
    spent, running = spent_s / case.wall_s, running_s / case.wall_s
    effect = case.effect(spent, np.minimum(running, spent + case.share("data_s", "idle_s")))
    if effect.share < _LEAST:
        return
    names = again.groupby("name", observed=True)["seconds"].sum().nlargest(_MAX_NAMED).index
    remedy = "call compute once for all results that need them, dask.compute(a, b, …)"
    # What doesn't fit in memory can't be kept.
    if not any(map(case.findings, (memory_pauses.RULE, spilling.RULE))):
        nbytes = again.drop_duplicates([*window, "key"])["nbytes"].sum() / n_windows
        size = format_bytes(int(nbytes))
        remedy = f"keep their results, x = x.persist() (at most {size}), or {remedy}"
    yield Finding(
        statement=f"{len(again) / n_windows:.0f} of {case.n_tasks:.0f} tasks per iteration repeat "
        f"earlier ones, which takes {spent.median():.0%} of the task threads' time, most in "
        f"{', '.join(names)}",
        evidence="tasks: key, start_s, stop_s",
        effect=effect,
        remedy=remedy,
        doubt="tasks also run again if they failed, or a worker was lost; a step that runs again "
        "with other columns has other keys, and is not counted",
    )


RULE = Rule(
    title="tasks run again",
    limit="10 % of the time for tasks whose keys have run before in the iteration or region",
    find=find,
)

"""First tasks of workers, which import modules or fill caches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_seconds

_WINDOW = ["launch", "iteration"]
_LEAST = 0.1
"""The smallest effect: the first task of a short program always takes a little longer."""
_LONGER = 3.0
"""How many times as long as later tasks of its name a first one takes, at least."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if the first tasks on each worker take longer than the later ones.

    Without what only they do, all would take as long as the later ones. If one worker only has such
    a task, ``skew`` finds it.
    """
    if case.tasks.empty:
        return
    n_threads = case.case.cluster.threads_per_worker
    tasks = case.tasks.astype({"name": "str", "worker": "str"}).sort_values("start_s")
    # Threads wait for each other's imports.
    is_first = tasks.groupby([*_WINDOW, "name", "worker"]).cumcount() < n_threads
    later_s = tasks[~is_first].groupby([*_WINDOW, "name"])["seconds"].median().rename("later_s")
    first = tasks[is_first].join(later_s, [*_WINDOW, "name"])
    first = first[first["seconds"] > _LONGER * first["later_s"]]
    more_s = first["seconds"] - first["later_s"]
    by_worker = more_s.groupby([first[key] for key in (*_WINDOW, "worker")]).sum() / n_threads
    by_window = by_worker.groupby(level=_WINDOW)
    everywhere = by_window.size() >= case.n_workers
    index = case.wall_s.index
    mean, least = (
        each.where(everywhere, 0.0).reindex(index, fill_value=0.0) / case.wall_s
        for each in (by_window.mean(), by_window.min())
    )
    effect = case.effect(np.minimum(mean, case.share("compute_s", "queue_s", "blocked_s")), least)
    if effect.share < _LEAST:
        return
    name = more_s.groupby(first["name"]).sum().idxmax()
    its = first[first["name"] == name]
    yield Finding(
        statement=f"the first task of {name} on each worker takes "
        f"{format_seconds(its['seconds'].median())}, and a later one "
        f"{format_seconds(its['later_s'].median())}, as if it imported modules or filled a cache",
        evidence="tasks: name, worker, start_s, stop_s",
        effect=effect,
        remedy="do on all workers before what only the first task does, by client.run(FUNCTION) or "
        "dask worker --preload, and keep the cluster for several computations; of a longer program "
        "it is a smaller share",
        doubt="the first tasks may have more data, or read them from a slower disk",
    )


RULE = Rule(
    title="the first tasks of workers take longer",
    limit="10 % of the time, in tasks that take over three times as long as later ones",
    find=find,
)

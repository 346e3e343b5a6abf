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
_LONGER = 5.0
"""How many times as long as nine of ten later tasks of its name a first one takes, at least."""
_MIN_LATER = 2


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if the first tasks of a name take longer than later ones on all workers.

    Without what only they do, all would take as long as the later ones.
    """
    if case.tasks.empty:
        return
    tasks = case.tasks.astype({"name": "str", "worker": "str"}).sort_values("start_s")
    name = [*_WINDOW, "name"]
    # Those of all threads, which may wait for one that imports.
    number = tasks.groupby([*name, "worker"]).cumcount()
    is_first = number < case.case.cluster.threads_per_worker
    by_worker = tasks[is_first].groupby([*name, "worker"])["seconds"].agg(["max", "mean"])
    by_name = by_worker.groupby(level=name)
    first = by_name["mean"].agg(["size", "min", "mean"]).assign(longest=by_name["max"].min())
    later_s = tasks[~is_first].groupby(name)["seconds"]
    later = later_s.agg(n="size", usual="median").assign(long=later_s.quantile(0.9))
    both = first.join(later, how="inner")
    is_longer = both["longest"] > _LONGER * both["long"]
    both = both[is_longer & (both["size"] >= case.n_workers) & (both["n"] >= _MIN_LATER)]
    more_s = both[["mean", "min"]].sub(both["usual"], axis=0)
    by_window = more_s.groupby(level=_WINDOW).sum().reindex(case.wall_s.index, fill_value=0.0)
    mean, least = (by_window[each] / case.wall_s for each in ("mean", "min"))
    effect = case.effect(np.minimum(mean, case.share("compute_s", "queue_s", "blocked_s")), least)
    if effect.share < _LEAST:
        return
    most = str(more_s["mean"].groupby(level="name").sum().idxmax())
    its = both.xs(most, level="name")
    yield Finding(
        statement=f"the first task of {most} on each worker takes "
        f"{format_seconds(its['longest'].median())}, and a later one "
        f"{format_seconds(its['usual'].median())}, as if it imported modules or filled a cache",
        evidence="tasks: name, worker, start_s, stop_s",
        effect=effect,
        remedy="do on all workers before what only the first task does, by client.run(FUNCTION) or "
        "dask worker --preload, and keep the cluster for several computations; of a longer program "
        "it is a smaller share",
        doubt="the first tasks may have more data, as if inputs are sorted by size, or read them "
        "from a slower disk",
    )


RULE = Rule(
    title="the first tasks of workers take longer",
    limit="10 % of the time, in tasks that take over five times as long as nine of ten later ones",
    find=find,
)

"""Computations one after another, between which the cluster waits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import (
    CaseRecords,
    Rule,
    blocked_loop,
    gathered,
    memory_pauses,
    scheduler_data,
    slow_links,
    spilling,
)
from commbench.model import Finding

_PAUSE_SECONDS = 5e-3
"""A time without a task, longer than messages take from one task to the next."""
_MIN_PAUSES = 10
_LEAST = 0.2
"""The smallest effect: between steps that depend on each other are pauses, too."""
_ELSEWHERE = (
    blocked_loop.RULE, gathered.RULE, memory_pauses.RULE, scheduler_data.RULE, slow_links.RULE,
    spilling.RULE,
)  # fmt: skip
"""Other causes of pauses."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if all workers wait again and again for the next computation.

    Scheduler, client and the workers' event loops don't work meanwhile. With all tasks in one
    computation, the next ones would be there already. What client and scheduler do for each
    computation may be saved, too.
    """
    window, columns = ["launch", "iteration"], ["start_s", "stop_s"]
    waits = case.share("asleep_s", process="scheduler")
    waits = waits - case.computing("client") - case.scheduler_prepares
    idle = case.share("idle_s")
    # Loops that poll for messages have nothing to do, either.
    loops = case.share("asleep_s") + case.share("poll_s").fillna(0.0)
    unused = np.minimum(np.minimum(idle, waits), loops)
    is_other = any(map(case.findings, _ELSEWHERE))
    if not unused.median() >= _LEAST or len(case.tasks) < _MIN_PAUSES or is_other:
        return
    tasks = case.tasks[[*window, *columns, "graph"]]
    log = pd.concat([tasks, case.transfers[window + columns]])
    log = log.sort_values([*window, "start_s"], ignore_index=True)
    # The first task or fetch of an iteration follows none.
    before = log.groupby(window)["stop_s"].cummax().groupby([log[key] for key in window]).shift()
    pauses = log["start_s"] - before
    is_pause = pauses >= _PAUSE_SECONDS
    begins = is_pause
    if (tasks["graph"] >= 0).all():
        # A fetch is for the next task. Of chains that were sent ahead, each task may be a graph.
        log["graph"] = log.groupby(window)["graph"].bfill()
        graphs = case.run.graphs.drop_duplicates("number").set_index("number")
        is_ahead = log["graph"].map(graphs["received_s"]) < before
        begins = is_pause & ~log.duplicated([*window, "graph"]) & ~is_ahead
    keys = [log[key] for key in window]
    # Tasks of other computations would also fill the pauses within one.
    n, paused_s = (
        each.groupby(keys).sum().reindex(case.wall_s.index, fill_value=0)
        for each in (begins, pauses.where(is_pause, 0.0))
    )
    paused = paused_s / case.wall_s
    effect = case.effect(np.minimum(paused, unused))
    if n.median() < _MIN_PAUSES or effect.share < _LEAST:
        return
    effect = case.effect(np.minimum(paused, unused), np.minimum(paused, idle))
    yield Finding(
        statement=f"{n.median():.0f}"
        + f" of {case.n_graphs:.0f}" * bool(round(case.n_graphs) > round(n.median()))
        + " computations follow one after another, and "
        f"{paused.median():.0%} of the time no task runs",
        evidence="tasks and transfers: start_s, stop_s, graph; profile: asleep of scheduler and "
        "workers; threads: cpu_seconds of the client",
        effect=effect,
        remedy="call compute once for several results, dask.compute(a, b, …), or submit all tasks "
        "and wait for them as they end, by as_completed",
        doubt="what the script does between computations may take this time: files, the network",
    )


RULE = Rule(
    title="computations one after another",
    limit="20 % of the time, in pauses of 5 ms or more, ten of which end with a computation",
    find=find,
)

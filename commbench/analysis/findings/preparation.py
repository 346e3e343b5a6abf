"""Workers that wait for the client or the scheduler to prepare tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if client and scheduler compute outside of their event loops.

    There the client builds graphs, and the scheduler unpacks and orders them. Meanwhile workers
    have no task: as long as both together beyond the wall time at least, at most the shorter one.
    """
    rows = case.measured_rows(case.run.threads)
    client, scheduler = (
        rows[(rows["worker"] == process) & rows["role"].isin(roles)]
        .groupby(["launch", "iteration"])["cpu_seconds"]
        .sum()
        .reindex(case.wall_s.index, fill_value=0.0)
        / case.wall_s
        for process, roles in (("client", ("other", "offload")), ("scheduler", ("offload",)))
    )
    idle = case.share("idle_s")
    computed = (client + scheduler).clip(upper=1.0)
    yield Finding(
        statement=f"the client's threads compute {client.median():.0%} of the time, and the "
        f"scheduler's {scheduler.median():.0%}, besides messages; task threads have no task "
        f"{idle.median():.0%} of it",
        evidence="threads: cpu_seconds of the client but its loop, and of the scheduler's offload "
        "thread; profile: idle of the workers",
        effect=case.effect(np.minimum(idle, computed), (idle + computed - 1).clip(lower=0.0)),
        remedy="make smaller graphs: fewer and larger chunks, and no data in them; compute in "
        "tasks, not in the script",
        doubt="what the script computes meanwhile may be independent of the tasks",
    )


RULE = Rule(
    title="client and scheduler prepare tasks",
    limit="5 % of the time in which their threads compute, and task threads are idle",
    find=find,
)

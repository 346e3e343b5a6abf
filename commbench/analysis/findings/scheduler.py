"""A scheduler that can't keep up with the tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_seconds

_BUSY = 0.5
"""The share of the time that a limiting scheduler's event loop works."""
_TASK_SECONDS = 2e-3
"""The time of a scheduler for a task, at most: several times Dask's documented 200 µs."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers have no task while the scheduler is busy.

    With few and longer tasks, the time in which both happen would be saved: at least what they
    take together beyond the wall time, at most the shorter one.
    """
    busy = case.share("serialize_s", "deserialize_s", "messages_s", process="scheduler")
    if not busy.median() >= _BUSY or case.tasks.empty:
        return
    idle = case.share("idle_s")
    n_tasks = len(case.tasks) / max(1, len(case.wall_s))
    if n_tasks * _TASK_SECONDS < busy.median() * case.wall_s.median() / 2:
        return
    yield Finding(
        statement=f"the scheduler is busy {busy.median():.0%} of the time with {n_tasks:.0f} tasks "
        f"per iteration of {format_seconds(case.tasks['seconds'].median())} each; task threads "
        f"have none {idle.median():.0%} of the time",
        evidence="profile: messages of the scheduler, idle of the workers; tasks",
        effect=case.effect(np.minimum(idle, busy), (idle + busy - 1).clip(lower=0.0)),
        remedy="make fewer and longer tasks: larger chunks, batches of calls",
        doubt="a client that submits tasks one by one keeps the scheduler busy, too",
    )


RULE = Rule(
    title="the scheduler is the limit",
    limit="a scheduler that is busy for half of the time",
    find=find,
)

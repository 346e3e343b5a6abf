"""Data that pass through the scheduler, in tasks or by other messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule, blocked_loop, gathered
from commbench.model import Finding

_LEAST = 0.2
"""The share of the time that the scheduler's event loop works beyond what its tasks take."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if the scheduler's event loop is busy, and not with the number of tasks.

    What clients gather, and what blocks the loop, are other causes. Without the data, the loop
    would neither work for them nor wait for a core to do so, and client and scheduler would
    prepare less: at most all of that is saved.
    """
    # Without an idle period, polling counts as work.
    is_known = case.share("poll_s", process="scheduler").notna()
    busy = case.message_work("scheduler").where(is_known)
    rest = busy - case.scheduling
    is_other = any(map(case.findings, (gathered.RULE, blocked_loop.RULE)))
    # Workloads without tasks send requests; a user's code may scatter data.
    is_other |= case.tasks.empty and not case.run.is_user_code
    if is_other or not rest.median() >= _LEAST:
        return
    waits = 0.0 if case.polling_takes_cores else case.share("loop_queue_s", process="scheduler")
    prepares = case.computing("client", "other") + case.scheduler_prepares
    idle = case.share("idle_s")
    yield Finding(
        statement=f"the scheduler's event loop is busy {busy.median():.0%} of the time with "
        f"{case.n_tasks:.0f} tasks per iteration: data pass through it",
        evidence="profile: messages of the scheduler, idle of the workers; tasks",
        effect=case.effect(np.minimum(idle, rest), np.minimum(idle, rest + waits + prepares)),
        remedy="keep data out of graphs and of arguments of tasks: load them in tasks, or send "
        "them to the workers once, by client.scatter(data, direct=True) if it can reach them",
        doubt="queues, locks, events, published data and other clients keep the scheduler busy, "
        "too",
    )


RULE = Rule(
    title="data pass through the scheduler",
    limit="an event loop of the scheduler that is busy for 20 % of the time beyond 2 ms per task",
    find=find,
)

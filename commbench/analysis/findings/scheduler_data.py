"""Data that pass through the scheduler, in tasks or by other messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule, blocked_loop, gathered
from commbench.model import Finding
from commbench.model.units import format_bytes
from commbench.stats.graphs import line

_LEAST = 0.2
"""The share of the time that the scheduler's event loop works beyond what its tasks take."""
_LEAST_BYTES = 10_000_000
"""The bytes from which Dask warns of the size of a graph."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if graphs carry data, or the scheduler works for more than its tasks.

    What clients gather, and what blocks the loop, are other causes of the latter. Without the data,
    the loop would neither work for them nor wait for a core to do so, and client and scheduler
    would prepare less: at most all of that is saved.
    """
    # Without an idle period, polling counts as work.
    is_known = case.share("poll_s", process="scheduler").notna()
    busy = case.message_work("scheduler").where(is_known)
    rest = busy - case.scheduling
    sent = case.sent_data.median()
    is_other = any(map(case.findings, (gathered.RULE, blocked_loop.RULE)))
    # Workloads without tasks send requests; a user's code may scatter data.
    is_other |= case.tasks.empty and not case.run.is_user_code
    if sent < _LEAST_BYTES and (is_other or not rest.median() >= _LEAST):
        return
    waits = 0.0 if case.polling_takes_cores else case.share("loop_queue_s", process="scheduler")
    prepares = case.computing("client", "other") + case.scheduler_prepares
    idle = case.share("idle_s")
    estimates = [np.minimum(idle, rest), np.minimum(idle, rest + waits + prepares)]
    statement = (
        f"the scheduler's event loop is busy {busy.median():.0%} of the time with "
        f"{case.n_tasks:.0f} tasks per iteration: data pass through it"
    )
    if sent >= _LEAST_BYTES:
        by_statement = case.graph_data.astype({"code": "str"}).groupby("code")["data"].sum()
        statement = (
            f"graphs carry {format_bytes(int(sent))} of data "
            f"(most: {line(by_statement.idxmax()) or 'a library'}) through the scheduler, and "
            "again for each task that has them as an argument or in its function"
        )
        sends_s = case.graph_data.groupby(["launch", "iteration"])["send_seconds"].sum()
        sends = sends_s.reindex(case.wall_s.index, fill_value=0.0) / case.wall_s
        sends += case.computing("scheduler", "offload")
        passes = rest.fillna(0.0).clip(lower=0.0)
        most = passes + waits
        # Workers unpack in their loops what the scheduler's loop packs.
        most = most + np.minimum(most, case.message_work()) + sends
        estimates = [np.minimum(idle, passes + sends), np.minimum(idle, most)]
    yield Finding(
        statement=statement,
        evidence="profile: messages of the scheduler, idle of the workers; tasks; graphs: nbytes, "
        "send_seconds",
        effect=case.effect(*estimates),
        remedy="keep data out of arguments and functions of tasks: load them in tasks, or send "
        "them to the workers once, by client.scatter(data, direct=True) if it can reach them",
        doubt="queues, locks, events, published data and other clients keep the scheduler busy, "
        "too",
    )


RULE = Rule(
    title="data pass through the scheduler",
    limit="an event loop of the scheduler that is busy for 20 % of the time beyond 2 ms per task; "
    "or 10 MB in graphs",
    find=find,
)

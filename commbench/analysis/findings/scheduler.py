"""A scheduler that can't keep up with the tasks, or tasks smaller than Dask's own work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_seconds

_BUSY = 0.5
"""The share of the time that a limiting scheduler works or waits for a core, half of it works."""
_BUSY_LOOPS = 0.4
"""The same share of the loops of scheduler and worker, in turn, for tiny tasks."""
_QUEUED = 0.05
"""The share of the time from which waits for a core are mentioned."""
_LOOP_SECONDS = 5e-3
"""A worker's event loop's time for a tiny task, at most: up to 3 ms on two slow cores."""
_TINY_SECONDS = 1e-2
"""Tasks shorter than this wait for the workers' event loops, too, not for the scheduler only."""
_TINY_BYTES = 1e5
"""Tasks that receive more than this on average keep event loops busy with bytes."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers have no task while event loops are busy with tasks.

    With few and longer tasks, the time in which both happen would be saved: at least what they
    take together beyond the wall time, at most the shorter one. While a loop waits for a core,
    messages wait, too, so its waits count as work, but not for the least. Of tiny tasks, all that
    threads do between them is saved at most.
    """
    scheduler, workers = case.message_work("scheduler"), case.message_work()
    idle, seconds = case.share("idle_s"), case.tasks["seconds"].mean()
    rate = case.n_tasks / case.wall_s.median()
    is_tiny = bool(
        # Few long tasks among many may take most of the time.
        seconds < _TINY_SECONDS
        and case.transfers["nbytes"].sum() <= _TINY_BYTES * len(case.tasks)
        # Above this, loops are busy with something else.
        and workers.median() <= rate * _LOOP_SECONDS / case.n_workers
    )
    working, least = (scheduler + workers, _BUSY_LOOPS) if is_tiny else (scheduler, _BUSY)
    processes = ("scheduler", "workers") if is_tiny else ("scheduler",)
    waits = [case.share("loop_queue_s", process=each) for each in processes]
    if case.polling_takes_cores:
        waits = []
    busy = sum(waits, working).clip(upper=1.0)
    is_busy = working.median() >= least / 2 and busy.median() >= least
    if not is_busy or scheduler.median() > case.scheduling.median():
        return
    estimates = [np.minimum(idle, busy), (idle + working.clip(upper=1.0) - 1).clip(lower=0.0)]
    if is_tiny:
        estimates.append(case.share("idle_s", "data_s", "queue_s", "other_cpu_s"))
    loops = f" and each worker's event loop {workers.median():.0%}" if is_tiny else ""
    shares = [each.median() for each in waits]
    queued = f" (and waiting for a core {' and '.join(f'{each:.0%}' for each in shares)})"
    queued *= bool(max(shares, default=0.0) >= _QUEUED)
    yield Finding(
        statement=f"the scheduler is busy {scheduler.median():.0%}{loops} of the time{queued}, "
        f"with {case.n_tasks:.0f} tasks per iteration of {format_seconds(seconds)} on "
        f"average; task threads have none of them {idle.median():.0%} of the time",
        evidence="profile: messages and no core of the scheduler and the workers, idle of the "
        "workers; tasks",
        effect=case.effect(*estimates),
        remedy="make fewer and longer tasks: larger chunks, batches of calls",
        doubt="a client that submits tasks one by one keeps the scheduler busy, too",
    )


RULE = Rule(
    title="tasks are too small, or too many for the scheduler",
    limit="a scheduler that is busy or, up to half of that, waits for a core for half of the time; "
    "for tasks below 10 ms that receive less than 100 kB on average, 40 % with a worker's loop",
    find=find,
)

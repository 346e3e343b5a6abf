"""Fewer tasks at once than task threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import (
    CaseRecords,
    Rule,
    blocked_loop,
    memory_pauses,
    preparation,
    scheduler,
    small_messages,
    spilling,
)
from commbench.model import Finding

_LEAST = 0.2
"""The smallest effect: with five tasks for each thread, the last round may lose a sixth."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if threads have neither a task nor a fetch while others run tasks.

    With enough tasks, all threads would share the work. What a worker with more work than others
    costs is left to ``skew``.
    """
    n_threads = case.n_workers * case.case.cluster.threads_per_worker
    # A scheduler that can't keep up, and workers that don't start tasks, are other causes.
    others = (scheduler.RULE, spilling.RULE, memory_pauses.RULE, blocked_loop.RULE)
    if n_threads < 2 or case.tasks.empty or any(map(case.findings, others)):
        return
    in_tasks, busiest = (
        case.share("compute_s", "queue_s", "blocked_s", how=how) for how in ("mean", "max")
    )
    # A task may have begun before the region in which it ends.
    began_s = case.tasks[["launch", "iteration"]].join(case.began_s, ["launch", "iteration"])
    within = case.tasks.assign(start_s=case.tasks["start_s"].clip(lower=began_s["started_at_s"]))
    running = case.busy_s(within, "launch", "iteration") / case.wall_s
    unused = (running - in_tasks - case.share("data_s")).clip(lower=0.0)
    effect = case.effect(np.minimum(unused, case.share("idle_s")))
    if effect.share < _LEAST or (busiest - in_tasks).median() >= effect.share / 2:
        return
    remedy = "call compute once for several results, or submit all calls before the first result()"
    # Those rules advise larger chunks.
    if not any(map(case.findings, (preparation.RULE, small_messages.RULE))):
        remedy = f"make more partitions or chunks, or {remedy}"
    at_once = (in_tasks * n_threads / running).median()
    statement = (
        f"while any task runs, {at_once:.1f} run at once on {n_threads} task threads: "
        f"{case.n_tasks:.0f} tasks per iteration, of which too few are independent, or the script "
        "waits in between"
    )
    evidence = "tasks: start_s, stop_s; profile: idle"
    seceded = case.activity("seceded", contexts=("execute",)).median()
    if seceded >= _LEAST:
        statement = (
            f"{seceded:.1f} tasks of each worker have left their threads and sleep (secede, "
            f"worker_client, get_client), while {(in_tasks * n_threads).median():.1f} of "
            f"{n_threads} task threads run one"
        )
        evidence = "activities: seceded; profile: idle"
        remedy = (
            "if they wait for tasks that they submit, submit all of these before the first "
            "result(), or call the functions themselves (n_jobs=1 in inner estimators of "
            f"scikit-learn); else {remedy}"
        )
    yield Finding(
        statement=statement,
        evidence=evidence,
        effect=effect,
        remedy=remedy,
        doubt="tasks that use several cores each need the others; steps that depend on each other "
        "can't run at once",
    )


RULE = Rule(
    title="too few tasks at once",
    limit="20 % of the time in which threads have no task while others run",
    find=find,
)

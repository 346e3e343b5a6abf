"""Workers that wait for the client or the scheduler to prepare tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if client and scheduler compute outside of their event loops.

    There the client builds graphs, and the scheduler unpacks and orders them. Of a user's script it
    is known for how long it does anything but wait for the cluster. What is saved is at most the
    shorter of their time and that in which workers have no task, and at least the sum of the two
    less the wall time.
    """
    # Without tasks there was nothing to prepare.
    if case.tasks.empty:
        return
    client, scheduler = case.computing("client", "other"), case.scheduler_prepares
    whose = f"the client's threads compute {client.median():.0%} of the time, and the scheduler's "
    if not case.has_client_process:
        whose = "the threads of client and scheduler compute "
    idle = case.share("idle_s")
    # What Dask does for the script is part of it, but no line is to blame for that.
    script, works = case.in_script("script", "graph"), case.in_script("script")
    longest, _ = case.longest_line("script")
    least = (client + scheduler).clip(upper=1.0)
    computed = np.maximum(least, script)
    yield Finding(
        statement=f"{whose}{scheduler.median():.0%} outside of their event loops; task threads "
        f"have no task {idle.median():.0%} of the time"
        + f"; the script takes {works.median():.0%}, longest at {longest}"
        * bool(longest),
        evidence="threads: cpu_seconds of the client's Python threads but its loop, and of the "
        "scheduler's offload thread; profile: idle of the workers"
        + "; line_times of the script"
        * bool(script.any()),
        # A script may sleep because it waits for tasks.
        effect=case.effect(np.minimum(idle, computed), (idle + least - 1).clip(lower=0.0)),
        remedy=f"let tasks do what the script does at {longest}, or if it sleeps there, wait for "
        "futures instead (as_completed); and "
        * bool(longest and works.median() >= computed.median() / 2)
        + "make smaller graphs: fewer and larger chunks, and no data in them or in "
        "arguments (client.scatter); compute in tasks, not in the script",
        doubt="what the script computes meanwhile may be independent of the tasks",
    )


RULE = Rule(
    title="client and scheduler prepare tasks",
    limit="5 % of the time in which their threads compute, or a script does anything but wait, and "
    "task threads are idle",
    find=find,
)

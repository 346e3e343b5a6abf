"""Event loops of workers that are blocked by long calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import CaseRecords, Rule, gil, p2p_disk, spilling
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if turns of an event loop take a tenth of a second or more.

    A wait for a core makes turns longer, too, and is subtracted, at most to the time on a core.
    """
    # With GPU memory, commbench waits for the GPUs in the event loops.
    if case.case.cluster.device == "gpu":
        return
    loops = case.measured_rows("threads")
    loops = loops[(loops["role"] == "loop") & (loops["worker"] != "client")]
    # Tasks that keep the GIL, or writing to disk in the loop, are the cause in workers.
    if any(map(case.findings, (gil.RULE, spilling.RULE, p2p_disk.RULE))):
        loops = loops[loops["worker"] == "scheduler"]
    blocked_s = loops["long_turn_seconds"] - loops["wait_seconds"]
    blocked_s = np.maximum(blocked_s, loops["long_turn_cpu_seconds"])
    shares = blocked_s / loops["seconds"]
    keys = [loops["launch"], loops["iteration"]]
    worst: pd.Series[float] = shares.groupby(keys).max().dropna()
    if worst.empty:
        return
    of_each = shares.groupby(loops["worker"]).mean()
    who, its = of_each.idxmax(), of_each.max()
    whose = "the scheduler" if who == "scheduler" else f"worker {who}"
    mean = shares.groupby(keys).mean()
    process = case.profiles[case.profiles["worker"] == who]
    coded_s = process["serialize_s"].sum() + process["deserialize_s"].sum()
    if who == "scheduler":
        remedy = "make smaller graphs, or submit them in parts"
    else:
        remedy = (
            "find the call: large objects in arguments of tasks (scatter them once), plugins and "
            "async tasks (use a thread), modules that the first tasks import (preload them)"
        )
        if coded_s > blocked_s[loops["worker"] == who].sum() / 2:
            remedy = (
                "if tasks return lists or dicts of many objects, which Dask pickles there, return "
                f"arrays or bytes, or reduce in the task; else {remedy}"
            )
    # Tasks that run go on.
    unused = [case.share("data_s", "idle_s", how=how) for how in ("max", "mean")]
    yield Finding(
        statement=f"the event loop of {whose} is blocked {its:.0%} of the time by calls "
        "of 0.1 s and more: it neither sends nor receives meanwhile",
        evidence="threads: long_turn_seconds, long_turn_cpu_seconds of the loops",
        effect=case.effect(np.minimum(worst, unused[0]), np.minimum(mean, unused[1])),
        remedy=remedy,
        doubt="a thread that keeps the GIL blocks the loop as well",
    )


RULE = Rule(
    title="an event loop is blocked",
    limit="calls of 0.1 s, 5 % of the time",
    find=find,
)

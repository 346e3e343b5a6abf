"""Data that workers write to disk, and read again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_bytes, parse_bytes

_USABLE = 0.8
"""The share of a host's memory that workers may fill: the client and others need some, too."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers spilled in measured iterations."""
    spills = case.measured_rows("spills")
    spills = spills[spills["nbytes"] > 0]
    if spills.empty:
        return
    on_disk = case.activity("disk-write", "disk-read")
    unused = case.share("blocked_s", "data_s", "idle_s")
    is_here = not math.isnan(case.n_cores)
    limit, trials = case.case.cluster.memory_limit, list[dict[str, str]]()
    if limit.endswith("B"):
        more = 2 * parse_bytes(limit)
        memory = case.run.manifest.environment.get("memory") or {}
        limits = [memory.get(name) for name in ("total_bytes", "cgroup_limit_bytes")]
        least = min((each for each in limits if isinstance(each, (int, float))), default=math.inf)
        # Of other hosts the memory is not known, and a host without memory ends workers.
        if case.n_workers * more <= _USABLE * least and is_here:
            trials = [{"memory_limit": f"{more}B"}]
    # A worker also waits for the disks of those from which it fetches.
    both = case.at_both_ends(on_disk, unused)
    yield Finding(
        statement=f"workers write {format_bytes(int(spills['nbytes'].sum() / len(case.wall_s)))} "
        f"per iteration to {case.disk}, as their memory is full; the disk takes "
        f"{on_disk.median():.0%} of the time",
        evidence="spills: nbytes; activities: disk-write, disk-read",
        effect=case.effect(np.minimum(on_disk, unused), both),
        remedy="give workers more memory"
        + " (LocalCluster(memory_limit=…), if the host has it)" * is_here
        + f", persist less at a time, or {case.better_disk}",
        doubt="data that are no longer needed, but referred to, fill memory, too",
        trials=tuple(trials),
    )


RULE = Rule(title="workers spill to disk", limit="5 % of the time", find=find)

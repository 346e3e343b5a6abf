"""Data that workers write to disk, and read again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.launchers.launcher import memory_limit
from commbench.model import Finding
from commbench.model.units import format_bytes

_USABLE = 0.8
"""The share of a host's memory that workers may fill: the client and others need some, too."""
_TARGET = 0.6
"""Dask's default of distributed.worker.memory.target."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers spilled in measured iterations."""
    spills = case.measured_rows("spills")
    spills = spills[spills["nbytes"] > 0]
    if spills.empty:
        return
    on_disk = case.activity("disk-write", "disk-read")
    unused = case.share("blocked_s", "data_s", "idle_s")
    own = np.minimum(on_disk, unused)
    # A worker that awaits data also waits for the disks of those that send them.
    others = np.minimum(on_disk, case.share("data_s")) * (case.n_workers > 1)
    chance = own * others / unused.where(unused > 0, 1.0)
    is_here = not math.isnan(case.n_cores)
    limit, trials = memory_limit(case.case.cluster, 0.0), list[dict[str, str]]()
    written = int(spills["nbytes"].sum() / len(case.wall_s))
    if isinstance(limit, int):
        most_written = spills.groupby("worker")["nbytes"].sum().max() / len(case.wall_s)
        enough = limit + max(limit, most_written / _TARGET)
        memory = case.run.manifest.environment.get("memory") or {}
        limits = [memory.get(name) for name in ("total_bytes", "cgroup_limit_bytes")]
        least = min((each for each in limits if isinstance(each, (int, float))), default=math.inf)
        most = _USABLE * least / case.n_workers
        # Of other hosts the memory is not known, and a host without memory ends workers.
        if 2 * limit <= most and is_here:
            trials = [{"memory_limit": f"{min(enough, most) / 1e6:.0f}MB"}]
    yield Finding(
        statement=f"workers write {format_bytes(written)} "
        f"per iteration to {case.disk}, as their memory is full; the disk takes "
        f"{on_disk.median():.0%} of the time",
        evidence="spills: nbytes; activities: disk-write, disk-read",
        effect=case.effect(own + others - chance, np.minimum(own + others, unused)),
        remedy="give workers more memory"
        + " (LocalCluster(memory_limit=…), if the host has it)" * is_here
        + f", persist less at a time, or {case.better_disk}",
        doubt="data that are no longer needed, but referred to, fill memory, too",
        trials=tuple(trials),
    )


RULE = Rule(title="workers spill to disk", limit="5 % of the time", find=find)

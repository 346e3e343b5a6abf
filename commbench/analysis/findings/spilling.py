"""Data that workers write to disk, and read again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_bytes, parse_bytes


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers spilled in measured iterations."""
    spills = case.measured_rows("spills")
    spills = spills[spills["nbytes"] > 0]
    if spills.empty:
        return
    on_disk = case.activity("disk-write", "disk-read")
    unused = case.share("blocked_s", "data_s", "idle_s")
    limit = case.case.cluster.memory_limit
    trials: tuple[dict[str, str], ...] = ()
    if limit.endswith("B"):
        trials = ({"memory_limit": f"{2 * parse_bytes(limit)}B"},)
    # A worker also waits for the disks of those from which it fetches.
    both = case.at_both_ends(on_disk, unused)
    name = f" ({case.file_system})" * bool(case.file_system)
    yield Finding(
        statement=f"workers write {format_bytes(int(spills['nbytes'].sum() / len(case.wall_s)))} "
        f"per iteration to disk{name}, as their memory is full; the disk takes "
        f"{on_disk.median():.0%} of the time",
        evidence="spills: nbytes; activities: disk-write, disk-read",
        effect=case.effect(np.minimum(on_disk, unused), both),
        remedy="give workers more memory (LocalCluster(memory_limit=…)), persist less at a time, "
        f"or {case.better_disk}",
        doubt="data that are no longer needed, but referred to, fill memory, too",
        trials=trials,
    )


RULE = Rule(title="workers spill to disk", limit="5 % of the time", find=find)

"""Data that workers write to disk, and read again."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_bytes, parse_bytes
from commbench.stats.selection import counted


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers spilled in measured iterations."""
    spills = case.run.spills
    spills = counted(spills[spills["case_id"] == case.case.id], case.run)
    if spills.empty:
        return
    on_disk = case.activity("disk-write", "disk-read")
    coding = case.activity("serialize", "deserialize")
    limit = case.case.cluster.memory_limit
    trials: tuple[dict[str, str], ...] = ()
    if limit.endswith("B"):
        trials = ({"memory-limit": f"{2 * parse_bytes(limit)}B"},)
    yield Finding(
        statement=f"workers write {format_bytes(int(spills['nbytes'].sum() / len(case.wall_s)))} "
        f"per iteration to disk, as their memory is full; the disk takes "
        f"{on_disk.median():.0%} of the time",
        evidence="spills: nbytes; activities: disk-write, disk-read",
        effect=case.effect(on_disk, on_disk + coding),
        remedy="give workers more memory, or persist less at a time",
        doubt="data that are no longer needed, but referred to, fill memory, too",
        trials=trials,
    )


RULE = Rule(title="workers spill to disk", limit="5 % of the time", find=find)

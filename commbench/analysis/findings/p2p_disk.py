"""Disks that P2P shuffles wait for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import WAITS, CaseRecords, Rule, memory_pauses, spilling
from commbench.model import Finding

_IN_MEMORY = {"distributed.p2p.storage.disk": "false"}
"""Dask reads this when it rechunks arrays; shuffles of frames always write to disk."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if P2P shuffles write to disk.

    Dask writes in the event loop. Workers write at the same time, or the others wait for the one
    that writes the longest.
    """
    written, longest = (
        case.activity("background-disk disk-write", contexts=("p2p",), how=how)
        for how in ("mean", "max")
    )
    if not written.any():
        return
    unused = case.share(*WAITS)
    # Fused tasks have the name of their first part, and long keys are cut.
    keys = case.tasks["key"].astype("str")
    frames, arrays = (
        bool(keys.str.contains(part).any())
        for part in ("shuffle-transfer|hash-join-transfer", "rechunk-transfer")
    )
    remedies = [] if case.spills_to_memory else [case.better_disk]
    if arrays or not frames:
        remedies.append(
            "if workers have the memory, rechunk arrays there (distributed.p2p.storage.disk: false)"
        )
    if frames or not arrays:
        remedies.append(
            "if workers have the memory, and frames few partitions, shuffle these by tasks "
            "(dataframe.shuffle.method: tasks)"
        )
    is_full = any(map(case.findings, (spilling.RULE, memory_pauses.RULE)))
    yield Finding(
        statement=f"P2P shuffles write to {case.disk} {written.median():.0%} of the time, in the "
        "event loops of workers, which neither send nor receive meanwhile",
        evidence="activities: p2p, background-disk disk-write",
        effect=case.effect(np.minimum(written, unused), np.minimum(longest, unused)),
        remedy="; or ".join(remedies),
        doubt="writes also wait for a core, where these are few; reads are not in these times",
        # Without disks, full memory ends workers.
        trials=(_IN_MEMORY,) if (arrays or not frames) and not is_full else (),
    )


RULE = Rule(title="P2P shuffles write to disk", limit="5 % of the time", find=find)

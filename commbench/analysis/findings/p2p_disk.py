"""Disks that P2P shuffles wait for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding

_IN_MEMORY = {"distributed.p2p.storage.disk": "false"}


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if P2P shuffles write to disk.

    Dask writes in the event loop. A message waits for the loops of both ends.
    """
    written = case.activity("background-disk disk-write", contexts=("p2p",))
    unused = case.share("blocked_s", "queue_s", "data_s", "idle_s")
    yield Finding(
        statement=f"P2P shuffles write to disk {written.median():.0%} of the time, in the event "
        "loops of workers, which neither send nor receive meanwhile",
        evidence="activities: p2p, background-disk disk-write",
        effect=case.effect(np.minimum(written, unused), case.at_both_ends(written, unused)),
        remedy="if workers have the memory, keep shuffles there "
        "(distributed.p2p.storage.disk: false), or take a faster disk (temporary-directory)",
        doubt="writes also wait for a core, where these are few; reads are not in these times",
        trials=(_IN_MEMORY,),
    )


RULE = Rule(title="P2P shuffles write to disk", limit="5 % of the time", find=find)

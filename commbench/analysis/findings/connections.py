"""Connections that are made while tasks need them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers make connections while threads await data or tasks."""
    connecting = case.activity("connect")
    awaited = case.share("data_s", "idle_s")
    yield Finding(
        statement=f"a worker makes connections for {connecting.median():.0%} of the time",
        evidence="activities: connect",
        effect=case.effect(np.minimum(connecting, awaited)),
        remedy="use the cluster for longer, so that connections are reused, or make them by a "
        "small exchange between all workers before the part that counts",
        doubt="a peer that did not answer takes as long as its time-out; and if a worker has 512 "
        "connections, it closes all that are idle",
    )


RULE = Rule(title="connection set-up", limit="5 % of the time", find=find)

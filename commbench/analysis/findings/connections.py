"""Connections that are made while tasks need them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers make connections while threads await data.

    Several connections may be made at once, so that their durations add up to more than is lost.
    """
    connecting = case.activity("connect")
    awaited = case.share("data_s", "idle_s")
    yield Finding(
        statement=f"a worker makes connections for {connecting.median():.0%} of the time",
        evidence="activities: connect",
        effect=case.effect(np.minimum(connecting, awaited)),
        remedy="use the cluster for longer, so that connections are reused; on many workers, "
        "raise distributed.worker.connections.incoming and outgoing",
        doubt="several connections may have been made at the same time",
    )


RULE = Rule(title="connection set-up", limit="5 % of the time", find=find)

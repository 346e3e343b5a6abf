"""Encryption of messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding

_BUSY = 0.1
"""The least share of the time in which the loops are busy with messages."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if a backend encrypts, and event loops are busy with messages."""
    if not (case.backend and (plain := case.backend.plain)):
        return
    busy = case.share("messages_s")
    if busy.median() < _BUSY:
        return
    # Tasks that run on a core go on. A message waits for the loops of both ends.
    unused = case.share("queue_s", "data_s", "idle_s")
    yield Finding(
        statement=f"messages are encrypted, in event loops that are busy with them "
        f"{busy.median():.0%} of the time",
        evidence="profile: messages of the workers",
        effect=case.gain(plain)
        or case.effect(np.minimum(min(2, case.n_workers) * busy, unused), 0 * busy),
        remedy=f"where the network is trusted, use {plain}",
        doubt="the rest of the messages' work is the same without encryption",
        trials=({"backend": plain},),
    )


RULE = Rule(
    title="encryption", limit=f"event loops busy for {100 * _BUSY:.0f} % of the time", find=find
)

"""Encryption of messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import MIN_EFFECT, CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_bytes

_SECONDS_PER_BYTE = 1e-9
"""What TLS takes at each end: on an AMD EPYC, a stream of ``pingpong --mode bandwidth`` has
0.73 GB/s over tls, and 2.3 GB/s over tcp."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if a backend encrypts many bytes."""
    if not (case.backend and (plain := case.backend.plain)):
        return
    log = case.transfers
    moved = log["nbytes"].sum() / max(1, len(case.wall_s))
    # Each byte is encrypted by one worker, and decrypted by another.
    coded = 2 * _SECONDS_PER_BYTE * moved / case.n_workers / case.wall_s
    # Tasks that run on a core go on. A message waits for the loops of both ends.
    unused = case.share("queue_s", "data_s", "idle_s")
    estimate = case.effect(np.minimum(coded, unused), case.at_both_ends(coded, unused))
    if not estimate.share >= MIN_EFFECT:
        return
    yield Finding(
        statement=f"messages are encrypted, {format_bytes(int(moved))} per iteration between "
        "workers",
        evidence="transfers: nbytes; profile: messages of the workers, "
        f"{case.share('messages_s').median():.0%}",
        effect=case.gain(plain) or estimate,
        remedy=f"where the network is trusted, use {plain}",
        doubt="what a byte costs differs between processors",
        trials=({"backend": plain},),
    )


RULE = Rule(title="encryption", limit="5 % of the time, at 1 ns per byte and end", find=find)

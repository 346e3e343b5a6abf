"""Encryption of messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule
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
    moved = log.groupby(["launch", "iteration"])["nbytes"].sum()
    # What is compressed is encrypted then.
    moved = moved.reindex(case.wall_s.index, fill_value=0) / case.bytes_per_wire_byte
    # Each byte is encrypted by one worker, and decrypted by another. Full cores share this work.
    at_once = np.fmin(case.n_workers, case.n_cores) if case.has_full_cores else case.n_workers
    coded = 2 * _SECONDS_PER_BYTE * moved / at_once / case.wall_s
    # Tasks that run on a core go on. Elsewhere a message waits for the loops of both ends.
    unused = case.share("queue_s", "data_s", "idle_s")
    estimates = [np.minimum(coded, unused)]
    if not case.has_full_cores:
        estimates.append(case.at_both_ends(coded, unused))
    yield Finding(
        statement=f"messages are encrypted, {format_bytes(moved.mean())} per iteration between "
        "workers",
        evidence="transfers: nbytes; profile: messages of the workers, "
        f"{case.share('messages_s').median():.0%}",
        effect=case.gain(plain) or case.effect(*estimates),
        remedy=f"where the network is trusted, use {plain}",
        doubt="what a byte costs differs between processors",
        trials=({"backend": plain},),
    )


RULE = Rule(title="encryption", limit="5 % of the time, at 1 ns per byte and end", find=find)

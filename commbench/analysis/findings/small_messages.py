"""Waits for data: many small messages."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import SMALL_BYTES, CaseRecords, Rule
from commbench.model import Finding
from commbench.model.units import format_message_size

_LATENCY_SECONDS = 0.3
"""The time of a small fetch, at most: a round trip between continents."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if task threads await data, and most of that time small messages."""
    awaited, small = case.share("data_s"), case.small_share
    if not small >= 0.5:
        return
    log = case.transfers
    n_small = (log["nbytes"] < SMALL_BYTES).sum() / max(1, len(case.wall_s)) / case.n_workers
    if n_small * _LATENCY_SECONDS < small * awaited.median() * case.wall_s.median():
        return
    yield Finding(
        statement=f"task threads await data {awaited.median():.0%} of the time, {small:.0%} of "
        f"which are messages below 64 KiB: {len(log) / max(1, len(case.wall_s)):.0f} transfers per "
        f"iteration of {format_message_size(int(log['nbytes'].median()))} each",
        evidence="transfers: nbytes, start_s, stop_s; profile: await data",
        effect=case.effect(awaited * small),
        remedy="make fewer and larger pieces: larger chunks or partitions",
        doubt="a worker that is busy answers small requests late, too",
    )


RULE = Rule(
    title="many small messages",
    limit="5 % of the time, in which most fetches are below 64 KiB",
    find=find,
)

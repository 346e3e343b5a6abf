"""What each pair of workers moved, how much of it was seen, and over which transport."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from commbench.reports.content import Content
from commbench.reports.tables.cells import Table, label, number
from commbench.stats.slow_pairs import MIN_SLOWDOWN
from commbench.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

_MAX_PAIRS = 24
_CHANNELS = {
    "gather": ("", "From the receivers' transfer logs"),
    "alone": (", one at a time", "The largest blocks of all-to-all, nothing else under way"),
    "together": (", all at once", "The largest blocks of all-to-all, all pairs fetching"),
}
"""By channel: what follows the title, and where the numbers come from."""


def tables(content: Content) -> Iterator[Table]:
    """Yield the tables that the run has data for, the slow pairs first."""
    if len(content.slow_pairs):
        yield _slow_pair_table(content)
    for channel, pairs in content.pairs.groupby("channel", sort=False):
        yield _pair_table(content, str(channel), pairs)
    if len(content.coverage):
        yield _coverage_table(content)
    if len(content.transports):
        yield _transport_table(content)


def _slow_pair_table(content: Content) -> Table:
    slow = content.slow_pairs
    cut = f" The slowest {_MAX_PAIRS} of {len(slow)}." if len(slow) > _MAX_PAIRS else ""
    return Table(
        "Slow pairs of workers",
        ("backend", "src → dst", "when", "link", "median\nGB/s", "typical\nGB/s", "times\nslower",
         "score"),
        tuple(
            (
                label(content, row),
                f"{row.src} → {row.dst}",
                row.channel,
                row.link,
                number(row.q50_Bps / 1e9),
                number(row.typical_Bps / 1e9),
                f"{row.slowdown:.1f}",
                f"{row.score:.0f}",
            )
            for row in slow.head(_MAX_PAIRS).itertuples()
        ),
        f"Pairs at least {MIN_SLOWDOWN:g} times slower than the typical pair of the same case and "
        "kind of link, and outliers by Rosner's test on the logarithm of their median bandwidth. "
        "Score: by how many times the ordinary pairs' spread they are behind them." + cut,
        text_columns=frozenset({"src → dst", "when", "link"}),
    )  # fmt: skip


def _pair_table(content: Content, channel: str, pairs: pd.DataFrame) -> Table:
    shown = pairs.nsmallest(_MAX_PAIRS, "q50_Bps") if len(pairs) > _MAX_PAIRS else pairs
    least = format_bytes(content.data.run.min_transfer_bytes)
    cut = f" The {_MAX_PAIRS} slowest of {len(pairs)} pairs." if len(pairs) > _MAX_PAIRS else ""
    cut += "".join(f" {text}" for text in _missing_pairs(content, pairs))
    when, source = _CHANNELS.get(channel, (f", {channel}", "Of that channel"))
    return Table(
        f"Bandwidth per pair of workers{when} (transfers ≥ {least})",
        ("backend", "src → dst", "n", "bytes", "25 %\nGB/s", "median\nGB/s", "75 %\nGB/s",
         "busy\nGB/s", "at\nonce"),
        tuple(
            (
                label(content, row),
                f"{row.src} → {row.dst}",
                str(row.n),
                format_bytes(row.bytes),
                *(number(bandwidth / 1e9) for bandwidth in
                  (row.q25_Bps, row.q50_Bps, row.q75_Bps, row.busy_Bps)),
                f"{row.concurrency:.1f}",
            )
            for row in shown.itertuples()
        ),
        f"{source}: one fetch, from request to deserialized data. busy: "
        "Σ bytes over the time in which the pair had a fetch under way; at once: how many, on "
        "average." + cut,
        text_columns=frozenset({"src → dst"}),
    )  # fmt: skip


def _missing_pairs(content: Content, pairs: pd.DataFrame) -> Iterator[str]:
    found = pairs.groupby("case_id").size()
    log = content.data.transfers
    logged = set(log["case_id"][log["channel"].isin(pairs["channel"].unique())].unique())
    for case in content.data.run.suite.cases:
        n_pairs = case.cluster.n_workers * (case.cluster.n_workers - 1)
        n_missing = n_pairs - int(found.get(case.id, 0))
        if n_missing and case.id in logged:
            yield f"{case.workload} {case.backend}: {n_missing} of {n_pairs} pairs had none."


def _coverage_table(content: Content) -> Table:
    return Table(
        "Coverage: what the transfer logs saw of the traffic between workers",
        ("backend", "logged", "on the\nwire", "cover-\nage", "to self", "on lo", "fetches",
         "busy", "lost"),
        tuple(
            (
                label(content, row),
                format_bytes(row.logged_bytes),
                format_bytes(row.wire_bytes),
                "—" if math.isnan(row.coverage) else f"{row.coverage:.1%}",
                format_bytes(row.self_bytes),
                format_bytes(row.loopback_bytes),
                str(row.n_started),
                str(row.n_busy + row.n_failed),
                str(row.n_lost),
            )
            for row in content.coverage.itertuples()
        ),
        "Sums over the measured iterations. on the wire: serialized bytes that workers wrote to "
        "each other's comms; to self: to their own; on lo: what the kernel counted on the loopback "
        "interface meanwhile, all processes; fetches: transfer_incoming_count_total; busy: those "
        "that a busy sender refused, or that failed; lost: neither logged nor refused.",
    )  # fmt: skip


def _transport_table(content: Content) -> Table:
    rows = []
    for keys, group in content.transports.groupby(["case_id", "transport"], sort=False):
        first = next(group.itertuples())
        pairs = sorted({f"{row.src}→{row.dst}" for row in group.itertuples()})
        some = ", ".join(pairs[:6]) + (f", … ({len(pairs)})" if len(pairs) > 6 else "")
        rows.append((label(content, first), str(keys[1]) or "unknown", some, first.evidence))
    return Table(
        "Transport really used",
        ("backend", "transport", "src→dst", "evidence"),
        tuple(rows),
        text_columns=frozenset({"transport", "src→dst", "evidence"}),
    )

"""What each pair of workers moved, how much of it was seen, and over which transport."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from commbench.analysis.run import Run
from commbench.machine.topology import UNKNOWN
from commbench.model.units import format_bytes
from commbench.reports.sections import links
from commbench.reports.sections.cells import (
    CHANNELS,
    REST,
    Quantity,
    Section,
    Table,
    label,
    number,
    quantity,
)
from commbench.stats.pairs import MIN_SLOWDOWN

if TYPE_CHECKING:
    import pandas as pd

    from commbench.reports.html import matrix

_MAX_PAIRS = 24
"""Rows that a table of pairs has room for, where the reader can't sort it."""
_MAX_PAIRS_OF_A_PAGE = 250
"""What a reader can sort, and still prints on a few pages."""


def tables(run: Run, max_pairs: int = _MAX_PAIRS) -> Iterator[Table]:
    """Yield the tables that the run has data for, the slow pairs first.

    Of more than `max_pairs` pairs of workers the slowest have a row, and a note says so.
    """
    if len(run.slow_pairs):
        yield _slow_pair_table(run, max_pairs)
    yield from links.tables(run)
    for channel, pairs in run.pairs.groupby("channel", sort=False, observed=True):
        yield _pair_table(run, str(channel), pairs, max_pairs)
    if len(run.coverage):
        yield _coverage_table(run)
    if len(run.pair_transports):
        yield _transport_table(run)


def _matrices(run: Run) -> list[matrix.Block]:
    from commbench.reports.html import matrix

    return matrix.blocks(run)


def _slow_pair_table(run: Run, most: int) -> Table:
    slow = run.slow_pairs
    cut = f" The slowest {most} of {len(slow)}. {REST}" if len(slow) > most else ""
    return Table(
        "Slow pairs of workers",
        ("backend", "src → dst", "when", "link", "median\nGB/s", "typical\nGB/s", "times\nslower",
         "score"),
        tuple(
            (
                label(run, row),
                f"{row.src} → {row.dst}",
                row.channel,
                row.link,
                number(row.q50_Bps / 1e9),
                number(row.typical_Bps / 1e9),
                Quantity(f"{row.slowdown:.1f}", row.slowdown),
                Quantity(f"{row.score:.0f}", row.score),
            )
            for row in slow.head(most).itertuples()
        ),
        f"Pairs at least {MIN_SLOWDOWN:g} times slower than the typical pair of the same case and "
        "kind of link, and outliers by Rosner's test on the logarithm of their median bandwidth. "
        "Score: by how many times the ordinary pairs' spread they are behind them." + cut,
        text_columns=frozenset({"src → dst", "when", "link"}),
    )  # fmt: skip


def _pair_table(run: Run, channel: str, pairs: pd.DataFrame, most: int) -> Table:
    shown = pairs.nsmallest(most, "q50_Bps") if len(pairs) > most else pairs
    least = format_bytes(run.manifest.min_transfer_bytes)
    cut = f" The {most} slowest of {len(pairs)} pairs. {REST}" if len(pairs) > most else ""
    cut += "".join(f" {text}" for text in _missing_pairs(run, channel, pairs))
    classes = {*pairs["link"].unique()}
    several = len(classes) > 1
    if not several and UNKNOWN not in classes:
        cut += f" Class of all links: {min(classes)}."
    when, source = CHANNELS.get(channel, (f", {channel}", "Of that channel"))
    return Table(
        f"Bandwidth per pair of workers{when} (transfers ≥ {least})",
        ("backend", "src → dst", *["link"] * several, "n", "bytes", "25 %\nGB/s", "median\nGB/s",
         "75 %\nGB/s", "busy\nGB/s", "at\nonce"),
        tuple(
            (
                label(run, row),
                f"{row.src} → {row.dst}",
                *[row.link] * several,
                quantity(str, row.n),
                quantity(format_bytes, row.bytes),
                *(number(bandwidth / 1e9) for bandwidth in
                  (row.q25_Bps, row.q50_Bps, row.q75_Bps, row.busy_Bps)),
                Quantity(f"{row.concurrency:.1f}", row.concurrency),
            )
            for row in shown.itertuples()
        ),
        f"{source}: one fetch, from request to deserialized data. busy: "
        "Σ bytes over the time in which the pair had a fetch under way; at once: how many, on "
        "average." + cut,
        text_columns=frozenset({"src → dst", "link"}),
    )  # fmt: skip


def _missing_pairs(run: Run, channel: str, pairs: pd.DataFrame) -> Iterator[str]:
    found = pairs.groupby("case_id", observed=True).size()
    log = run.transfers
    for case in run.suite.cases:
        n_pairs = case.cluster.n_workers * (case.cluster.n_workers - 1)
        n_missing = n_pairs - int(found.get(case.id, 0))
        is_logged = (log["case_id"] == case.id) & (log["channel"] == channel)
        if n_missing and is_logged.any():
            yield f"{case.workload} {case.backend}: {n_missing} of {n_pairs} pairs had none."


def _coverage_table(run: Run) -> Table:
    return Table(
        "Coverage: what the transfer logs saw of the traffic between workers",
        ("backend", "logged", "on the\nwire", "cover-\nage", "to self", "on lo", "fetches",
         "busy", "lost"),
        tuple(
            (
                label(run, row),
                quantity(format_bytes, row.logged_bytes),
                quantity(format_bytes, row.wire_bytes),
                quantity(_share, row.coverage),
                quantity(format_bytes, row.self_bytes),
                quantity(format_bytes, row.loopback_bytes),
                quantity(str, row.n_started),
                quantity(str, row.n_busy + row.n_failed),
                quantity(str, row.n_lost),
            )
            for row in run.coverage.itertuples()
        ),
        "Sums over the measured iterations. on the wire: serialized bytes that workers wrote to "
        "each other's comms; to self: to their own; on lo: what the kernel counted on the loopback "
        "interface meanwhile, all processes; fetches: transfer_incoming_count_total; busy: those "
        "that a busy sender refused, or that failed; lost: neither logged nor refused.",
    )  # fmt: skip


def _share(share: float) -> str:
    return "—" if math.isnan(share) else f"{share:.1%}"


def _transport_table(run: Run) -> Table:
    rows = []
    used = run.pair_transports.groupby(["case_id", "transport"], sort=False, observed=True)
    for (_, transport), group in used:
        first = next(group.itertuples())
        pairs = group[["src", "dst"]].drop_duplicates().sort_values(["src", "dst"])
        some = ", ".join(f"{pair.src}→{pair.dst}" for pair in pairs.head(6).itertuples())
        some += f", … ({len(pairs)})" * (len(pairs) > 6)
        rows.append((label(run, first), str(transport) or "unknown", some, first.evidence))
    return Table(
        "Transport really used",
        ("backend", "transport", "src→dst", "evidence"),
        tuple(rows),
        text_columns=frozenset({"transport", "src→dst", "evidence"}),
    )


SECTION = Section(
    title="Pairs of workers", position=80, tables=tables,
    page_tables=partial(tables, max_pairs=_MAX_PAIRS_OF_A_PAGE),
    page_matrices=_matrices, figures=("pair-bandwidth",),
)  # fmt: skip

"""The tables of a report as text cells, for the formats that people read."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.reports.content import Content
from commbench.reports.tables import (
    all_to_all,
    comparison,
    failures,
    layers,
    message_size,
    pairs,
    provenance,
    published,
    worker_profile,
    workload_time,
)
from commbench.reports.tables.cells import Table, printable
from commbench.reports.tables.pairs import MAX_PAIRS
from commbench.reports.tables.provenance import heading

__all__ = ["Table", "heading", "printable", "sections", "tables"]


def tables(content: Content) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    for part in sections(content).values():
        yield from part


def sections(content: Content, max_pairs: int = MAX_PAIRS) -> dict[str, Iterator[Table]]:
    """Return the tables by what they are about, the answer first; each may be none.

    Of more than `max_pairs` pairs of workers the slowest have a row, and a note says so.
    """
    return {
        "Beside the published figure": published.tables(content),
        "Time per iteration": workload_time.tables(content),
        "Where the time went": worker_profile.tables(content),
        "What each layer adds": layers.tables(content),
        "By message size": message_size.tables(content),
        "All-to-all": all_to_all.tables(content),
        "Differences between backends": comparison.tables(content),
        "Pairs of workers": pairs.tables(content, max_pairs),
        "Failures": failures.tables(content),
        "Provenance": provenance.tables(content),
    }

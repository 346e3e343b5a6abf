"""The tables of a report as text cells, for the formats that people read."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.run import Run
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


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    for part in sections(run).values():
        yield from part


def sections(run: Run, max_pairs: int = MAX_PAIRS) -> dict[str, Iterator[Table]]:
    """Return the tables by what they are about, the answer first; each may be none.

    Of more than `max_pairs` pairs of workers the slowest have a row, and a note says so.
    """
    return {
        "Beside the published figure": published.tables(run),
        "Time per iteration": workload_time.tables(run),
        "Where the time went": worker_profile.tables(run),
        "What each layer adds": layers.tables(run),
        "By message size": message_size.tables(run),
        "All-to-all": all_to_all.tables(run),
        "Differences between backends": comparison.tables(run),
        "Pairs of workers": pairs.tables(run, max_pairs),
        "Failures": failures.tables(run),
        "Provenance": provenance.tables(run),
    }

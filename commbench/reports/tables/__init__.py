"""The tables of a report as text cells, for the formats that people read."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.reports.content import Content
from commbench.reports.tables import (
    all_to_all,
    comparison,
    layers,
    message_size,
    pairs,
    provenance,
    published,
    worker_profile,
    workload_time,
)
from commbench.reports.tables.cells import Table, printable
from commbench.reports.tables.provenance import heading

__all__ = ["Table", "heading", "printable", "tables"]


def tables(content: Content) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    for part in (
        published, workload_time, worker_profile, layers, message_size, all_to_all, comparison,
        pairs, provenance,
    ):  # fmt: skip
        yield from part.tables(content)

"""What went wrong."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.reports.content import Content
from commbench.reports.tables.cells import Table, label, quantity


def tables(content: Content) -> Iterator[Table]:
    """Yield one table, if there are failures."""
    if content.data.failures.empty:
        return
    yield Table(
        "Failures",
        ("case", "launch", "stage", "message"),
        tuple(
            (label(content, row), quantity(str, row.launch), row.stage, row.message)
            for row in content.data.failures.itertuples()
        ),
        text_columns=frozenset({"stage", "message"}),
    )

"""What went wrong."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.run import Run
from commbench.reports.sections.cells import Section, Table, label, quantity


def tables(run: Run) -> Iterator[Table]:
    """Yield one table, if there are failures."""
    if run.failures.empty:
        return
    yield Table(
        "Failures",
        ("case", "launch", "stage", "message"),
        tuple(
            (label(run, row), quantity(str, row.launch), row.stage, row.message)
            for row in run.failures.itertuples()
        ),
        text_columns=frozenset({"stage", "message"}),
    )


SECTION = Section(title="Failures", position=90, tables=tables)

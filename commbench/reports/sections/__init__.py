"""The sections of a report, whose tables are text, for the formats that people read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commbench.analysis.run import Run
from commbench.errors import ResultsError
from commbench.model import registry
from commbench.reports.sections.cells import Section, Table, printable
from commbench.reports.sections.provenance import heading

__all__ = [
    "Section",
    "Table",
    "guarded",
    "heading",
    "printable",
    "safe_tables",
    "sections",
    "tables",
]


def sections() -> list[Section]:
    """Return the sections that are installed, the answer first."""
    found = (_load(name) for name in registry.names("section"))
    return sorted(found, key=lambda section: (section.position, section.title))


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    for section in sections():
        yield from safe_tables(section, run)


def safe_tables(section: Section, run: Run, *, page: bool = False) -> list[Table]:
    """Return the tables of a section; if that fails, one that says so.

    `page` is true for those of the HTML page.
    """
    make = section.page_tables if page and section.page_tables else section.tables
    found: list[Table] = []
    with guarded(section.title, found):
        made = list(make(run))
        if bad := [table for table in made if not isinstance(table, Table)]:
            raise TypeError(f"expected tables, got {bad[0]!r}")
        cells = (cell for table in made for row in table.rows for cell in row)
        if strange := [cell for cell in cells if not isinstance(cell, str)]:
            raise TypeError(f"expected text in a cell, got {strange[0]!r}")
        found += made
    return found


@contextmanager
def guarded(title: str, tables: list[Table]) -> Iterator[None]:
    """Add a table that says so where a section fails in the block: it must not cost the rest.

    Records that can't be read are no section's problem.
    """
    try:
        yield
    except ResultsError:
        raise
    except Exception as error:  # noqa: BLE001 - it may be a third party's
        text = f"this section could not be made: {error!r}"
        tables.append(Table(title, ("problem",), ((text,),), text_columns=frozenset({"problem"})))


def _load(name: str) -> Section:
    problems: list[Table] = []
    with guarded(name, problems):
        section = registry.load("section", name)
        if not isinstance(section, Section):
            raise TypeError(f"expected a Section, got {section!r}")
        return section
    return Section(title=name, position=1000, tables=lambda _run: problems)

"""The sections of a report, whose tables are text, for the formats that people read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from commbench import registry
from commbench.analysis.run import Run
from commbench.errors import ResultsError
from commbench.reports.sections.cells import Section, Table, printable
from commbench.reports.sections.provenance import heading

__all__ = ["Section", "Table", "heading", "printable", "sections", "tables"]


def sections() -> list[Section]:
    """Return the sections that are installed, the answer first."""
    found = (_load(name) for name in registry.names("section"))
    return sorted(found, key=lambda section: (section.position, section.title))


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    for section in sections():
        yield from made(section, section.tables, run)


def made(section: Section, tables: Callable[[Run], Iterable[Table]], run: Run) -> Iterable[Table]:
    """Return tables of a section; if it fails, a table that says so: it must not cost the rest."""
    try:
        return list(tables(run))
    except ResultsError:
        raise
    except Exception as error:  # noqa: BLE001 - it may be a third party's
        return [_problem(section.title, error)]


def _load(name: str) -> Section:
    try:
        section: Section = registry.load("section", name)
    except Exception as error:  # noqa: BLE001 - it may be a third party's
        problem = _problem(name, error)
        return Section(title=name, position=1000, tables=lambda _run: [problem])
    return section


def _problem(title: str, error: Exception) -> Table:
    text = f"this section could not be made: {error!r}"
    return Table(title, ("problem",), ((text,),), text_columns=frozenset({"problem"}))

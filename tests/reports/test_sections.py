"""Sections of a report, which are entry points."""

from __future__ import annotations

import re
from typing import Any

import builders
import pytest

from commbench.analysis.run import Run
from commbench.errors import ResultsError, UnavailableError
from commbench.model import registry
from commbench.reports import html, markdown, terminal
from commbench.reports.sections import Section, Table, sections

CASE = builders.case(launches=1, iterations=1)
TABLE = Table("Fetches", ("worker", "number"), (("0", "17"),))


@pytest.fixture
def run(recorded: Any) -> Run:
    """Return a run with a sample."""
    found: Run = recorded([CASE], [builders.sample(CASE, 1.0)])
    return found


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that adds a section, or what goes wrong when it is loaded."""

    def install(section: Section | Exception) -> None:
        names, load = registry.names, registry.load

        def loaded(kind: str, name: str) -> Any:
            if name != "mine":
                return load(kind, name)
            if isinstance(section, Exception):
                raise section
            return section

        monkeypatch.setattr(
            registry, "names", lambda kind: [*names(kind), *(["mine"] if kind == "section" else [])]
        )
        monkeypatch.setattr(registry, "load", loaded)

    return install


@pytest.mark.parametrize("report", [terminal, markdown, html])
def test_a_section_stands_where_its_position_says(installed: Any, run: Run, report: Any) -> None:
    """A third party's stands between ours, in every format that people read."""
    installed(Section(title="Fetches", position=25, tables=lambda _: [TABLE]))
    titles = [section.title for section in sections()]
    assert titles[titles.index("Fetches") - 1] == "Time per iteration"
    text = report.render(run)
    assert text.rindex("time per iteration") < text.rindex("Fetches") < text.rindex("Provenance")
    assert "17" in text


def fail(run: Run) -> Any:
    """Return tables, and fail before the last."""
    yield TABLE
    raise ZeroDivisionError("no fetches")


BROKEN = {
    "ZeroDivisionError": fail,
    "expected text in a cell, got 17": lambda _: [Table("Fetches", ("number",), ((17,),))],
    "expected tables, got": lambda _: ["Fetches"],
}


@pytest.mark.parametrize("report", [terminal, markdown, html])
@pytest.mark.parametrize(("said", "tables"), BROKEN.items())
def test_a_section_that_fails_costs_nothing_else(
    installed: Any, run: Run, report: Any, said: str, tables: Any
) -> None:
    """Its title and what went wrong stand in its stead."""
    installed(Section(title="Fetches", position=25, tables=tables))
    text = " ".join(report.render(run).split())
    assert "this section could not be made:" in text
    assert said in text
    assert "Provenance" in text


def test_matrices_that_fail_cost_nothing_else(installed: Any, run: Run) -> None:
    """The page says why they are not there, and has the section's tables."""
    installed(Section(title="Fetches", position=25, tables=lambda _: [TABLE], page_matrices=fail))
    page = html.render(run)
    assert "this section could not be made: ZeroDivisionError" in page
    assert "17" in page


def test_sections_with_one_title_have_links_of_their_own(installed: Any, run: Run) -> None:
    """No two elements of the page have one id."""
    installed(Section(title="Time per iteration", position=25, tables=lambda _: [TABLE]))
    ids = re.findall(r' id="([^"]*)"', html.render(run))
    assert {"time-per-iteration", "time-per-iteration-2"} < set(ids)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (UnavailableError("section mine", "no such module", "install it"), "no such module"),
        (fail, "expected a Section, got <function fail"),
    ],
)
def test_a_section_that_can_t_be_loaded_is_named(
    installed: Any, run: Run, section: Any, said: str
) -> None:
    """It stands last, with the reason."""
    installed(section)
    text = " ".join(terminal.render(run).split())
    assert text.index("Provenance") < text.index("mine problem")
    assert said in text


def test_broken_records_are_no_section_s_problem(installed: Any, run: Run) -> None:
    """What can't be read ends the report: all of it may be wrong."""

    def unreadable(run: Run) -> Any:
        raise ResultsError("a part is cut")

    installed(Section(title="Fetches", position=25, tables=unreadable))
    with pytest.raises(ResultsError):
        terminal.render(run)
    installed(Section(title="Fetches", position=25, tables=lambda _: [], page_matrices=unreadable))
    with pytest.raises(ResultsError):
        html.render(run)

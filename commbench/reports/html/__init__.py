"""``html``: one file that needs nothing else, with figures, sortable tables and pair matrices."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from commbench import __version__
from commbench.analysis.run import Run
from commbench.analysis.warnings import Disturbance
from commbench.reports import sections as parts
from commbench.reports.figures import Drawing, drawn, drawn_narrow
from commbench.reports.html.pair_matrix import Block
from commbench.reports.html.timeline import Timeline
from commbench.reports.opening import opening
from commbench.reports.sections import Quantity, Section, Table, heading, printable

_MAX_SVG = 1_000_000
"""The maximum bytes of an SVG image; larger figures are PNG, which browsers draw faster."""


@dataclass
class Part:
    """The contents of one section of the page."""

    id: str
    """The unique name of the section in links."""
    section: Section
    figures: list[Drawing]
    tables: list[Table]
    matrices: Sequence[Block] = ()
    timelines: Sequence[Timeline] = ()

    @property
    def is_shown(self) -> bool:
        """Whether the page has what the section's advice on figures is about."""
        is_drawn = any(not each.problem for each in self.figures)
        return is_drawn or bool(self.matrices or self.timelines) or not self.section.figures


def render(run: Run) -> str:
    """Return the report as one HTML file that loads no other files."""
    script = _file("report.js")
    digest = hashlib.sha256(script.encode()).digest()
    sections = list(_parts(run))
    good = (figure for part in sections for figure in part.figures if not figure.problem)
    first = next(good, None)
    below = {table.title for part in sections for table in part.tables}
    opening = [
        part
        for part in page_opening(first, run, warns=False)
        if isinstance(part, str) or part.title not in below
    ]
    if not opening:
        first = None
    return _template().render(
        heading=heading(run),
        opening=opening,
        first=first,
        narrow=drawn_narrow(run, first.name) if first and _is_small(first) else None,
        warnings=run.warnings,
        is_disturbed_only=all(isinstance(text, Disturbance) for text in run.warnings),
        sections=sections,
        run=run.manifest.id,
        path=shlex.quote(str(run.path)),
        version=__version__,
        style=Markup(_file("style.css")),  # noqa: S704 - part of this package
        script=Markup(script),  # noqa: S704 - part of this package
        # Browsers only run the script with this hash, so a results file can't inject another.
        script_hash=base64.b64encode(digest).decode(),
    )


def page_opening(figure: Drawing | None, run: Run, *, warns: bool = True) -> list[str | Table]:
    """Return the parts of the opening, without the tables that the figure makes unnecessary."""
    return [
        part
        for part in opening(run, warns=warns)
        if isinstance(part, str) or not (figure and part.figure == figure.name)
    ]


def _parts(run: Run) -> Iterator[Part]:
    drawings = {each.name: each for each in drawn(run)}
    sections = parts.sections()
    named = {name for section in sections for name in section.figures}
    others = tuple(name for name in drawings if name not in named)
    # Figures that no section names precede the failures.
    rest = Section(title="More figures", position=85, tables=lambda _run: (), figures=others)
    n_named = Counter({"warnings": 1})
    for section in sorted([*sections, rest], key=lambda section: section.position):
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
        n_named[name] += 1
        name += f"-{n_named[name]}" * (n_named[name] > 1)
        # Several sections may name a figure: the first one shows it.
        figures = [drawings.pop(each) for each in section.figures if each in drawings]
        part = Part(name, section, figures, tables=parts.safe_tables(section, run, page=True))
        with parts.guarded(section.title, part.tables):
            part.matrices = [*section.matrices(run)]
            part.timelines = [*section.timelines(run)]
        if part.figures or part.matrices or part.timelines or part.tables:
            yield part


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_sanitize,
    )
    environment.filters |= {"sort_key": _sort_key, "filled": _filled, "source": _source}
    return environment.from_string(_file("report.html.jinja"))


def _file(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _sanitize(value: object) -> object:
    """Return `value` with non-printable characters replaced, unless it is trusted markup."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _sort_key(cell: str) -> str | None:
    """Return the sort key of a cell: a number, or empty if it is nan; None for a text."""
    if not isinstance(cell, Quantity):
        return None
    return "" if math.isnan(cell.value) else repr(cell.value).replace("inf", "Infinity")


def _filled(table: Table) -> Iterator[tuple[str, ...]]:
    """Yield the rows, repeating blank first cells, because rows may be re-sorted."""
    first = ""
    for row in table.rows:
        first = row[0] or first
        yield (first, *row[1:])


def _is_small(drawing: Drawing) -> bool:
    return len(drawing.svg) <= _MAX_SVG


def _source(drawing: Drawing) -> str:
    """Return the image as a data URL.

    It is an image rather than elements of the page, because several figures use the same ids, and
    scripts in an image are not run.
    """
    kind, image = ("svg+xml", drawing.svg) if _is_small(drawing) else ("png", drawing.png)
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"

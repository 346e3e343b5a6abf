"""``html``: one file that needs nothing else, with figures, sortable tables and pair matrices."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from commbench import __version__
from commbench.analysis.run import Run
from commbench.reports import figures
from commbench.reports import tables as parts
from commbench.reports.figures import Drawing
from commbench.reports.html import matrix
from commbench.reports.tables import Table, heading, printable
from commbench.reports.tables.cells import Quantity

_MAX_PAIRS = 250
"""Rows of a table of pairs: what a reader can sort, and still prints on a few pages."""
_MAX_SVG = 1_000_000
"""Bytes from which on a figure is shown as pixels, which a browser draws at once."""
_SHOWN_IN = {
    "published": "Beside the published figure",
    "workload-time": "Time per iteration",
    "worker-profile": "Where the time went",
    "communication": "Where the time went",
    "task-stream": "Where the time went",
    "layers": "What each layer adds",
    "message-size": "By message size",
    "pair-bandwidth": "Pairs of workers",
}
"""The section of each figure; those of plug-ins have one of their own before the failures."""


@dataclass
class Section:
    """What the report says about one subject."""

    title: str
    figures: list[Drawing] = field(default_factory=list)
    matrices: list[matrix.Block] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The section's name in links."""
        return self.title.lower().replace(" ", "-")


def render(run: Run) -> str:
    """Return the report as one HTML file: neither it nor its scripts load anything else."""
    script = _file("report.js")
    digest = hashlib.sha256(script.encode()).digest()
    return _template().render(
        heading=heading(run),
        warnings=run.warnings,
        sections=list(_sections(run)),
        run=run.manifest.id,
        path=str(run.path),
        version=__version__,
        style=Markup(_file("style.css")),  # noqa: S704 - the package's own
        script=Markup(script),  # noqa: S704 - the package's own
        # Of all scripts only this one is run, whatever a results file may have smuggled in.
        script_hash=base64.b64encode(digest).decode(),
    )


def _sections(run: Run) -> Iterator[Section]:
    others = Section("More figures")
    sections = {title: Section(title) for title in parts.sections(run)}
    for drawing in figures.drawn(run):
        sections.get(_SHOWN_IN.get(drawing.name, ""), others).figures.append(drawing)
    for title, tables in parts.sections(run, _MAX_PAIRS).items():
        sections[title].tables.extend(tables)
    sections["Pairs of workers"].matrices.extend(matrix.blocks(run))
    for section in sections.values():
        if section.title == "Failures" and others.figures:
            yield others
        if section.figures or section.matrices or section.tables:
            yield section


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    environment.filters |= {"sort_key": _sort_key, "filled": _filled, "source": _source}
    return environment.from_string(_file("report.html.jinja"))


def _file(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _shown(value: object) -> object:
    """Return `value` as it may stand in a page: what is no markup of our own is printable text."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)


def _sort_key(cell: str) -> str | None:
    """Return the number by which a cell is sorted: None of a text, nothing where it is unknown."""
    if not isinstance(cell, Quantity):
        return None
    return "" if math.isnan(cell.value) else repr(cell.value).replace("inf", "Infinity")


def _filled(table: Table) -> Iterator[tuple[str, ...]]:
    """Yield the rows; a first cell that is empty, as above, is told: rows will be sorted."""
    first = ""
    for row in table.rows:
        first = row[0] or first
        yield (first, *row[1:])


def _source(drawing: Drawing) -> str:
    """Return the image's address, which is the image.

    As an image and not as elements of the page: several figures use the same ids, and nothing in
    an image can be run.
    """
    small = len(drawing.svg) <= _MAX_SVG
    kind, image = ("svg+xml", drawing.svg) if small else ("png", drawing.png)
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"

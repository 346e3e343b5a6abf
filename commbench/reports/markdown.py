"""``markdown``: GitHub's tables, for issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from commbench.analysis.run import Run
from commbench.reports.opening import opening
from commbench.reports.sections import Table, heading, printable, tables


def render(run: Run) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    return page(heading(run), opening(run, warns=False), run.warnings, tables(run))


def page(
    title: str, opening: Iterable[str | Table], warnings: Iterable[str], tables: Iterable[Table]
) -> str:
    """Return a title, an opening, warnings and tables with headings as Markdown."""
    parts = [f"# {_escape(title)}"]
    for part in opening:
        if isinstance(part, str):
            parts.append("  \n".join(map(_line, part.splitlines())))
        else:
            parts.append(_section(part, level=0))
    if quoted := "\n>\n".join(f"> **Warning** {_escape(text)}" for text in warnings):
        parts.append(quoted)
    parts += [_section(table) for table in tables]
    return "\n\n".join(parts) + "\n"


def _section(table: Table, level: int = 2) -> str:
    rules = [
        ":--" if number == 0 or name in table.text_columns else "--:"
        for number, name in enumerate(table.columns)
    ]
    lines = [_row(table.titles), "| " + " | ".join(rules) + " |", *map(_row, table.rows)]
    note = [_escape(table.note)] if table.note else []
    heading = f"{'#' * level} {_escape(table.title)}" if level else _line(table.title)
    title = [heading] if table.title else []
    return "\n\n".join([*title, "\n".join(lines), *note])


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_escape(cell, "<br>") for cell in cells) + " |"


def _line(text: str) -> str:
    # Otherwise it could begin a heading, a list or a quotation. Digits can't be escaped.
    return re.sub(r"^(\d+(?=[.)])|(?=[#>+-]))", r"\1\\", _escape(text))


def _escape(text: str, end: str = " ") -> str:
    # Results files may be from anyone: escape all markup.
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", printable(text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return end.join(text.splitlines())

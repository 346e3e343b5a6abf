"""``markdown``: GitHub's tables, for issues and pull requests."""

from __future__ import annotations

import re

from commbench.analysis.run import Run
from commbench.reports.sections import Table, heading, printable, tables
from commbench.reports.sections.differences import resolution


def render(run: Run) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    parts = [f"# {_escape(heading(run))}"]
    if text := resolution(run):
        parts.append(_escape(text))
    if run.warnings:
        parts.append("\n>\n".join(f"> **Warning** {_escape(text)}" for text in run.warnings))
    parts += [_section(table) for table in tables(run)]
    return "\n\n".join(parts) + "\n"


def _section(table: Table) -> str:
    rules = [
        ":--" if number == 0 or name in table.text_columns else "--:"
        for number, name in enumerate(table.columns)
    ]
    lines = [_row(table.titles), "| " + " | ".join(rules) + " |", *map(_row, table.rows)]
    note = [_escape(table.note)] if table.note else []
    return "\n\n".join([f"## {_escape(table.title)}", "\n".join(lines), *note])


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_escape(cell, "<br>") for cell in cells) + " |"


def _escape(text: str, end: str = " ") -> str:
    # Results files may be from anyone: escape all markup.
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", printable(text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return end.join(text.splitlines())

"""``terminal``: coloured where the terminal is, and as wide as it is."""

from __future__ import annotations

import io
import os
import shutil
import sys

from commbench.reports.content import Content
from commbench.reports.tables import Table, heading, tables


def render(content: Content) -> str:
    """Return the report for the terminal that standard output is, or for 80 columns of text."""
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    console = Console(
        file=out,
        width=shutil.get_terminal_size((80, 24)).columns,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
    )
    console.print(Text(heading(content), style="bold"))
    for warning in content.warnings:
        console.print(Text(f"⚠ {warning}", style="yellow"))
    for table in tables(content):
        console.print()
        _print(console, table)
    return out.getvalue()


def _print(console: object, table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    assert isinstance(console, Console)
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for number, name in enumerate(table.columns):
        left = number == 0 or name in table.text_columns
        grid.add_column(
            name,
            justify="left" if left else "right",
            overflow="fold",
            no_wrap=name not in table.text_columns,
        )
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    console.print(Text(table.title, style="bold"))
    console.print(grid)
    if table.note:
        console.print(Text(table.note, style="dim"))

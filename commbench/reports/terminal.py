"""``terminal``: tables that fit the width of the terminal, coloured if it has colours."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from commbench.analysis.run import Run
from commbench.reports.opening import NEXT, next_steps, opening
from commbench.reports.sections import Table, heading, printable, tables
from commbench.reports.sections.differences import resolution

_GAP = 2
"""The characters between two columns."""
_NAME, _TITLE, _PROSE = 12, 9, 16
"""The minimum widths of the first column, of a folded title and of a column of prose."""


def render(run: Run) -> str:
    """Return the opening for the terminal at standard output, or for 80 columns without one."""
    parts = list(opening(run))
    if parts:
        return page(heading(run), (), [*parts, next_steps(run)])
    return page(heading(run), run.warnings, [*tables(run), next_steps(run)])


def render_all(run: Run) -> str:
    """Return the report with all tables, for the same width."""
    return page("\n".join(filter(None, (heading(run), resolution(run)))), run.warnings, tables(run))


def page(title: str, warnings: Iterable[str], parts: Iterable[str | Table]) -> str:
    """Return a title, warnings, paragraphs and tables as text for a terminal."""
    out = io.StringIO()
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    console = Console(
        file=out,
        width=shutil.get_terminal_size((80, 24)).columns,
        force_terminal=colour,
        # In a notebook Rich would display the text, and not write it to the file.
        force_jupyter=False,
        no_color=not colour,
        highlight=False,
    )
    console.print(Text(printable(title), style="bold"))
    for warning in warnings:
        console.print(Text(printable(f"⚠ {warning}"), style="yellow"))
    for part in parts:
        console.print()
        if isinstance(part, str):
            # A command must stay on its line to be copied.
            console.print(Text(printable(part)), soft_wrap=part.startswith(NEXT))
        else:
            _print(console, part)
    return out.getvalue()


def _print(console: Console, table: Table) -> None:
    grid = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False
    )
    fitted, needed = _fit(table, console.width)
    for number, title in enumerate(fitted.columns):
        prose = table.columns[number] in table.text_columns
        grid.add_column(
            Text(title),
            justify="left" if number == 0 or prose else "right",
            overflow="fold",
            no_wrap=not prose,
        )
    for row in fitted.rows:
        grid.add_row(*map(Text, row))
    if table.title:
        console.print(Text(printable(table.title), style="bold"))
    width, console.width = console.width, max(console.width, needed)
    # Otherwise Rich crops cells without a mark: 12.3 GB would become 12.
    console.print(grid, crop=False)
    console.width = width
    if table.note:
        console.print(Text(printable(table.note), style="dim"))


def _fit(table: Table, width: int) -> tuple[Table, int]:
    """Return the table with titles and cells that show all numbers, and its width.

    If the page is too narrow, titles and the first column are folded; Rich wraps prose.
    """
    names = [printable(name) for name in table.columns]
    rows = [[printable(cell) for cell in row] for row in table.rows]
    prose = [name in table.text_columns for name in table.columns]

    def needed() -> int:
        widths = map(_widest, zip(names, *rows, strict=True))
        least = (min(w, _PROSE) if flows else w for w, flows in zip(widths, prose, strict=True))
        return sum(least) + _GAP * (len(names) - 1)

    if needed() > width:
        numbers = list(zip(*rows, strict=True))[1:]
        names[1:] = [
            _fold(name, max(_TITLE, _widest(cells)))
            for name, cells in zip(names[1:], numbers, strict=True)
        ]
        spare = width - needed() + _widest([names[0], *(row[0] for row in rows)])
        for row in rows:
            row[0] = _fold(row[0], max(_NAME, spare))
    return replace(table, columns=tuple(names), rows=tuple(map(tuple, rows))), needed()


def _widest(cells: Iterable[str]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.split("\n"))


def _fold(text: str, width: int) -> str:
    r"""Return `text` in lines of at most `width` characters, broken after a space, + or colon.

    Examples
    --------
    >>> _fold("ucx:tcp+shm+nvlink+ib", 12)
    'ucx:tcp+shm+\nnvlink+ib'
    >>> _fold("hash-join-transfer", 12)
    'hash-join-tr\nansfer'
    """
    lines = [""]
    for part in re.findall(r"\n|[^ +:\n]*[ +:]|[^ +:\n]+", text):
        if part == "\n" or len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part.strip("\n")
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines if line)

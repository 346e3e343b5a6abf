"""A published figure, redrawn from this run, with what was published beside it.

What was measured here and what was published are never in one line, and never bars of one group:
absolute numbers have axes of their own, and ratios a mark of their own.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from commbench import stats
from commbench.model import published
from commbench.model.published import show
from commbench.reports.figures import published_ratios, style

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from commbench.analysis.run import Run
    from commbench.model.published import Value
    from commbench.stats import Beside

LINE_IN = 0.34
_ROOM = 1.8
"""Axes go on beyond the longest bar, by this factor, for the number that stands there."""


@style.styled
def plot(run: Run) -> Figure | None:
    """Return the figure; None where the suite reproduces none, or nothing of it was measured."""
    figure = stats.reproduced(run)
    if figure is None:
        return None
    summaries, pairs = run.summaries, run.pairs
    table = stats.measured_quantities(run, summaries, pairs, {v.quantity for v in figure.values})
    if table.empty:
        return None
    found = stats.beside_published(run, summaries, pairs)
    absolute: dict[str, list[Beside]] = {}
    for beside in found:
        if beside.unit != "ratio":
            absolute.setdefault(beside.quantity, []).append(beside)
    curves = published_ratios.panels(table, figure.values)
    looks = style.looks(run)
    drawn, parts = style.new_figure(
        [
            *(len(rows) * LINE_IN + 0.9 for rows in absolute.values()),
            *[published_ratios.PANEL_IN] * len(curves),
        ],
        f"{figure.title}: here{_share(run)}, and as published",
        _caption(run, figure, found, table, style.launches(summaries.n_launches)),
        _legend(looks, {beside.backend for beside in found}, curves),
    )
    for part, (quantity, rows) in zip(parts, absolute.items(), strict=False):
        _draw_rows(part, quantity, rows, looks, figure.setting)
    for part, (points, values) in zip(parts[len(absolute) :], curves, strict=True):
        published_ratios.draw(part, points, values, looks, figure.setting)
    return drawn


def _share(run: Run) -> str:
    scale = run.suite.scale
    return f" at {100 * scale:.3g} % of the size" if scale < 1 else ""


def _memory(devices: Collection[str]) -> str:
    names = " and ".join(f"{device.upper()}s" for device in sorted(devices))
    return f"memory of {names}" if names else "nothing measured"


def _published_memory(rows: Sequence[Beside]) -> str:
    devices = {row.value.device for row in rows if row.value}
    return f", {_memory(devices)}" if len(devices) == 1 else ""


def _caption(
    run: Run, figure: published.Figure, found: Sequence[Beside], table: pd.DataFrame,
    launches: str,
) -> str:  # fmt: skip
    differences = dict.fromkeys(text for beside in found for text in beside.differences)
    return (
        f"Published (open diamonds): {figure.citation}; {figure.setting}. "
        f"Here (filled marks): {stats.machine(run.manifest)}, {_memory({*table['device']})}"
        f"{_share(run)}; {launches}. "
        + (f"Not comparable: {'; '.join(differences)}. " if differences else "")
        + "docs/suites.md defines the quantities."
    )


def _legend(
    looks: dict[str, style.Look], backends: set[str], curves: Sequence[tuple[pd.DataFrame, object]]
) -> list[Line2D]:
    shown = backends | {name for points, _ in curves for name in points["backend"]}
    here = [
        Line2D([], [], color=look.colour, marker=look.marker, label=f"{name}, here")
        for name, look in looks.items() if name in shown
    ]  # fmt: skip
    return [*here, Line2D([], [], **style.PUBLISHED, linestyle="--", label="published")]


def _draw_rows(
    part: SubFigure, quantity: str, rows: list[Beside], looks: dict[str, style.Look], setting: str
) -> None:
    left, right = part.subplots(1, 2, sharey=True)
    unit = published.UNITS[quantity]
    measured = {row.device for row in rows if not math.isnan(row.here)}
    here = [max(row.here, row.here_high if row.here_high > 0 else 0.0) for row in rows]
    theirs = [max(row.value.high, row.value.limit or 0.0) for row in rows if row.value]
    for ax, name, largest in (
        (
            left,
            f"here: {_memory(measured)}",
            max((number for number in here if number > 0), default=0.0),
        ),
        (right, f"published: {setting}{_published_memory(rows)}", max(theirs, default=0.0)),
    ):
        factor, word = style.scale(largest, unit)
        for y, row in enumerate(rows):
            if ax is left:
                look = looks.get(row.backend, style.Look(style.BLACK, "o"))
                _mark(ax, y, row, factor, look, with_memory=len(measured) > 1)
            elif row.value:
                _mark_published(ax, y, row.value, factor)
            else:
                _absent(ax, y, "not published")
        ax.set_title(textwrap.fill(name, 46))
        ax.set_xlabel(f"{quantity} ({word})")
        style.from_zero(ax, "x", largest * factor * _ROOM)
        if not largest:
            ax.set_xticks([])
        ax.grid(visible=True, axis="x")
        ax.tick_params(axis="y", length=0)
    left.set_yticks(range(len(rows)), [_row_name(row, rows) for row in rows])
    left.set_ylim(len(rows) - 0.5, -0.5)


def _row_name(row: Beside, rows: Sequence[Beside]) -> str:
    words = [row.backend]
    for name in ("layer", "n_workers"):
        value = getattr(row, name)
        if value and value != "workload" and len({getattr(r, name) for r in rows}) > 1:
            words.append(f"{value} workers" if name == "n_workers" else str(value))
    return style.label(", ".join(words), 30)


def _mark(
    ax: Axes, y: int, row: Beside, factor: float, look: style.Look, *, with_memory: bool
) -> None:
    if math.isnan(row.here):
        _absent(ax, y, "not measured")
        return
    if row.here_low < row.here_high:
        ends = row.here_low * factor, row.here_high * factor
        ax.hlines(y, *ends, color=look.colour, linewidth=2.5, alpha=0.5)
    ax.plot([row.here * factor], [y], color=look.colour, marker=look.marker, gid="here")
    words = show(row.here, row.unit) + (f", {_memory({row.device})}" if with_memory else "")
    _beyond(ax, max(row.here, row.here_high if row.here_high > 0 else 0.0) * factor, y, words)


def _mark_published(ax: Axes, y: int, value: Value, factor: float) -> None:
    ends = [value.low * factor, value.high * factor]
    ax.plot(ends, [y, y], linestyle="--", **style.PUBLISHED, gid="published")
    words, end = value.text, ends[1]
    if value.limit:
        end = value.limit * factor
        ax.plot([end], [y], color="0.5", marker="|", markersize=13, markeredgewidth=2)
        words += f" (limit {show(value.limit, value.unit)})"
    if value.detail:
        words += f"\n{value.detail}"
    _beyond(ax, end, y, words)


def _absent(ax: Axes, y: int, words: str) -> None:
    ax.annotate(
        words, (0, y), (4, 0), textcoords="offset points", va="center", size=8, color="0.45"
    )


def _beyond(ax: Axes, x: float, y: int, words: str) -> None:
    ax.annotate(words, (x, y), (8, 0), textcoords="offset points", va="center", size=8)

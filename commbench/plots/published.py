"""A published figure, redrawn from this run, with what was published beside it.

What was measured here and what was published are never in one line, and never bars of one group:
absolute numbers have axes of their own, and ratios a mark of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter, FixedFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator,
)  # fmt: skip

from commbench import published, stats
from commbench.plots import style
from commbench.published import show, show_range
from commbench.units import format_message_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from commbench.published import Value
    from commbench.stats import Beside
    from commbench.store import RunData

LINE_IN = 0.34
CURVE_IN = 2.5
_BLACK = "black"
_ROOM = 1.4
"""Axes go on beyond the longest bar, by this factor, for the number that stands there."""


@style.styled
def plot(run: RunData) -> Figure | None:
    """Return the figure; None where the suite reproduces none, or nothing of it was measured."""
    if not run.run.suite.reproduces:
        return None
    figure = published.figure(run.run.suite.reproduces)
    summaries, pairs = stats.summaries(run), stats.pairs(run)
    table = stats.measured_quantities(run, summaries, pairs, {v.quantity for v in figure.values})
    if table.empty:
        return None
    found = stats.beside_published(run, summaries, pairs)
    absolute: dict[str, list[Beside]] = {}
    for beside in found:
        if beside.unit != "ratio":
            absolute.setdefault(beside.quantity, []).append(beside)
    curves = _curves(table, figure.values)
    looks = style.looks(run)
    drawn, parts = style.new_figure(
        [*(len(rows) * LINE_IN + 0.9 for rows in absolute.values()), *[CURVE_IN] * len(curves)],
        f"{figure.title}: here{_share(run)}, and as published",
        _caption(run, figure, found, summaries),
        _legend(looks, {beside.backend for beside in found}, curves),
    )
    for part, (quantity, rows) in zip(parts, absolute.items(), strict=False):
        _draw_rows(part, quantity, rows, looks, figure.setting)
    for part, (points, values) in zip(parts[len(absolute) :], curves, strict=True):
        _draw_curves(part, points, values, looks, figure.setting)
    return drawn


def _share(run: RunData) -> str:
    scale = run.run.suite.scale
    return f" at {100 * scale:.3g} % of the size" if scale < 1 else ""


def _caption(
    run: RunData, figure: published.Figure, found: Sequence[Beside], summaries: pd.DataFrame
) -> str:
    differences = dict.fromkeys(text for beside in found for text in beside.differences)
    return (
        f"Published (open diamonds): {figure.citation}; {figure.setting}. "
        f"Here (filled marks): {stats.machine(run.run)}; {style.launches(summaries.n_launches)}. "
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
    return [*here, Line2D([], [], **_PUBLISHED, linestyle="--", label="published")]


_PUBLISHED = {
    "color": _BLACK, "marker": "D", "markerfacecolor": "white", "markersize": 6, "linewidth": 1.2,
}  # fmt: skip


def _draw_rows(
    part: SubFigure, quantity: str, rows: list[Beside], looks: dict[str, style.Look], setting: str
) -> None:
    left, right = part.subplots(1, 2, sharey=True)
    unit = published.UNITS[quantity]
    here = [max(row.here, row.here_high if row.here_high > 0 else 0.0) for row in rows]
    theirs = [max(row.value.high, row.value.limit or 0.0) for row in rows if row.value]
    for ax, name, largest in (
        (left, "here", max((number for number in here if number > 0), default=0.0)),
        (right, f"published: {setting}", max(theirs, default=0.0)),
    ):
        factor, word = style.scale(largest, unit)
        for y, row in enumerate(rows):
            if ax is left:
                look = looks.get(row.backend, style.Look(_BLACK, "o"))
                _mark(ax, y, (row.here_low, row.here, row.here_high), unit, factor, look)
            elif row.value:
                _mark_published(ax, y, row.value, factor)
            else:
                _absent(ax, y, "not published")
        ax.set_title(name)
        ax.set_xlabel(f"{quantity} ({word})")
        style.from_zero(ax, "x", largest * factor * _ROOM)
        ax.grid(visible=True, axis="x")
        ax.tick_params(axis="y", length=0)
    left.set_yticks(range(len(rows)), [_row_name(row, rows) for row in rows])
    left.set_ylim(len(rows) - 0.5, -0.5)


def _row_name(row: Beside, rows: Sequence[Beside]) -> str:
    words = [row.backend]
    for name in ("layer", "n_workers", "device"):
        value = getattr(row, name)
        if value and value != "workload" and len({getattr(r, name) for r in rows}) > 1:
            words.append(f"{value} workers" if name == "n_workers" else str(value))
    return style.label(", ".join(words), 30)


def _mark(
    ax: Axes, y: int, numbers: tuple[float, float, float], unit: str, factor: float,
    look: style.Look,
) -> None:  # fmt: skip
    low, middle, high = numbers
    if math.isnan(middle):
        _absent(ax, y, "not measured")
        return
    if low < high:
        ax.hlines(y, low * factor, high * factor, color=look.colour, linewidth=2.5, alpha=0.5)
    ax.plot([middle * factor], [y], color=look.colour, marker=look.marker, gid="here")
    _beyond(ax, max(middle, high if high > 0 else 0.0) * factor, y, show(middle, unit))


def _mark_published(ax: Axes, y: int, value: Value, factor: float) -> None:
    ends = [value.low * factor, value.high * factor]
    ax.plot(ends, [y, y], linestyle="--", **_PUBLISHED, gid="published")
    words, end = value.text, ends[1]
    if value.limit:
        end = value.limit * factor
        ax.plot([end], [y], color="0.5", marker="|", markersize=13, markeredgewidth=2)
        words += f" of {show(value.limit, value.unit)}"
    if value.detail:
        words += f"\n{value.detail}"
    _beyond(ax, end, y, words)


def _absent(ax: Axes, y: int, words: str) -> None:
    ax.annotate(
        words, (0, y), (4, 0), textcoords="offset points", va="center", size=8, color="0.45"
    )


def _beyond(ax: Axes, x: float, y: int, words: str) -> None:
    ax.annotate(words, (x, y), (8, 0), textcoords="offset points", va="center", size=8)


def _curves(
    table: pd.DataFrame, values: Sequence[Value]
) -> list[tuple[pd.DataFrame, list[Value]]]:
    """Return what each pair of panels shows: the quantity here, and the published ratios of it."""
    groups: dict[tuple[str, str], list[Value]] = {}
    for value in values:
        if value.over:
            groups.setdefault((value.quantity, value.workload), []).append(value)
    found = []
    for (quantity, workload), mine in groups.items():
        points = table[table["quantity"] == quantity]
        if workload:
            points = points[points["workload"] == workload]
        if sizes := [size for value in mine for size in value.message_bytes or ()]:
            points = points[points["message_bytes"].between(min(sizes), max(sizes))]
        kinds = points.groupby(["workload", "layer", "device"], sort=False)
        found += [(group, mine) for _, group in kinds]
    return found


def _draw_curves(
    part: SubFigure, points: pd.DataFrame, values: list[Value], looks: dict[str, style.Look],
    setting: str,
) -> None:  # fmt: skip
    left, right = part.subplots(1, 2)
    first = points.iloc[0]
    x = "message_bytes" if values[0].message_bytes else "n_workers"
    largest = float(np.nanmax([points["mid"].max(), points["high"].max()]))
    logarithmic = x == "message_bytes"
    factor, word = (1.0, "") if logarithmic else style.scale(largest, published.UNITS[first.quantity])
    for backend, line in points.groupby("backend", sort=False):
        look = looks[str(backend)]
        line = line.sort_values(x)
        left.plot(
            line[x], line["mid"] * factor, color=look.colour, marker=look.marker, markersize=5,
            linewidth=1.3, gid=f"here {backend}",
        )  # fmt: skip
        left.vlines(
            line[x], line["low"] * factor, line["high"] * factor, color=look.colour, alpha=0.5,
            linewidth=2.5,
        )  # fmt: skip
    what = first.workload if first.layer == "workload" else f"layer {first.layer}"
    left.set_title(f"{what}, here")
    if logarithmic:
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(numticks=6))
        left.yaxis.set_minor_formatter(NullFormatter())
        left.yaxis.set_major_formatter(EngFormatter(unit=published.UNITS[first.quantity]))
        left.set_ylabel(f"{first.quantity} (log scale)")
    else:
        style.from_zero(left, "y", largest * factor)
        left.set_ylabel(f"{first.quantity} ({word})")
    _draw_ratios(right, points, values, looks, x)
    right.set_title(f"◇ published: {setting}")
    for ax in (left, right):
        _scale_x(ax, x, [*points[x], *_reach(values, x)] if ax is right else [*points[x]])
        ax.grid(visible=True)


def _reach(values: Sequence[Value], x: str) -> list[int]:
    return [
        number
        for value in values
        for number in (value.message_bytes if x == "message_bytes" else value.workers) or ()
    ]


def _draw_ratios(
    ax: Axes, points: pd.DataFrame, values: list[Value], looks: dict[str, style.Look], x: str
) -> None:
    import pandas as pd

    ours = pd.concat([stats.ratios(points, value) for value in values]).drop_duplicates(x)
    ours = ours.sort_values(x)
    backend = values[0].backend
    look = looks.get(backend, style.Look(_BLACK, "o"))
    ax.axhline(1, color="0.6", linewidth=1)
    ax.plot(
        ours[x], ours["ratio"], color=look.colour, marker=look.marker, markersize=5, linewidth=1.3,
        gid="here",
    )  # fmt: skip
    if ours.empty:
        ax.annotate(
            f"not measured: it takes {backend} and {values[0].over}", (0.5, 0.08),
            xycoords="axes fraction", ha="center", size=8, color="0.45",
        )  # fmt: skip
    for value in values:
        reach = _reach([value], x)
        ends = [min(reach), max(reach)]
        for level in sorted({value.low, value.high}):
            ax.plot(ends, [level, level], linestyle="--", **_PUBLISHED, gid="published")
        middle = math.sqrt(ends[0] * ends[1]) if x == "message_bytes" else sum(ends) / 2
        ax.annotate(
            show_range(value.low, value.high, "ratio"), (middle, value.high), (0, 5),
            textcoords="offset points", ha="center", size=8,
        )  # fmt: skip
    top = max([value.high for value in values] + [*ours["ratio"].dropna()])
    style.from_zero(ax, "y", 1.18 * top)
    ax.set_ylabel(f"{values[0].quantity}: times better\nthan {values[0].over} (linear scale)")


def _scale_x(ax: Axes, x: str, numbers: Sequence[int]) -> None:
    smallest, largest = min(numbers), max(numbers)
    ticks = sorted({*numbers})
    if x == "message_bytes":
        ticks = [8**n for n in range(12) if smallest <= 8**n <= largest] or ticks
    if x == "message_bytes" or largest > 8:
        ax.set_xscale("log", base=2)
        ax.set_xlim(smallest / 1.5, largest * 1.5)
        ax.set_xlabel("message size (log scale)" if x == "message_bytes" else "workers (log scale)")
    else:
        ax.set_xlim(smallest - 0.4, largest + 0.4)
        ax.set_xlabel("workers")
    names = [format_message_size(tick) if x == "message_bytes" else str(tick) for tick in ticks]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FixedFormatter(names))
    ax.xaxis.set_minor_locator(NullLocator())

"""A published figure, redrawn from this run, with the published values.

Measured and published values are never in one line or one group of bars: absolute numbers have
separate axes, and ratios different marks.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, NullFormatter

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import Case, published
from commbench.model.published import Value, show, show_range
from commbench.model.units import format_message_size
from commbench.reports.figures import style
from commbench.stats import PublishedComparison

LINE_IN = 0.34
PANEL_IN = 2.5
LOG_FROM_RATIO = 20
"""The axis of ratios is logarithmic if the largest is more than this factor times the smallest."""
_ROOM = 1.8
"""The length of an axis relative to its longest bar, with room for a number."""


@style.styled
def plot(run: Run) -> Figure | None:
    """Return the figure, or None if the suite reproduces none or the run has no value of it."""
    figure = stats.reproduced(run)
    if figure is None:
        return None
    table = stats.measured_quantities(run, {v.quantity for v in figure.values})
    if table.empty:
        return None
    comparisons = run.published_comparisons
    absolute: dict[str, list[PublishedComparison]] = {}
    for comparison in comparisons:
        if comparison.unit != "ratio":
            absolute.setdefault(comparison.quantity, []).append(comparison)
    curves = _ratio_panels(table, figure.values)
    # Numbers of workers are on the axis.
    looks = style.styles({_name(case) for case in run.suite.cases})
    shown = {comparison.backend for comparison in comparisons}.union(
        *((points["backend"] + " " + points["setting"]).str.strip() for points, _ in curves)
    )
    scale = run.suite.scale
    share = f" at {100 * scale:.3g} % of the size" if scale < 1 else ""
    differences = dict.fromkeys(text for each in comparisons for text in each.differences)
    drawn, parts = style.new_figure(
        [*(len(rows) * LINE_IN + 0.9 for rows in absolute.values()), *[PANEL_IN] * len(curves)],
        f"{figure.title}: here{share}, and as published",
        f"Published (open diamonds): {figure.citation}; {figure.setting}. "
        f"Here (filled marks): {stats.machine(run.manifest)}, {_memory({*table['device']})}"
        f"{share}; {style.launches(run.summaries)}. "
        + (f"Not comparable: {'; '.join(differences)}. " if differences else "")
        + "docs/suites.md defines the quantities.",
        [
            *(
                Line2D([], [], color=look.colour, marker=look.marker, label=f"{name}, here")
                for name, look in looks.items() if name in shown
            ),
            Line2D([], [], **style.PUBLISHED, linestyle="--", label="published"),
        ],
    )  # fmt: skip
    for part, (quantity, rows) in zip(parts, absolute.items(), strict=False):
        _draw_rows(part, quantity, rows, looks, figure.setting)
    for part, (points, values) in zip(parts[len(absolute) :], curves, strict=True):
        _draw_ratio_panels(part, points, values, looks, figure.setting)
    return drawn


def _memory(devices: Collection[str]) -> str:
    names = " and ".join(f"{device.upper()}s" for device in sorted(devices))
    return f"memory of {names}" if names else "nothing measured"


def _name(case: Case) -> str:
    """Return the name that comparisons with published values have."""
    varied = tuple(key for key in case.varied if key not in ("backend", "workers"))
    return f"{case.backend} {replace(case, varied=varied).variant}".strip()


def _draw_rows(
    part: SubFigure, quantity: str, rows: list[PublishedComparison],
    looks: dict[str, style.Style], setting: str,
) -> None:  # fmt: skip
    """Draw measured values on the left, and published ones on the right."""
    left, right = part.subplots(1, 2, sharey=True)
    devices = {row.device for row in rows if not math.isnan(row.here)}
    ends = [max(row.here, row.here_high if row.here_high > 0 else 0.0) for row in rows]
    factor = _scale_rows(left, quantity, f"here: {_memory(devices)}", ends)
    for y, (row, end) in enumerate(zip(rows, ends, strict=True)):
        if math.isnan(row.here):
            _write(left, 0, y, "not measured", color="0.45")
            continue
        look = looks.get(row.backend, style.Style())
        if row.here_low < row.here_high:
            interval = row.here_low * factor, row.here_high * factor
            left.hlines(y, *interval, color=look.colour, linewidth=2.5, alpha=0.5)
        left.plot([row.here * factor], [y], color=look.colour, marker=look.marker, gid="here")
        memory = f", {_memory({row.device})}" if len(devices) > 1 else ""
        _write(left, end * factor, y, show(row.here, row.unit) + memory)
    values = [row.value for row in rows if row.value]
    devices = {value.device for value in values}
    memory = f", {_memory(devices)}" if len(devices) == 1 else ""
    ends = [max(value.high, value.limit or 0.0) for value in values]
    factor = _scale_rows(right, quantity, f"published: {setting}{memory}", ends)
    for y, row in enumerate(rows):
        if row.value:
            _draw_published(right, y, row.value, factor)
        else:
            _write(right, 0, y, "not published", color="0.45")
    right.tick_params(axis="y", length=0)
    style.name_rows(left, [_row_name(row, rows) for row in rows])


def _scale_rows(ax: Axes, quantity: str, title: str, ends: Sequence[float]) -> float:
    """Make room for bars with these ends and return the factor to the unit of the axis."""
    largest = max((end for end in ends if end > 0), default=0.0)
    factor, unit = style.scale(largest, published.UNITS[quantity])
    ax.set_title(textwrap.fill(title, 46))
    ax.set_xlabel(f"{quantity} ({unit})")
    style.from_zero(ax, "x", largest * factor * _ROOM)
    if not largest:
        ax.set_xticks([])
    return factor


def _row_name(row: PublishedComparison, rows: Sequence[PublishedComparison]) -> str:
    words = [row.backend]
    if row.layer not in ("", "workload") and len({other.layer for other in rows}) > 1:
        words.append(row.layer)
    if row.n_workers and len({other.n_workers for other in rows}) > 1:
        words.append(f"{row.n_workers} workers")
    return style.label(", ".join(words), 30)


def _draw_published(ax: Axes, y: int, value: Value, factor: float) -> None:
    ends = [value.low * factor, value.high * factor]
    ax.plot(ends, [y, y], linestyle="--", **style.PUBLISHED, gid="published")
    words, end = value.text, ends[1]
    if value.limit:
        end = value.limit * factor
        ax.plot([end], [y], color="0.5", marker="|", markersize=13, markeredgewidth=2)
        words += f" (limit {show(value.limit, value.unit)})"
    _write(ax, end, y, words + f"\n{value.detail}" * bool(value.detail))


def _write(ax: Axes, x: float, y: int, words: str, **looks: Any) -> None:
    ax.annotate(words, (x, y), (8, 0), textcoords="offset points", va="center", size=8, **looks)


def _ratio_panels(
    table: pd.DataFrame, values: Sequence[Value]
) -> list[tuple[pd.DataFrame, list[Value]]]:
    """Return the contents of each pair of panels: a measured quantity and its published ratios.

    `table` is the result of ``stats.measured_quantities``.
    """
    groups: dict[tuple[str, str], list[Value]] = {}
    for value in values:
        if value.over:
            groups.setdefault((value.quantity, value.workload), []).append(value)
    panels = []
    for (quantity, workload), mine in groups.items():
        points = table[table["quantity"] == quantity]
        if workload:
            points = points[points["workload"] == workload]
        if sizes := [size for value in mine for size in value.message_bytes or ()]:
            points = points[points["message_bytes"].between(min(sizes), max(sizes))]
        kinds = points.groupby(["workload", "layer", "device", "setting"], sort=False)
        panels += [(group, mine) for _, group in kinds]
    return panels


def _draw_ratio_panels(
    part: SubFigure, points: pd.DataFrame, values: list[Value], looks: dict[str, style.Style],
    setting: str,
) -> None:  # fmt: skip
    """Draw a measured quantity on the left, and its measured and published ratios on the right."""
    left, right = part.subplots(1, 2)
    first = points.iloc[0]
    x = "message_bytes" if values[0].message_bytes else "n_workers"
    largest = style.largest(points["mid"], points["high"])
    unit, logarithmic = published.UNITS[first.quantity], first.quantity == "latency"
    factor, word = (1.0, unit) if logarithmic else style.scale(largest, unit)
    for backend, line in points.groupby("backend", sort=False):
        look = looks.get(f"{backend} {first.setting}".strip(), style.Style())
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
    left.set_title(", ".join(filter(None, (what, first.setting, "here"))))
    if logarithmic:
        style.logarithmic(left, 6)
        # A log axis needs two labelled decades to be readable.
        ends = math.log10(points["mid"].min()), math.log10(largest)
        left.set_ylim(10 ** math.floor(ends[0]), 10 ** math.ceil(ends[1]))
        left.yaxis.set_major_formatter(EngFormatter(unit=unit))
        left.set_ylabel(f"{first.quantity} (log scale)")
    else:
        style.from_zero(left, "y", largest * factor)
        left.set_ylabel(f"{first.quantity} ({word})")
    _draw_ratios(right, points, values, looks, x)
    right.set_title(textwrap.fill(f"here, and ◇ published: {setting}", 50))
    for ax, also in ((left, []), (right, _reach(values, x))):
        _scale_x(ax, x, [*points[x], *also])
        ax.grid(visible=True)


def _reach(values: Sequence[Value], x: str) -> list[int]:
    return [
        number
        for value in values
        for number in (value.message_bytes if x == "message_bytes" else value.workers) or ()
    ]


def _draw_ratios(
    ax: Axes, points: pd.DataFrame, values: list[Value], looks: dict[str, style.Style], x: str
) -> None:
    ours = pd.concat([stats.ratios(points, value) for value in values]).drop_duplicates(x)
    ours = ours.sort_values(x)
    backend = values[0].backend
    look = looks.get(f"{backend} {points['setting'].iloc[0]}".strip(), style.Style())
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
            ax.plot(ends, [level, level], linestyle="--", **style.PUBLISHED, gid="published")
        middle = math.sqrt(ends[0] * ends[1]) if x == "message_bytes" else sum(ends) / 2
        ax.annotate(
            show_range(value.low, value.high, "ratio"), (middle, value.high), (0, 5),
            textcoords="offset points", ha="center", size=8,
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5},
        )  # fmt: skip
    numbers = [1.0, *(end for value in values for end in (value.low, value.high)), *ours["ratio"]]
    wide = max(numbers) > LOG_FROM_RATIO * min(numbers)
    if wide:
        ax.set_yscale("log")
        ax.set_ylim(min(numbers) / 1.5, max(numbers) * 2)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        style.from_zero(ax, "y", 1.18 * max(numbers))
    scale = "log scale" if wide else "linear scale"
    ax.set_ylabel(f"{values[0].quantity}: times better\nthan {values[0].over} ({scale})")


def _scale_x(ax: Axes, x: str, numbers: Sequence[int]) -> None:
    smallest, largest = min(numbers), max(numbers)
    ticks = sorted({*numbers})
    if x == "message_bytes" and len(ticks) > 8:
        ticks = [8**n for n in range(12) if smallest <= 8**n <= largest] or ticks
    if x == "message_bytes" or largest > 8:
        ax.set_xscale("log", base=2)
        ax.set_xlim(smallest / 1.5, largest * 1.5)
        ax.set_xlabel("message size (log scale)" if x == "message_bytes" else "workers (log scale)")
    else:
        ax.set_xlim(smallest - 0.4, largest + 0.4)
        ax.set_xlabel("workers")
    form = format_message_size if x == "message_bytes" else str
    style.fixed_ticks(ax, {tick: form(tick) for tick in ticks})

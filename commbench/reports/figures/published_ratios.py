"""Published ratios: what was measured here, and beside it how many times better, here and there."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import (
    EngFormatter,
    FixedFormatter,
    FixedLocator,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from commbench import stats
from commbench.model import published
from commbench.model.published import show_range
from commbench.model.units import format_message_size
from commbench.reports.figures import style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

    from commbench.model.published import Value

PANEL_IN = 2.5
LOG_FROM_RATIO = 20
"""The axis of the ratios is logarithmic where the largest is so many times the smallest."""


def panels(table: pd.DataFrame, values: Sequence[Value]) -> list[tuple[pd.DataFrame, list[Value]]]:
    """Return what each pair of panels shows: a quantity here, and the published ratios of it.

    Parameters
    ----------
    table
        What ``stats.measured_quantities`` returns.
    """
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


def draw(
    part: SubFigure, points: pd.DataFrame, values: list[Value], looks: dict[str, style.Look],
    setting: str,
) -> None:  # fmt: skip
    """Draw a quantity here on the left, and its ratios, here and as published, on the right."""
    left, right = part.subplots(1, 2)
    first = points.iloc[0]
    x = "message_bytes" if values[0].message_bytes else "n_workers"
    largest = float(np.nanmax([points["mid"].max(), points["high"].max()]))
    logarithmic = first.quantity == "latency"
    factor, word = (
        (1.0, "") if logarithmic else style.scale(largest, published.UNITS[first.quantity])
    )
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
        # Without two labelled decades nobody can read a log axis.
        ends = math.log10(points["mid"].min()), math.log10(largest)
        left.set_ylim(10 ** math.floor(ends[0]), 10 ** math.ceil(ends[1]))
        left.yaxis.set_major_locator(LogLocator(numticks=6))
        left.yaxis.set_minor_formatter(NullFormatter())
        left.yaxis.set_major_formatter(EngFormatter(unit=published.UNITS[first.quantity]))
        left.set_ylabel(f"{first.quantity} (log scale)")
    else:
        style.from_zero(left, "y", largest * factor)
        left.set_ylabel(f"{first.quantity} ({word})")
    _draw_ratios(right, points, values, looks, x)
    right.set_title(textwrap.fill(f"here, and ◇ published: {setting}", 50))
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
    ours = pd.concat([stats.ratios(points, value) for value in values]).drop_duplicates(x)
    ours = ours.sort_values(x)
    backend = values[0].backend
    look = looks.get(backend, style.Look(style.BLACK, "o"))
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
    names = [format_message_size(tick) if x == "message_bytes" else str(tick) for tick in ticks]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FixedFormatter(names))
    ax.xaxis.set_minor_locator(NullLocator())

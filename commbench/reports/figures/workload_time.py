"""Time of each workload per backend: every launch as a dot, the median and its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.model import LAYERS
from commbench.model.units import format_bytes, format_seconds
from commbench.reports.figures import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commbench.analysis.run import Run
    from commbench.model import Case

LINE_IN = 0.36


@style.styled
def plot(run: Run) -> Figure | None:
    """Return one panel per workload, its backends below each other; None without workloads."""
    summaries = run.summaries
    if summaries.empty:
        return None
    # A case of several sizes is a sweep: another figure shows it.
    summaries = summaries[~summaries.case_id.duplicated(keep=False)]
    groups = style.groups(run, "cluster")
    panels = {
        name: cases
        for name, cases in groups.items()
        if summaries.case_id.isin([case.id for case in cases]).any()
    }
    if not panels:
        return None
    shown = summaries[~summaries.layer.isin(LAYERS)]
    names = {name: _names(run, cases) for name, cases in panels.items()}
    heights = [
        len(lines) * max(LINE_IN, 0.15 * max(line.count("\n") + 1 for line in lines)) + 0.85
        for lines in names.values()
    ]
    meaning = style.interval(shown.confidence)
    figure, (part,) = style.new_figure(
        [sum(heights)],
        f"Time per iteration, by workload and backend ({style.launches(shown.n_launches)})",
        "Dot = median of one launch (a fresh cluster). Bar = median of the launches' medians"
        + (f"; line = {meaning}. " if meaning else " (one launch allows no interval). ")
        + "Ratio = median ÷ the first backend's: below 1 is faster. CPU time ="
        " CPU-seconds of all the cluster's processes in one iteration."
        + style.not_shown(run, groups, {case.id for cases in panels.values() for case in cases}),
    )
    axes = part.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    medians = run.launch_medians
    looks = style.looks(run)
    for ax, (name, cases) in zip(axes.flat, panels.items(), strict=True):
        _panel(ax, name, cases, shown.set_index("case_id"), medians, looks)
        ax.set_yticks(range(len(cases)), names[name])
    return figure


def _panel(
    ax: Axes, name: str, cases: list[Case], shown: pd.DataFrame, medians: pd.DataFrame,
    looks: dict[str, style.Look],
) -> None:  # fmt: skip
    mine = shown[shown.index.isin([case.id for case in cases])]
    dots = medians[medians.case_id.isin(mine.index)]
    sure = mine[mine.confidence > 0]
    largest = float(np.nanmax([mine.median_s.max(), dots.median_s.max(), sure.ci_high_s.max()]))
    factor, unit = style.scale(largest, "s")
    first = mine.median_s.get(cases[0].id, math.nan)
    for place, words in enumerate(("median", "ratio", "CPU time"), start=1):
        _aside(ax, place, -0.75, words, color="0.35")
    for y, case in enumerate(cases):
        look = looks[case.backend]
        launches = dots.median_s[dots.case_id == case.id].sort_index().to_numpy() * factor
        # The same data give the same figure, so the jitter is a fixed zigzag.
        jitter = 0.13 * np.resize([-1, 1, -0.4, 0.4, -0.7, 0.7], len(launches))
        ax.scatter(
            launches, y + jitter, s=22, color=look.colour, marker=look.marker, alpha=0.85,
            edgecolor="white", linewidth=0.5, zorder=3, gid=f"launches {case.backend}",
        )  # fmt: skip
        if case.id not in mine.index:
            _aside(ax, 1, y, "—")
            continue
        row = mine.loc[case.id]
        if row.confidence > 0:
            ax.hlines(y, row.ci_low_s * factor, row.ci_high_s * factor, color=look.colour, lw=1.5)
        ax.vlines(row.median_s * factor, y - 0.32, y + 0.32, color=look.colour, linewidth=3)
        _aside(ax, 1, y, format_seconds(row.median_s), weight="bold")
        _aside(ax, 2, y, _ratio(row.median_s / first))
        _aside(ax, 3, y, format_seconds(row.cpu_s))
    payload = mine.payload_bytes.unique()
    ax.set_title(name + (f", {format_bytes(payload[0])}" if len(payload) == 1 else ""))
    ax.set_xlabel(f"time per iteration ({unit})")
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    style.from_zero(ax, "x", largest * factor)
    ax.grid(visible=True, axis="x")


def _ratio(ratio: float) -> str:
    return "—" if math.isnan(ratio) else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _aside(ax: Axes, place: int, y: float, words: str, **looks: Any) -> None:
    # Points, not shares of the axes: the layout then knows how much room the words need.
    ax.annotate(
        words, (1, y), xycoords=("axes fraction", "data"), xytext=(48 * place, 0),
        textcoords="offset points", ha="right", va="center", size=8, annotation_clip=False, **looks,
    )  # fmt: skip


def _names(run: Run, cases: list[Case]) -> list[str]:
    notes = [style.failed(run, case.id) for case in cases]
    return [
        style.label(case.backend) + (f"\n({note})" if note else "")
        for case, note in zip(cases, notes, strict=True)
    ]

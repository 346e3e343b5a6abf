"""Figures of the time per iteration, and of the activities of each process in a typical one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Patch

from commbench import stats
from commbench.model import LAYERS
from commbench.model.units import format_bytes, format_seconds
from commbench.reports.figures import style
from commbench.reports.sections import median_time

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from commbench.analysis.run import Run
    from commbench.model import Case

LINE_IN = 0.36
ASIDE_PT = 48
"""The width of a column of numbers to the right of the dots."""
BARS_UP_TO = 256
"""The maximum processes for which a panel has room for gaps between bars."""
UPRIGHT_FROM = 3
"""The maximum length of names that are written horizontally below their bars."""
SHORT = {"scheduler": "S", "client": "C"}

Parts = Mapping[str, tuple[str, str]]
"""The colour and the name of each column that is a part of a bar, from the bottom up."""

# Overlap is between computing and receiving, so that each of them is contiguous in the bar.
PARTS: Parts = {
    "compute_only_s": (style.ACTIVITIES["compute"], "computing only"),
    "overlap_s": (style.ACTIVITIES["overlap"], "computing and receiving"),
    "transfer_only_s": (style.ACTIVITIES["transfer"], "receiving only"),
    "neither_s": (style.ACTIVITIES["neither"], "neither (idle, scheduler, …)"),
}
TASKS: Parts = {
    "compute_s": ("#77AADD", "compute"),
    "other_cpu_s": ("#335588", "other CPU"),
    "queue_s": ("#FFAABB", "no core"),
    "blocked_s": ("#7733AA", "blocked (GIL, locks, I/O)"),
    "data_s": ("#DD4433", "await data"),
    "idle_s": ("#E4E4E4", "idle"),
}
LOOPS: Parts = {
    "serialize_s": ("#AACC66", "serialize"),
    "deserialize_s": ("#333333", "deserialize"),
    "messages_s": ("#DDCC55", "messages"),
    "poll_s": ("#884411", "poll"),
    "loop_queue_s": ("#FFAABB", "no core"),
    "asleep_s": ("#E4E4E4", "asleep"),
}


@style.styled
def plot_times(run: Run) -> Figure | None:
    """Return a figure with a panel per workload and a row per backend; None without workloads."""
    summaries = run.summaries
    if summaries.empty:
        return None
    # Cases with several sizes are in another figure.
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
        + (f"; line = {meaning}." if meaning else " (one launch allows no interval).")
        + " Ratio = time over the first backend's, by Hodges and Lehmann: below 1 is faster. Two"
        " bars: the launches split into two modes. CPU time = CPU-seconds of all the cluster's"
        " processes in one iteration."
        + style.not_shown(run, groups, {case.id for cases in panels.values() for case in cases}),
    )
    axes = part.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    medians = run.launch_medians
    looks = style.backend_styles(run)
    ratios = {(c.baseline_id, c.candidate_id): c.ratio for c in run.comparisons}
    for ax, (name, cases) in zip(axes.flat, panels.items(), strict=True):
        _draw_times(ax, name, cases, shown.set_index("case_id"), medians, looks, ratios)
        style.name_rows(ax, names[name])
    return figure


def _draw_times(
    ax: Axes, name: str, cases: list[Case], shown: pd.DataFrame, medians: pd.DataFrame,
    looks: dict[str, style.Style], ratios: dict[tuple[str, str], float],
) -> None:  # fmt: skip
    mine = shown[shown.index.isin([case.id for case in cases])]
    dots = medians[medians.case_id.isin(mine.index)]
    sure = mine[mine.confidence > 0]
    largest = float(np.nanmax([mine.median_s.max(), dots.median_s.max(), sure.ci_high_s.max()]))
    factor, unit = style.scale(largest, "s")
    for column, words in enumerate(("median", "ratio", "CPU time"), start=1):
        style.aside(ax, ASIDE_PT * column, -0.75, words, color="0.35")
    for y, case in enumerate(cases):
        look = looks[case.backend]
        launches = dots.median_s[dots.case_id == case.id].sort_index().to_numpy() * factor
        # Figures are reproducible, so the jitter is not random.
        jitter = 0.13 * np.resize([-1, 1, -0.4, 0.4, -0.7, 0.7], len(launches))
        ax.scatter(
            launches, y + jitter, s=22, color=look.colour, marker=look.marker, alpha=0.85,
            edgecolor="white", linewidth=0.5, zorder=3, gid=f"launches {case.backend}",
        )  # fmt: skip
        if case.id not in mine.index:
            style.aside(ax, ASIDE_PT, y, "—")
            continue
        row = mine.loc[case.id]
        if row.confidence > 0:
            ax.hlines(y, row.ci_low_s * factor, row.ci_high_s * factor, color=look.colour, lw=1.5)
        modes = [time for time in (row.low_mode_s, row.high_mode_s) if not math.isnan(time)]
        bars = np.array(modes or [row.median_s]) * factor
        ax.vlines(bars, y - 0.32, y + 0.32, color=look.colour, linewidth=3)
        words = median_time(row).replace(" or ", " or\n")
        style.aside(ax, ASIDE_PT, y, words, weight="bold")
        to_first = ratios.get((cases[0].id, case.id), math.nan)
        style.aside(ax, 2 * ASIDE_PT, y, "1.00" if case is cases[0] else _ratio(to_first))
        style.aside(ax, 3 * ASIDE_PT, y, format_seconds(row.cpu_s))
    payload = mine.payload_bytes.unique()
    ax.set_title(name + (f", {format_bytes(payload[0])}" if len(payload) == 1 else ""))
    ax.set_xlabel(f"time per iteration ({unit})")
    style.from_zero(ax, "x", largest * factor)


def _ratio(ratio: float) -> str:
    return "—" if math.isnan(ratio) else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _names(run: Run, cases: list[Case]) -> list[str]:
    return [
        style.label(case.backend) + (f"\n({note})" if (note := style.failed(run, case.id)) else "")
        for case in cases
    ]


@style.styled
def plot_communication(run: Run) -> Figure | None:
    """Return a figure of the communication of workers; None without transfers.

    It has a panel per workload and backend, with a bar per worker.
    """
    if run.log_counts.empty:
        return None
    typical = _typical_iterations(run, stats.worker_times(run))
    blocks = _blocks(run, typical)
    if not blocks:
        return None
    columns = {name: _columns(cases, typical, 0.1, 1.7) for name, cases in blocks.items()}
    heights = []
    for name, cases in blocks.items():
        longest = max(len(worker) for case in cases for worker in typical[case.id].worker)
        upright = 0.07 * longest if longest > UPRIGHT_FROM else 0.0
        heights.append((2.45 + upright) * math.ceil(len(cases) / columns[name]) + 0.3)
    figure, parts = style.new_figure(
        heights,
        "What each worker does in a typical iteration",
        "Receiving = at least one transfer into the worker is under way (P2P shuffles are not"
        " logged); computing = at least one of its threads computes. Each bar is one real"
        " iteration, the one whose duration is nearest to the median of the launches' medians."
        + style.not_shown(run, style.groups(run, "cluster"), typical),
        _patches(PARTS),
    )
    medians = _medians(run)

    def note(rows: pd.DataFrame) -> str:
        wall, median = rows.wall_s.max(), medians[rows.case_id.iloc[0]]
        share = (rows.transfer_only_s + rows.overlap_s).sum() / rows.wall_s.sum()
        times = f"{format_seconds(wall)} (median {format_seconds(median)})"
        return f"{times}\nreceiving {share * 100:.0f} %"

    for part, (name, cases) in zip(parts, blocks.items(), strict=True):
        _draw_block(
            part, f"{name} ({_launches(run, cases)})", cases, typical, PARTS, columns[name], note
        )
        for ax in part.axes[: len(cases)]:
            ax.set_xlabel("worker")
    return figure


@style.styled
def plot_profile(run: Run) -> Figure | None:
    """Return a figure of the profiles of all processes; None without profiles.

    Each workload has two rows of panels, for task threads and event loops, with one per backend.
    """
    typical = _typical_iterations(run, run.worker_profiles)
    blocks = _blocks(run, typical)
    if not blocks:
        return None
    columns = {name: _columns(cases, typical, 0.13, 1.5) for name, cases in blocks.items()}
    heights = [
        2.3 * math.ceil(len(cases) / columns[name]) + 0.45
        for name, cases in blocks.items()
        for _ in (TASKS, LOOPS)
    ]
    figure, parts = style.new_figure(
        heights,
        "Where the time of a typical iteration goes",
        "Task threads and event loops run side by side: each bar is the whole iteration. no core ="
        " ready to run while other threads had the cores; blocked = in a task but asleep; await"
        " data = no task, and a fetch under way; poll = the loop's turns at the price of a turn"
        " in the idle cluster; messages = all that the loop does besides. S = scheduler,"
        " C = client." + style.not_shown(run, style.groups(run, "cluster"), typical),
    )
    left = iter(parts)
    for name, cases in blocks.items():
        for bar_parts, words in ((TASKS, "task threads, average"), (LOOPS, "event loops")):
            part = next(left)
            part.legend(
                handles=_patches(bar_parts), loc="outside lower left",
                ncols=len(bar_parts),
            )  # fmt: skip
            _draw_block(
                part, f"{name}: {words} ({_launches(run, cases)})", cases, typical,
                bar_parts, columns[name], lambda rows: format_seconds(rows.wall_s.max()),
            )  # fmt: skip
    return figure


def typical_iteration(times: pd.DataFrame, median_s: float) -> pd.DataFrame:
    """Return the rows of the iteration whose duration is nearest to `median_s`.

    Parameters
    ----------
    times
        The rows of one case in ``stats.worker_times`` or ``stats.worker_profiles``.
    """
    walls = times.groupby(["launch", "iteration"]).wall_s.max()
    launch, iteration = (walls - median_s).abs().idxmin()
    return times[(times.launch == launch) & (times.iteration == iteration)]


def _typical_iterations(run: Run, times: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the typical iteration of every case that measures a cluster."""
    if times.empty:
        return {}
    medians = _medians(run)
    times = times[times.case_id.map(run.kinds) == "cluster"]
    return {
        str(case_id): typical_iteration(rows, medians[case_id])
        for case_id, rows in times.groupby("case_id", sort=False)
    }


def _medians(run: Run) -> pd.Series[float]:
    return run.summaries.drop_duplicates("case_id").set_index("case_id").median_s


def _blocks(run: Run, typical: Mapping[str, pd.DataFrame]) -> dict[str, list[Case]]:
    groups = style.groups(run, "cluster")
    kept = {name: [case for case in cases if case.id in typical] for name, cases in groups.items()}
    return {name: cases for name, cases in kept.items() if cases}


def _launches(run: Run, cases: Sequence[Case]) -> str:
    summaries = run.summaries
    return style.launches(summaries.n_launches[summaries.case_id.isin([case.id for case in cases])])


def _patches(parts: Parts) -> list[Patch]:
    return [Patch(color=colour, label=words) for colour, words in parts.values()]


def _columns(
    cases: Sequence[Case], typical: Mapping[str, pd.DataFrame], bar_in: float, least_in: float
) -> int:
    """Return how many panels with bars of `bar_in` inches fit in a row, with their titles."""
    n_bars = max(len(typical[case.id]) for case in cases)
    wanted = max(least_in, bar_in * n_bars + 0.6)
    return max(1, min(len(cases), int(style.WIDTH_IN / wanted)))


def _draw_block(
    part: SubFigure, title: str, cases: Sequence[Case], typical: Mapping[str, pd.DataFrame],
    parts: Parts, columns: int, note: Callable[[pd.DataFrame], str],
) -> None:  # fmt: skip
    """Draw a panel per case, with the `note` on its rows below its title."""
    part.suptitle(title, x=0.01, ha="left", weight="bold")
    longest = max(float(typical[case.id].wall_s.max()) for case in cases)
    factor, unit = style.scale(longest, "s")
    axes = part.subplots(math.ceil(len(cases) / columns), columns, squeeze=False, sharey=True)
    width_in = style.WIDTH_IN / columns - 0.3
    for ax in axes.flat[len(cases) :]:
        ax.set_axis_off()
    for ax, case in zip(axes.flat, cases, strict=False):
        rows = typical[case.id]
        rows = rows[rows[list(parts)].notna().any(axis="columns")]
        rows = rows.sort_values("worker", key=lambda names: names.map(_position))
        _draw_bars(ax, rows, parts, factor, case.backend)
        style.entitle(ax, case.backend, note(rows), width_in)
        step = math.ceil(0.24 * len(rows) / width_in)
        names = [SHORT.get(name, name) for name in rows.worker]
        upright = max(map(len, names), default=0) > UPRIGHT_FROM
        ax.set_xticks(np.arange(len(rows))[::step], names[::step], rotation=90 if upright else 0)
        ax.tick_params(axis="x", length=0)
        ax.set_xlim(-0.6, len(rows) - 0.4)
        style.from_zero(ax, "y", longest * factor)
    for ax in axes[:, 0]:
        ax.set_ylabel(f"time ({unit})")


def _draw_bars(ax: Axes, rows: pd.DataFrame, parts: Parts, factor: float, backend: str) -> None:
    x, bottom = np.arange(len(rows)), np.zeros(len(rows))
    for column, (colour, _) in parts.items():
        height = rows[column].fillna(0.0).to_numpy() * factor
        looks: dict[str, Any] = {"color": colour, "linewidth": 0, "gid": f"{backend} {column}"}
        if len(rows) <= BARS_UP_TO:
            ax.bar(x, height, 0.8, bottom, **looks)
        else:
            low, high = (np.append(edge, edge[-1:]) for edge in (bottom, bottom + height))
            ax.fill_between(np.append(x, len(x)) - 0.5, low, high, step="post", **looks)
        bottom = bottom + height


def _position(name: str) -> tuple[bool, list[tuple[str, int]]]:
    return name in SHORT, style.natural(name)

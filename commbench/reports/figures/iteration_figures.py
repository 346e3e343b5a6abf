"""Figures of the time per iteration, and of the activities of each process in a typical one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import LAYERS, Case
from commbench.model.units import format_bytes, format_seconds
from commbench.reports.figures import style
from commbench.reports.sections import median_time, natural, with_tuning
from commbench.reports.sections.differences import multiple

LINE_IN = 0.36
ASIDE_PT = 53
"""The width of a column to the right of the dots."""
BARS_UP_TO = 256
"""The maximum processes for which a panel has room for gaps between bars."""
UPRIGHT_FROM = 3
"""The maximum length of names that are written horizontally below their bars."""
SHORT = {"scheduler": "S", "client": "C"}

Parts = Mapping[str, tuple[str, str]]
"""The colour and the name of each column that is a part of a bar, from the bottom up."""

# Overlap is between tasks and receiving, so that each of them is contiguous in the bar.
PARTS: Parts = {
    "compute_only_s": (style.ACTIVITIES["task"], "in tasks only"),
    "overlap_s": (style.ACTIVITIES["overlap"], "in tasks, and receiving"),
    "transfer_only_s": (style.ACTIVITIES["receive"], "receiving only"),
    "neither_s": (style.ACTIVITIES["idle"], "neither"),
}
TASKS: Parts = {
    "compute_s": (style.ACTIVITIES["compute"], "compute"),
    "other_cpu_s": (style.ACTIVITIES["other CPU"], "other CPU"),
    "queue_s": (style.ACTIVITIES["no core"], "no core"),
    "blocked_s": (style.ACTIVITIES["blocked"], "blocked (GIL, locks, I/O)"),
    "data_s": (style.ACTIVITIES["receive"], "await data"),
    "idle_s": (style.ACTIVITIES["idle"], "idle"),
}
LOOPS: Parts = {
    "serialize_s": (style.ACTIVITIES["serialize"], "serialize"),
    "deserialize_s": (style.ACTIVITIES["deserialize"], "deserialize"),
    "messages_s": (style.ACTIVITIES["messages"], "messages"),
    "poll_s": (style.ACTIVITIES["poll"], "poll"),
    "loop_queue_s": (style.ACTIVITIES["no core"], "no core"),
    "asleep_s": (style.ACTIVITIES["idle"], "asleep"),
}


@style.styled
def plot_times(run: Run) -> Figure | None:
    """Return a figure with a panel per workload and a row per backend; None without workloads.

    The regions of a user's code have none: they have no backends to compare.
    """
    if run.is_user_code:
        return None
    groups = style.groups(run, "cluster")
    shown = run.summaries[~run.summaries.layer.isin(LAYERS)]
    # Cases with several sizes are in another figure.
    shown = shown[~shown.case_id.duplicated(keep=False)].set_index("case_id")
    panels = {
        name: cases
        for name, cases in groups.items()
        if any(case.id in shown.index for case in cases)
    }
    if not panels:
        return None
    names, heights = {}, []
    for name, cases in panels.items():
        backends = with_tuning([case.variant for case in cases], cases[0].cluster.device)
        labels = [
            (style.label(backend), style.failed(run, case.id))
            for backend, case in zip(backends, cases, strict=True)
        ]
        names[name] = [f"{label}\n({why})" if why else label for label, why in labels]
        most = max(text.count("\n") + 1 for text in names[name])
        heights.append(len(cases) * max(LINE_IN, 0.15 * most) + 0.85)
    figure, (part,) = style.new_figure(
        [sum(heights)],
        f"Time per iteration, by workload and backend ({style.launches(shown)})",
        "Dot = median of one launch (a fresh cluster). Bar = median of the launches' medians"
        + style.interval("line", shown.confidence)
        + " Ratio = time over the baseline's, by Hodges and Lehmann, of launches, not of the"
        " medians: below 1 is faster; inconclusive = the run can't tell. Two bars: the launches"
        " split into two modes."
        + " CPU time = CPU-seconds of all the cluster's processes in one iteration."
        * style.is_wide()
        + style.not_shown(run, groups, {case.id for cases in panels.values() for case in cases}),
    )
    looks = style.backend_styles(run)
    for ax, (name, cases) in zip(style.rows(part, heights), panels.items(), strict=True):
        _draw_times(ax, name, cases, shown, run, looks)
        style.name_rows(ax, names[name])
    return figure


def _draw_times(
    ax: Axes, name: str, cases: list[Case], shown: pd.DataFrame, run: Run,
    looks: dict[str, style.Style],
) -> None:  # fmt: skip
    mine = shown[shown.index.isin([case.id for case in cases])]
    dots = run.launch_medians[run.launch_medians.case_id.isin(mine.index)]
    # Cases without a successful launch are compared with none.
    baseline = (mine.n_launches > 0).idxmax()
    compared = {c.candidate_id: c for c in run.comparisons if c.baseline_id == baseline}
    largest = style.largest(mine.median_s, dots.median_s, mine.ci_high_s[mine.confidence > 0])
    factor, unit = style.scale(largest, "s")
    titles = ("median", "ratio", "verdict", "CPU time")[: 3 + style.is_wide()]
    style.write_columns(ax, ASIDE_PT, -0.75, titles, color="0.35")
    for y, case in enumerate(cases):
        look = looks[case.variant]
        launches = dots.median_s[dots.case_id == case.id].sort_index().to_numpy() * factor
        # Figures are reproducible, so the jitter is not random.
        jitter = 0.13 * np.resize([-1, 1, -0.4, 0.4, -0.7, 0.7], len(launches))
        ax.scatter(
            launches, y + jitter, s=22, color=look.colour, marker=look.marker, alpha=0.85,
            edgecolor="white", linewidth=0.5, zorder=3, gid=f"launches {case.variant}",
        )  # fmt: skip
        if case.id not in mine.index:
            style.write_columns(ax, ASIDE_PT, y, ["—"])
            continue
        row = mine.loc[case.id]
        if row.confidence > 0:
            ax.hlines(y, row.ci_low_s * factor, row.ci_high_s * factor, color=look.colour, lw=1.5)
        modes = [row.median_s] if math.isnan(row.low_mode_s) else [row.low_mode_s, row.high_mode_s]
        ax.vlines(np.multiply(modes, factor), y - 0.32, y + 0.32, color=look.colour, linewidth=3)
        c = compared.get(case.id)
        ratio = 1.0 if case.id == baseline else c.ratio if c else math.nan
        verdict = "baseline" if case.id == baseline else c.verdict if c else "—"
        style.write_columns(
            ax, ASIDE_PT, y, [median_time(row).replace(" or ", " or\n")], weight="bold"
        )
        words = f"{ratio:,.0f}" if ratio >= 100 else multiple(ratio)
        words = "—" if math.isnan(ratio) else words
        cells = ["", words, verdict, format_seconds(row.cpu_s)][: len(titles)]
        style.write_columns(ax, ASIDE_PT, y, cells)
    payload = mine.payload_bytes.unique()
    ax.set_title(
        name + (f", {format_bytes(payload[0])}" if len(payload) == 1 and payload[0] else "")
    )
    ax.set_xlabel(f"time per iteration ({unit})")
    style.from_zero(ax, "x", largest * factor)


@style.styled
def plot_communication(run: Run) -> Figure | None:
    """Return a figure of the communication of workers; None without transfers.

    It has a panel per workload and backend, with a bar per worker.
    """
    if run.log_counts.empty:
        return None

    def note(rows: pd.DataFrame, median: str) -> str:
        share = (rows.transfer_only_s + rows.overlap_s).sum() / rows.wall_s.sum()
        times = f"{format_seconds(rows.wall_s.max())} (median {median})"
        return f"{times}\nreceiving {share * 100:.0f} %"

    return _plot_typical_iterations(
        run, stats.worker_times(run), {"": PARTS},
        "What each worker does in a typical iteration",
        "Receiving = at least one transfer into the worker is under way. In tasks = at least one of"
        " its threads is in a task (barriers of P2P shuffles, which only wait, are left out): it"
        " computes, waits for a core or is blocked, which worker-profile separates. Each bar is one"
        " real iteration, the one whose duration is nearest to the median of its launches.",
        note, bar_in=0.1, least_in=1.7,
    )  # fmt: skip


@style.styled
def plot_profile(run: Run) -> Figure | None:
    """Return a figure of the profiles of all processes; None without profiles.

    Each workload has two rows of panels, for task threads and event loops, with one per backend.
    """
    return _plot_typical_iterations(
        run, run.worker_profiles,
        {": task threads, average": TASKS, ": event loops": LOOPS},
        "Where the time of a typical iteration goes",
        "Task threads and event loops run side by side: each bar is the whole iteration. no core ="
        " ready to run while other threads had the cores, or for a moment the GIL; blocked = in a"
        " task but asleep; await data = no task, and a fetch under way; poll = the CPU time that"
        " the loop's turns take in the idle cluster; messages = all that the loop does besides."
        " S = scheduler, C = client.",
        lambda rows, _: format_seconds(rows.wall_s.max()), bar_in=0.13, least_in=1.5,
    )  # fmt: skip


def _plot_typical_iterations(
    run: Run, times: pd.DataFrame, stacks: Mapping[str, Parts], title: str, caption: str,
    note: Callable[[pd.DataFrame, str], str], *, bar_in: float, least_in: float,
) -> Figure | None:  # fmt: skip
    """Return a figure with a row of panels for each workload and each of `stacks`.

    A panel has the bars of one case, at least `bar_in` inches wide; below its title is the `note`
    on its rows and on the median.
    """
    if times.empty:
        return None
    groups = style.groups(run, "cluster")
    summaries = run.summaries.drop_duplicates("case_id")
    medians = {row.case_id: median_time(row) for row in summaries.itertuples()}
    blocks = {
        name: [
            (case, stats.iteration_rows(sample, times))
            for case in cases
            if (sample := stats.typical_sample(run, case, times)) is not None
        ]
        for name, cases in groups.items()
    }
    blocks = {name: block for name, block in blocks.items() if block}
    if not blocks:
        return None
    n_stacks, columns, heights = len(stacks), {}, []
    for name, block in blocks.items():
        width_in = max(least_in, bar_in * max(len(rows) for _, rows in block) + 0.6)
        columns[name] = max(1, min(len(block), int(style.width_in() / width_in)))
        longest = max(len(SHORT.get(name, name)) for _, rows in block for name in rows.worker)
        upright_in = 0.07 * longest if longest > UPRIGHT_FROM else 0.0
        n_rows = math.ceil(len(block) / columns[name])
        heights += [(2.35 + upright_in) * n_rows + 0.4] * n_stacks
    shown = {case.id for block in blocks.values() for case, _ in block}
    legends = [
        [Patch(color=colour, label=words) for colour, words in parts.values()]
        for parts in stacks.values()
    ]
    figure, subfigures = style.new_figure(
        heights, title, caption + style.not_shown(run, groups, shown),
        legends[0] if n_stacks == 1 else (),
    )  # fmt: skip
    panel_rows = itertools.product(blocks, zip(stacks.items(), legends, strict=True))
    for part, (name, ((words, parts), legend)) in zip(subfigures, panel_rows, strict=True):
        block = blocks[name]
        launches = style.launches(
            run.summaries[run.summaries.case_id.isin([case.id for case, _ in block])]
        )
        part.suptitle(f"{name}{words} ({launches})", x=0.01, ha="left", weight="bold")
        if n_stacks > 1:
            n_columns = style.legend_columns(len(legend))
            part.legend(handles=legend, loc="outside lower left", ncols=n_columns)
        most_s = style.largest(*(rows.wall_s for _, rows in block))
        factor, unit = style.scale(most_s, "s")
        axes = style.panels(part, len(block), columns[name], sharey=True)
        width_in = style.width_in() / columns[name] - 0.3
        for ax, (case, rows) in zip(axes, block, strict=True):
            style.entitle(ax, case.variant, note(rows, medians[case.id]), width_in)
            _draw_bars(ax, rows, parts, factor, case.variant, width_in)
            style.from_zero(ax, "y", most_s * factor)
            ax.set_xlabel("worker" if n_stacks == 1 else "")
        for ax in axes[:: columns[name]]:
            ax.set_ylabel(f"time ({unit})")
    return figure


def _draw_bars(
    ax: Axes, rows: pd.DataFrame, parts: Parts, factor: float, backend: str, width_in: float
) -> None:
    rows = rows[rows[list(parts)].notna().any(axis="columns")]
    rows = rows.sort_values("worker", key=lambda names: names.map(_position))
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
    step = max(1, math.ceil(0.24 * len(rows) / width_in))
    names = [SHORT.get(name, name) for name in rows.worker]
    upright = max(map(len, names), default=0) > UPRIGHT_FROM
    ax.set_xticks(x[::step], names[::step], rotation=90 if upright else 0)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.6, len(rows) - 0.4)


def _position(name: str) -> tuple[bool, list[tuple[str, int]]]:
    return name in SHORT, natural(name)

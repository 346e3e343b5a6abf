"""Where the time of a typical iteration goes: task threads and event loops of every process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Patch

from commbench.model.units import format_seconds
from commbench.reports.figures import style
from commbench.reports.figures.communication import typical_iteration

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from commbench.analysis.run import Run
    from commbench.model import Case

PANEL_IN = 2.3
BARS_UP_TO = 256
"""Processes up to which a panel has room for a gap between their bars."""
SHORT = {"scheduler": "S", "client": "C"}

Parts = Mapping[str, tuple[str, str]]

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
def plot(run: Run) -> Figure | None:
    """Return two rows of panels per workload, one per backend; None without readings."""
    profiles = run.worker_profiles
    if profiles.empty:
        return None
    summaries = run.summaries.drop_duplicates("case_id").set_index("case_id")
    chosen = {
        case_id: typical_iteration(rows, summaries.median_s[case_id])
        for case_id, rows in profiles.groupby("case_id", sort=False)
    }
    groups = style.groups(run, "cluster")
    blocks = {
        name: kept
        for name, cases in groups.items()
        if (kept := [case for case in cases if case.id in chosen])
    }
    columns = {name: _columns(cases, chosen) for name, cases in blocks.items()}
    heights = [
        PANEL_IN * math.ceil(len(cases) / columns[name]) + 0.45
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
        " C = client." + style.not_shown(run, groups, chosen),
    )
    places = iter(parts)
    for name, cases in blocks.items():
        counts = summaries.n_launches[[case.id for case in cases]]
        for kind, words in ((TASKS, "task threads, average"), (LOOPS, "event loops")):
            _block(
                next(places), cases, chosen, kind, columns[name],
                f"{name}: {words} ({style.launches(counts)})",
            )  # fmt: skip
    return figure


def _columns(cases: list[Case], chosen: Mapping[str, pd.DataFrame]) -> int:
    n_bars = max(len(chosen[case.id]) for case in cases)
    return max(1, min(len(cases), int(style.WIDTH_IN / max(1.5, 0.13 * n_bars + 0.6))))


def _block(
    part: SubFigure, cases: list[Case], chosen: Mapping[str, pd.DataFrame], kind: Parts,
    columns: int, title: str,
) -> None:  # fmt: skip
    part.suptitle(title, x=0.01, ha="left", weight="bold")
    part.legend(
        handles=[Patch(color=colour, label=words) for colour, words in kind.values()],
        loc="outside lower left", ncols=len(kind),
    )  # fmt: skip
    longest = max(float(chosen[case.id].wall_s.max()) for case in cases)
    shape = math.ceil(len(cases) / columns), columns
    axes = part.subplots(*shape, squeeze=False, sharey=True)
    for ax in axes.flat[len(cases) :]:
        ax.set_axis_off()
    for ax, case in zip(axes.flat, cases, strict=False):
        _panel(ax, case, chosen[case.id], kind, longest, style.WIDTH_IN / columns - 0.3)
    for ax in axes[:, 0]:
        ax.set_ylabel(f"time ({style.scale(longest, 's')[1]})")


def _panel(
    ax: Axes, case: Case, rows: pd.DataFrame, kind: Parts, longest: float, width_in: float
) -> None:
    rows = rows[rows[list(kind)].notna().any(axis="columns")]
    rows = rows.sort_values("worker", key=lambda names: names.map(_place))
    factor, _ = style.scale(longest, "s")
    x, bottom = np.arange(len(rows)), np.zeros(len(rows))
    for column, (colour, _) in kind.items():
        height = rows[column].fillna(0.0).to_numpy() * factor
        kept: dict[str, Any] = {"color": colour, "linewidth": 0, "gid": f"{case.backend} {column}"}
        if len(rows) <= BARS_UP_TO:
            ax.bar(x, height, 0.8, bottom, **kept)
        else:
            low, high = (np.append(edge, edge[-1:]) for edge in (bottom, bottom + height))
            ax.fill_between(np.append(x, len(x)) - 0.5, low, high, step="post", **kept)
        bottom = bottom + height
    style.entitle(ax, case.backend, format_seconds(rows.wall_s.max()), width_in)
    step = math.ceil(0.24 * len(rows) / width_in)
    names = [SHORT.get(name, name) for name in rows.worker]
    upright = max(map(len, names), default=0) > 3
    ax.set_xticks(x[::step], names[::step], rotation=90 if upright else 0)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.6, len(rows) - 0.4)
    ax.grid(visible=True, axis="y")
    style.from_zero(ax, "y", longest * factor)


def _place(name: str) -> tuple[bool, list[tuple[str, int]]]:
    return name in SHORT, style.natural(name)

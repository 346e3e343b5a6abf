"""Where each worker's time goes in a typical iteration: transferring, computing, both, neither."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch

from commbench import stats
from commbench.model.units import format_seconds
from commbench.reports.figures import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commbench.analysis.run import Run
    from commbench.model import Case

PANEL_IN = 2.45
UPRIGHT_FROM = 3
"""Names longer than this stand upright below their bars."""

# Overlap lies between the two that it belongs to, so that each of them is one stretch of the bar.
PARTS = {
    "compute_only_s": ("compute", "computing only"),
    "overlap_s": ("overlap", "computing and receiving"),
    "transfer_only_s": ("transfer", "receiving only"),
    "neither_s": ("neither", "neither (idle, scheduler, …)"),
}


@style.styled
def plot(run: Run) -> Figure | None:
    """Return one panel per workload and backend, a bar per worker; None without transfers."""
    if run.log_counts.empty:
        return None
    times = stats.worker_times(run)
    if times.empty:
        return None
    blocks: dict[str, list[Case]] = {}
    for name, cases in style.groups(run).items():
        kept = [case for case in cases if (times.case_id == case.id).any()]
        if kept:
            blocks[name] = kept
    if not blocks:
        return None
    summaries = run.summaries
    medians = summaries.drop_duplicates("case_id").set_index("case_id").median_s
    chosen = {
        case.id: typical_iteration(times[times.case_id == case.id], medians[case.id])
        for cases in blocks.values()
        for case in cases
    }
    columns = {name: _columns(cases, chosen) for name, cases in blocks.items()}
    heights = [_height(cases, chosen, columns[name]) for name, cases in blocks.items()]
    figure, parts = style.new_figure(
        heights,
        "What each worker does in a typical iteration",
        "Receiving = at least one transfer into the worker is under way (P2P shuffles are not"
        " logged); computing = at least one of its threads computes. Each bar is one real"
        " iteration, the one whose duration is nearest to the median of the launches' medians."
        + style.not_shown(run, style.groups(run, "cluster"), chosen),
        [Patch(color=style.ACTIVITIES[key], label=words) for key, words in PARTS.values()],
    )
    for part, (name, cases) in zip(parts, blocks.items(), strict=True):
        counts = summaries.n_launches[summaries.case_id.isin([case.id for case in cases])]
        part.suptitle(f"{name} ({style.launches(counts)})", x=0.01, ha="left", weight="bold")
        longest = max(float(chosen[case.id].wall_s.max()) for case in cases)
        shape = math.ceil(len(cases) / columns[name]), columns[name]
        axes = part.subplots(*shape, squeeze=False, sharey=True)
        width_in = style.WIDTH_IN / shape[1] - 0.3
        for ax in axes.flat[len(cases) :]:
            ax.set_axis_off()
        for ax, case in zip(axes.flat, cases, strict=False):
            _panel(ax, case, chosen[case.id], medians[case.id], longest, width_in)
        for ax in axes[:, 0]:
            ax.set_ylabel(f"time ({style.scale(longest, 's')[1]})")
    return figure


def typical_iteration(times: pd.DataFrame, median_s: float) -> pd.DataFrame:
    """Return the rows of the iteration whose duration is nearest to `median_s`.

    Parameters
    ----------
    times
        The rows of one case in ``stats.worker_times``.
    """
    walls = times.groupby(["launch", "iteration"]).wall_s.max()
    launch, iteration = (walls - median_s).abs().idxmin()
    return times[(times.launch == launch) & (times.iteration == iteration)]


def _columns(cases: list[Case], chosen: dict[str, pd.DataFrame]) -> int:
    n_workers = max(len(chosen[case.id]) for case in cases)
    # Bars of at least 0.1 inch, and panels wide enough for their titles.
    wanted = max(1.7, 0.1 * n_workers + 0.6)
    return max(1, min(len(cases), int(style.WIDTH_IN / wanted)))


def _height(cases: list[Case], chosen: dict[str, pd.DataFrame], columns: int) -> float:
    longest = max(len(name) for case in cases for name in chosen[case.id].worker)
    upright = 0.07 * longest if longest > UPRIGHT_FROM else 0.0
    return (PANEL_IN + upright) * math.ceil(len(cases) / columns) + 0.3


def _panel(
    ax: Axes, case: Case, times: pd.DataFrame, median_s: float, longest: float, width_in: float
) -> None:
    times = times.sort_values("worker", key=lambda names: names.map(style.natural))
    factor, _ = style.scale(longest, "s")
    x, bottom = np.arange(len(times)), np.zeros(len(times))
    for column, (activity, _) in PARTS.items():
        height = times[column].to_numpy() * factor
        ax.bar(x, height, 0.8, bottom, color=style.ACTIVITIES[activity], linewidth=0)
        bottom = bottom + height
    share = (times.transfer_only_s + times.overlap_s).sum() / times.wall_s.sum()
    wall = format_seconds(times.wall_s.max())
    note = f"{wall} (median {format_seconds(median_s)})\nreceiving {share * 100:.0f} %"
    style.entitle(ax, case.backend, note, width_in)
    step = math.ceil(0.24 * len(times) / width_in)
    upright = max(map(len, times.worker)) > UPRIGHT_FROM
    ax.set_xticks(x[::step], [*times.worker.iloc[::step]], rotation=90 if upright else 0)
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("worker")
    ax.set_xlim(-0.6, len(times) - 0.4)
    ax.grid(visible=True, axis="y")
    style.from_zero(ax, "y", longest * factor)

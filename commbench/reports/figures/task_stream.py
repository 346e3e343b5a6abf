"""The task stream: the tasks of every thread of every worker, and its incoming transfers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from commbench.analysis.run import Run
from commbench.model import Case
from commbench.model.units import format_seconds
from commbench.reports.figures import style
from commbench.stats import iteration_rows, typical_sample

MAX_WORKERS = 32
EDGES_UP_TO = 1000
"""The maximum bars with a thin white edge, which separates neighbours."""
VECTORS_UP_TO = 4000
"""The maximum bars that a vector file has as vectors; more are rasterized to keep it small."""

SHADED_FROM, N_COLUMNS = 20_000, 1800
"""The bars from which on a lane has columns instead, one per pixel, shaded by the busy share."""

ACTIONS = {
    "compute": ("task", "in a task"), "deserialize": ("deserialize", "deserialize"),
    "disk": ("disk", "disk (spill)"),
    "transfer": ("receive", "receive (the lane below a worker's threads)"),
}  # fmt: skip
"""The activity, with its colour, and the words of each kind of bar."""
LETTER_IN = 0.062
"""The width of a letter of a task's name."""
NAMED_LANES = 24
"""The maximum lanes that are high enough for names."""
KEYS = "123456789"
"""Placeholders for the names of the tasks that take most of the time."""


@style.styled
def plot(run: Run) -> Figure | None:
    """Return a figure with a panel per workload and backend; None without a task stream."""
    if run.tasks.empty or run.samples.empty:
        return None
    groups = style.groups(run, "cluster")
    blocks = {
        name: list(filter(None, (typical_stream(run, case) for case in cases)))
        for name, cases in groups.items()
    }
    blocks = {name: block for name, block in blocks.items() if block}
    if not blocks:
        return None
    streams = [stream for block in blocks.values() for stream in block]
    heights = [[stream.height_in for stream in block] for block in blocks.values()]
    most = max(len(stream.workers) for stream in streams)
    actions = {action for stream in streams for action in stream.bars.action.unique()}
    shaded = any(len(stream.bars) > SHADED_FROM for stream in streams)
    figure, parts = style.new_figure(
        [sum(each) + 0.8 for each in heights],
        "Task stream of a typical iteration, the one nearest to the median",
        "White = idle. Vertical line = end of the iteration. A worker's threads have one lane each,"
        " its incoming transfers (all senders together) the lane below them. A task that waits for"
        " a core is in its bar: worker-profile has these waits."
        + (f" Only the first {MAX_WORKERS} of {most} workers are shown." * (most > MAX_WORKERS))
        + f" With over {SHADED_FROM:,} bars, the darker a column, the busier its lane." * shaded
        + style.not_shown(run, groups, {stream.case.id for stream in streams}),
        [
            Patch(color=style.ACTIVITIES[activity], label=words)
            for action, (activity, words) in ACTIONS.items()
            if action in actions
        ],
    )
    for part, (name, block), each in zip(parts, blocks.items(), heights, strict=True):
        part.suptitle(name, x=0.01, ha="left", weight="bold")
        keys = _keys(block)
        legend = [Patch(facecolor="none", label=f"{key} {name:.24}") for name, key in keys.items()]
        if legend:
            part.legend(handles=legend, loc="outside lower left", ncols=5, handlelength=0)
        axes = style.rows(part, each, sharex=True)
        longest = max(stream.seconds for stream in block)
        factor, unit = style.scale(longest, "s")
        for ax, stream in zip(axes, block, strict=True):
            _panel(ax, stream, factor, longest, keys)
        style.from_zero(axes[-1], "x", longest * factor)
        axes[-1].set_xlabel(f"time since the iteration's start ({unit})")
    return figure


@dataclass(frozen=True)
class Stream:
    """One iteration; ``bars`` has worker, lane, action, and times since its start."""

    case: Case
    launch: int
    iteration: int
    seconds: float
    workers: list[str]
    bars: pd.DataFrame

    @property
    def n_lanes(self) -> int:
        """The lanes of a worker: one per thread, and one for incoming transfers."""
        return max(self.case.cluster.threads_per_worker, int(self.bars.lane.max()) + 1) + 1

    @property
    def height_in(self) -> float:
        """The height of the panel in inches: 0.13 per lane, at most 3.2 for all lanes."""
        rows = min(len(self.workers), MAX_WORKERS)
        return 0.75 + min(max(0.22, 0.13 * self.n_lanes) * rows, 3.2)


def typical_stream(run: Run, case: Case) -> Stream | None:
    """Return the tasks and transfers of the typical iteration of `case`, or None without any."""
    if (typical := typical_sample(run, case)) is None:
        return None
    launch, iteration = int(typical.launch), int(typical.iteration)
    same = partial(iteration_rows, typical)
    bars = same(run.tasks)[["worker", "thread", "name", "action", "start_s", "stop_s"]]
    if not run.transfers.empty:
        received = same(run.transfers)[["src", "dst", "start_s", "stop_s"]]
        received = received.rename(columns={"dst": "worker"}).assign(
            name="from " + received["src"].astype(str), action="transfer", thread=-1
        )
        bars = pd.concat([bars, received], ignore_index=True)
    bars = bars.assign(
        action=bars.action.where(~bars.action.str.startswith("disk"), "disk"),
        start_s=(bars.start_s - typical.started_at_s).clip(lower=0),
        stop_s=bars.stop_s - typical.started_at_s,
    )
    bars = bars[bars.action.isin(ACTIONS) & (bars.stop_s > bars.start_s)]
    if bars.empty:
        return None
    # Number the threads of each worker from 0 instead of by their system-wide ids.
    threads = bars.thread.where(bars.action != "transfer")
    lane = threads.groupby(bars.worker).rank(method="dense") - 1
    return Stream(
        case, launch, iteration, float(typical.seconds), style.workers(run, [case.id]),
        bars.assign(lane=lane.fillna(-1)),
    )  # fmt: skip


def _keys(block: list[Stream]) -> dict[str, str]:
    """Return the names of the tasks that take most of the time, each with its key."""
    bars = pd.concat([stream.bars for stream in block])
    bars = bars[bars.action == "compute"]
    seconds = (bars.stop_s - bars.start_s).groupby(bars.name).sum().sort_values(ascending=False)
    return dict(zip(filter(None, map(str, seconds.index)), KEYS, strict=False))


def _panel(ax: Axes, stream: Stream, factor: float, longest_s: float, keys: dict[str, str]) -> None:
    workers, n_lanes = stream.workers[:MAX_WORKERS], stream.n_lanes
    row_by_worker = {worker: row for row, worker in enumerate(workers)}
    bars = stream.bars[stream.bars.worker.isin(row_by_worker)]
    # Leave space above and below the row of each worker, to separate workers.
    lane = 0.84 / n_lanes
    bars = bars.assign(
        top=bars.worker.map(row_by_worker).astype(float) + 0.08 + (bars.lane % n_lanes) * lane
    )
    is_shaded = len(bars) > SHADED_FROM
    for action, (activity, _) in ACTIONS.items():
        mine = bars[bars.action == action]
        if mine.empty:
            continue
        boxes = _columns(mine, longest_s) if is_shaded else mine.assign(share=1.0)
        edged = len(bars) <= EDGES_UP_TO
        left, right = boxes.start_s * factor, boxes.stop_s * factor
        collection = PolyCollection(
            list(style.corners(left, right, boxes.top, boxes.top + lane)),
            facecolor=to_rgba_array([style.ACTIVITIES[activity]] * len(boxes), boxes.share),
            edgecolor="white" if edged else "none", linewidth=0.3 if edged else 0,
            antialiased=not is_shaded, rasterized=len(bars) > VECTORS_UP_TO, label=action,
        )  # fmt: skip
        ax.add_collection(collection, autolim=False)
    if len(workers) * n_lanes <= NAMED_LANES:
        letters = (bars.stop_s - bars.start_s) / longest_s * style.width_in() / LETTER_IN * 0.9
        for bar in bars[(letters > 1) & (bars.action == "compute")].itertuples():
            fitting = [text for text in (bar.name, keys.get(bar.name, "")) if text]
            fitting = [text for text in fitting if len(text) < letters[bar.Index]]
            if fitting:
                middle, y = (bar.start_s + bar.stop_s) / 2 * factor, bar.top + lane / 2
                ax.text(middle, y, fitting[0], size=6, ha="center", va="center", clip_on=True)
    ax.axvline(stream.seconds * factor, color="black", linewidth=1)
    ax.set_title(
        f"{style.label(stream.case.variant, 60)}: {format_seconds(stream.seconds)}"
        f" (launch {stream.launch}, iteration {stream.iteration})"
    )
    ax.set_ylim(len(workers), 0)
    step = 1 if len(workers) <= 24 else 2
    names = [style.label(worker, 18 if len(workers) <= 8 else 99) for worker in workers[::step]]
    ax.set_yticks(np.arange(0, len(workers), step) + 0.5, names)
    ax.set_ylabel("worker")
    ax.tick_params(axis="y", length=0)
    for boundary in range(1, len(workers)):
        ax.axhline(boundary, color="0.85", linewidth=0.6)
    ax.grid(visible=True, axis="x")


def _columns(bars: pd.DataFrame, longest_s: float) -> pd.DataFrame:
    """Return the columns of each lane in which it is busy, with the share of their time."""
    edges = np.linspace(0, longest_s, N_COLUMNS + 1)

    def passed(times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sum of what has passed at each edge since each of the sorted `times`."""
        n_before = np.searchsorted(times, edges)
        sums: np.ndarray[Any, Any] = n_before * edges
        sums -= np.append(0.0, np.cumsum(times))[n_before]
        return sums

    columns = []
    for top, rows in bars.sort_values("start_s").groupby("top"):
        start_s, reach_s = rows.start_s.to_numpy(), np.maximum.accumulate(rows.stop_s.to_numpy())
        # Bars that overlap are one.
        first = np.append(True, start_s[1:] > reach_s[:-1])
        last = np.append(first[1:], True)
        share = np.diff(passed(start_s[first]) - passed(reach_s[last])) / edges[1]
        (busy,) = np.nonzero(share > 1e-3)
        columns.append(
            pd.DataFrame(
                {"top": top, "start_s": edges[busy], "stop_s": edges[busy + 1],
                 "share": share[busy].clip(max=1)}
            )
        )  # fmt: skip
    return pd.concat(columns)

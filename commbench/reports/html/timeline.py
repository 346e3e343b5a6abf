"""Time lines of a run to zoom into: the typical iteration of each case, with names of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from commbench.analysis.run import Run
from commbench.model.units import format_seconds
from commbench.reports.figures import style
from commbench.reports.figures.task_stream import ACTIONS, Stream, typical_stream

_MAX_BARS, _MAX_LANES = 1500, 200
"""The maximum of all time lines of a page together: a bar takes some 200 bytes."""
_N_TICKS = 5
_PALETTE = [to_hex(colour) for colour in colormaps["Set3"].colors]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Bar:
    """A task or a transfer; ``left`` and ``width`` are percentages of the time line."""

    left: float
    width: float
    text: str
    description: str
    fill: str
    ink: str


@dataclass(frozen=True)
class Timeline:
    """The lanes of one iteration, each with its name: threads of workers, and what they receive."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    lanes: tuple[tuple[str, tuple[Bar, ...]], ...]
    note: str


def timelines(run: Run) -> list[Timeline]:
    """Return a time line per case with a task stream."""
    if run.tasks.empty or run.samples.empty:
        return []
    streams = list(filter(None, (typical_stream(run, case) for case in run.suite.cases)))
    tasks = [stream.bars[stream.bars["action"] == "compute"] for stream in streams]
    seconds = [(bars["stop_s"] - bars["start_s"]).groupby(bars["name"]).sum() for bars in tasks]
    totals = pd.concat(seconds).groupby(level=0).sum() if seconds else pd.Series(dtype=float)
    names = totals.sort_values(ascending=False, kind="stable").index
    fills = dict(zip(names, _PALETTE, strict=False))
    return [_timeline(run, stream, len(streams), fills) for stream in streams]


def _timeline(run: Run, stream: Stream, n_streams: int, fills: dict[str, str]) -> Timeline:
    # Fetches have senders, which the bars of the task stream lack.
    is_double = (stream.bars["action"] == "transfer") & ~stream.bars["name"].str.startswith("from ")
    bars = stream.bars if run.transfers.empty else stream.bars[~is_double]
    workers = stream.workers[: max(1, _MAX_LANES // n_streams // stream.n_lanes)]
    shown = bars[bars["worker"].isin(workers)].assign(seconds=bars["stop_s"] - bars["start_s"])
    shown = shown.nlargest(_MAX_BARS // n_streams, "seconds")
    end_s = max(stream.seconds, float(bars["stop_s"].max()))
    n_left_out = len(bars) - len(shown)
    return Timeline(
        title=f"{run.case_names[stream.case.id]}: {format_seconds(stream.seconds)}",
        ticks=tuple(
            (100 * number / _N_TICKS, format_seconds(end_s * number / _N_TICKS))
            for number in range(_N_TICKS)
        ),
        lanes=tuple(_lanes(stream, shown, workers, end_s, fills)),
        note=f"{n_left_out} of {len(bars)} bars are left out, the shortest, and those of other "
        f"workers than the first {len(workers)}. "
        * (n_left_out > 0)
        + "Pointing at a bar shows its times; the format trace has all.",
    )


def _lanes(
    stream: Stream, shown: pd.DataFrame, workers: list[str], end_s: float, fills: dict[str, str]
) -> Iterator[tuple[str, tuple[Bar, ...]]]:
    groups = dict(list(shown.groupby(["worker", "lane"], observed=True)))
    for worker in workers:
        for lane in (*range(stream.n_lanes - 1), -1):
            rows = groups.get((worker, lane))
            if rows is None:
                continue
            what = "receives" if lane < 0 else f"thread {lane}" * (stream.n_lanes > 2)
            bars = (_bar(row, end_s, fills) for row in rows.sort_values("start_s").itertuples())
            yield f"{worker} {what}".rstrip(), tuple(bars)


def _bar(row: Any, end_s: float, fills: dict[str, str]) -> Bar:
    name, action = str(row.name), str(row.action)
    activity, _ = ACTIONS[action]
    fill = fills.get(name, "") if action == "compute" else ""
    fill = fill or style.ACTIVITIES[activity]
    what = {"compute": "", "transfer": "receives "}.get(action, f"{action} ")
    return Bar(
        100 * row.start_s / end_s, 100 * row.seconds / end_s, name,
        f"{what}{name}\n{format_seconds(row.seconds)}, from {format_seconds(row.start_s)} on",
        fill, style.contrast(fill),
    )  # fmt: skip

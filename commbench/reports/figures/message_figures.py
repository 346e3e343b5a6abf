"""Figures of message times: latency and bandwidth against size, and the cost of each layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import LAYERS
from commbench.model.units import format_message_size
from commbench.reports.figures import style
from commbench.reports.sections import median_bandwidth, median_time
from commbench.reports.sections.message_tables import streaming_tools

ROW_IN = 3.1
LEGEND_LINE_IN = 0.15
SPARSE_FROM_RATIO = 16
"""Sizes further apart than this are joined by a dotted line, without a band."""
LOG_FROM_RATIO = 20
"""Bandwidths have a log axis if the backends' peaks differ by more than this factor."""

MAX_PANELS = 4
LINE_IN = 0.3
ASIDE_PT = 47
"""The width of a column of numbers to the right of the bars."""
MODES = " Open markers = the two modes into which launches split."


@style.styled
def plot_sizes(run: Run) -> Figure | None:
    """Return a figure of latency and bandwidth, a row per layer; None without ping-pongs."""
    points = run.summaries
    points = points[points.layer.isin(LAYERS) & (points.payload_bytes > 0) & (points.median_s > 0)]
    if points.empty:
        return None
    # A coarse clock may have no time for small messages, and a log axis has no 0.
    ends = ["ci_low_s", "low_mode_s"]
    points = points.assign(**points[ends].where(points[ends] > 0))
    named = style.groups(run, "pair")
    labels = points.case_id.map(run.case_labels)
    rows = sorted(
        points.groupby([labels, "layer"], sort=False), key=lambda row: LAYERS.index(row[0][1])
    )
    modes = {case.id: stats.pingpong_mode(case) for case in run.suite.cases}
    # The legend of a row has two lines above the names, and a line below each of them.
    n_lines = max(
        2 + sum(style.label(name).count("\n") + 2.5 for name in row.backend.unique())
        for _, row in rows
    )
    figure, (part,) = style.new_figure(
        [max(ROW_IN, LEGEND_LINE_IN * n_lines) * len(rows)],
        _title(rows, modes) + f" ({style.launches(points)})",
        _meaning(run, points.assign(mode=points.case_id.map(modes)))
        + " Line = median of the launches' medians"
        + style.interval("band", points.confidence)
        + MODES * bool(points.low_mode_s.notna().any())
        + style.not_shown(run, named, set(points.case_id)),
    )
    axes = part.subplots(len(rows), 2, squeeze=False, sharex=True, sharey="col")
    looks = style.backend_styles(run)
    for (left, right), ((group, layer), row) in zip(axes, rows, strict=True):
        is_latency = modes[row.case_id.iloc[0]] in stats.LATENCY_MODES
        lines = [line for _, line in row.groupby("case_id", sort=False)]
        for index, line in enumerate(lines):
            # With a single size, draw the backends next to each other.
            aside = index - (len(lines) - 1) / 2 if len(row) == len(lines) else 0
            look = looks[line.backend.iloc[0]]
            _draw(left, right, line.sort_values("payload_bytes"), look, 1.15**aside)
        _legend(right, row, "latency" if is_latency else "time")
        if len(rows) > 1:
            left.set_title(f"layer {layer}" + (f", {group}" if len(named) > 1 else ""))
        left.set_ylabel("latency (log scale)" if is_latency else "time per message (log scale)")
    for ax in axes.flat:
        _scale_sizes(ax, points.payload_bytes)
    _scale_latency(axes[0, 0], points)
    scale = _scale_bandwidth(axes[0, 1], points)
    for right in axes[:, 1]:
        right.set_ylabel(f"bandwidth ({scale} scale)")
    return figure


def _title(rows: list[tuple[tuple[str, str], pd.DataFrame]], modes: dict[str, str]) -> str:
    several = len(rows) > 1
    which = "layer by layer" if several else f"layer {rows[0][0][1]}"
    others = sorted({modes[row.case_id.iloc[0]] for _, row in rows} - {"latency"})
    mode = f", mode {' and '.join(others)}" if others else ""
    between = "pairs of processes at once" if others == ["multi-pair"] else "two processes"
    return f"Ping-pong between {between}, {which}{mode}"


def _meaning(run: Run, points: pd.DataFrame) -> str:
    said, modes = [], {*points["mode"]}
    if modes & set(stats.LATENCY_MODES):
        said.append(
            "Latency = half the round trip. Bandwidth = message size ÷ latency, with one message "
            "under way at a time." + _not_halved(points)
        )
    if "loaded-latency" in modes:
        said.append("Under load: while large messages stream to the peer over a second connection.")
    if "multi-pair" in modes:
        said.append(
            "Of several pairs at once: time per message = the time in which all pairs streamed ÷ "
            "the messages of all. Bandwidth, of all pairs together = message size ÷ that time."
        )
    in_windows = points[~points["mode"].isin([*stats.LATENCY_MODES, "multi-pair"])]
    if len(in_windows):
        said.append(
            "In windows of messages: time per message = a window's time ÷ its messages, those of "
            "both directions if bidirectional. Bandwidth = message size ÷ that time."
            + streaming_tools(run, in_windows)
        )
    return " ".join(said)


def _not_halved(points: pd.DataFrame) -> str:
    """Return the meaning of times at layers where they aren't half round trips."""
    texts = {"memcpy": " memcpy: one copy.", "worker": " worker: a fetch, not halved."}
    return "".join(text for layer, text in texts.items() if (points["layer"] == layer).any())


def _draw(left: Axes, right: Axes, line: pd.DataFrame, look: style.Style, shift: float) -> None:
    size = line.payload_bytes.to_numpy()
    median, low, high = (line[name].to_numpy() for name in ("median_s", "ci_low_s", "ci_high_s"))
    sure = line.confidence.to_numpy() > 0
    low, high = np.where(sure, low, np.nan), np.where(sure, high, np.nan)
    # A line or band between distant sizes must not look like a measurement.
    sparse = len(size) < 2 or (size[1:] / size[:-1]).max() > SPARSE_FROM_RATIO
    modes = line[["low_mode_s", "high_mode_s"]].to_numpy()
    for ax, centre, bottom, top, split in (
        (left, median, low, high, modes),
        (right, size / median, size / high, size / low, size[:, np.newaxis] / modes),
    ):
        points: dict[str, Any] = {"color": look.colour, "marker": look.marker, "markersize": 4.5}
        ax.plot(
            size * shift, centre, ":" if sparse else "-", linewidth=1.4, markeredgecolor="white",
            markeredgewidth=0.5, markevery=np.isnan(split[:, 0]), label=line.backend.iloc[0],
            **points,
        )  # fmt: skip
        ax.plot(size * shift, split, fillstyle="none", linestyle="none", label="_modes", **points)
        if not sure.any():
            continue
        if sparse:
            ax.vlines(size * shift, bottom, top, color=look.colour, alpha=0.5, linewidth=3)
        else:
            ax.fill_between(size, bottom, top, color=look.colour, alpha=0.22, linewidth=0)


def _legend(ax: Axes, row: pd.DataFrame, what: str) -> None:
    # Show the most important numbers next to the names.
    smallest, largest = row.payload_bytes.min(), row.payload_bytes.max()
    rows = {(each.backend, each.payload_bytes): each for each in row.itertuples()}
    handles, backends = ax.get_legend_handles_labels()
    ax.legend(
        handles,
        [
            f"{style.label(backend)}\n"
            + " · ".join(
                str(form(rows[backend, size])) if (backend, size) in rows else "—"
                for form, size in ((median_time, smallest), (median_bandwidth, largest))
            )
            for backend in backends
        ],
        title=f"{what} at {format_message_size(int(smallest))} ·\n"
        f"bandwidth at {format_message_size(int(largest))}",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.03),
        alignment="left",
        labelspacing=0.7,
    )


def _scale_sizes(ax: Axes, sizes: pd.Series[int]) -> None:
    smallest, largest = int(sizes.min()), int(sizes.max())
    ticks = [4**n for n in range(32) if smallest <= 4**n <= largest]
    if sizes.nunique() <= 8:
        ticks = sorted(set(sizes))
    ax.set_xscale("log", base=2)
    ax.set_xlim(smallest / 1.6, largest * 1.6)
    style.fixed_ticks(ax, {size: format_message_size(size) for size in ticks})
    ax.tick_params(axis="x", rotation=55, labelbottom=True)
    for text in ax.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
    ax.set_xlabel("message size (log scale)")
    ax.grid(visible=True)


def _scale_latency(ax: Axes, points: pd.DataFrame) -> None:
    sure = points[points.confidence > 0]
    low = -style.largest(-points.median_s, -sure.ci_low_s, -points.low_mode_s)
    high = style.largest(points.median_s, sure.ci_high_s, points.high_mode_s)
    # A log axis needs two labelled decades to be readable.
    if 10 ** math.floor(math.log10(high)) / 10 ** math.ceil(math.log10(low)) < 10:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
    style.logarithmic(ax, 12)
    ax.set_ylim(low / 1.25, high * 1.25)
    ax.yaxis.set_major_formatter(EngFormatter(unit="s"))


def _scale_bandwidth(ax: Axes, points: pd.DataFrame) -> str:
    """Scale the axis and return the name of the scale, ``log`` or ``linear``."""
    peaks = points.groupby(["case_id", "layer"]).throughput_Bps.max()
    if wide := peaks.max() > LOG_FROM_RATIO * peaks.min():
        style.logarithmic(ax, 12)
    else:
        sure = points[points.confidence > 0]
        modes = points.payload_bytes / points.low_mode_s
        style.from_zero(ax, "y", style.largest(peaks, sure.payload_bytes / sure.ci_low_s, modes))
    ax.yaxis.set_major_formatter(EngFormatter(unit="B/s"))
    return "log" if wide else "linear"


@style.styled
def plot_layers(run: Run) -> Figure | None:
    """Return a figure of the time that each layer adds; None without two layers."""
    table = run.additions
    if table.empty:
        return None
    groups = style.groups(run, "pair")
    panels = [
        (str(name), int(size), rows)
        for name, task in table.groupby(table["case_id"].map(run.case_labels), sort=False)
        for size, rows in task.groupby("payload_bytes")
        if size in stats.shown_sizes(list(task["payload_bytes"]), MAX_PANELS)
    ]
    layers = [layer for layer in LAYERS if layer in set(table["layer"])]
    heights = [0.75 + LINE_IN * rows["case_id"].nunique() for _, _, rows in panels]
    figure, (part,) = style.new_figure(
        [sum(heights)],
        f"Where the time of a message goes, layer by layer ({style.launches(table)})",
        "Bar = time of one message at the highest layer, from zero; its parts = what each layer"
        " adds to those below it. Numbers = the whole time at each layer. A line ends at the time"
        " of a layer that takes longer than one above it. Medians of the launches' medians; two"
        " numbers, and a pale end of a bar = launches split into two modes."
        + _not_halved(table)
        + style.not_shown(run, groups, set(table["case_id"])),
        [
            *(Patch(facecolor=style.LAYERS[layer], label=layer) for layer in layers),
            Line2D([], [], color="0.4", marker="D", label="longer than a layer above"),
        ],
    )
    for ax, (name, size, rows) in zip(style.rows(part, heights), panels, strict=True):
        _draw_layers(ax, rows, layers)
        ax.set_title(format_message_size(size) + (f", {name}" if len(groups) > 1 else ""))
    return figure


def _draw_layers(ax: Axes, rows: pd.DataFrame, layers: list[str]) -> None:
    largest = float(rows[["median_s", "high_mode_s"]].max(axis=None))
    factor, unit = style.scale(largest, "s")
    style.write_columns(ax, ASIDE_PT, -0.72, layers, color="0.35")
    cases = list(rows.groupby("case_id", sort=False))
    for y, (_, case) in enumerate(cases):
        both = {row.layer: str(median_time(row)) for row in case.itertuples()}
        times = {layer: text.replace("or ", "or\n") for layer, text in both.items()}
        style.write_columns(ax, ASIDE_PT, y, [times.get(layer, "—") for layer in layers])
        # A layer need not be built on the one below it: each adds to the fastest so far.
        fastest = np.minimum.accumulate(case.median_s.to_numpy()[::-1])[::-1] * factor
        for row, left, right in zip(case.itertuples(), [0, *fastest[:-1]], fastest, strict=True):
            colour, name = style.LAYERS[row.layer], f"{row.layer} {row.backend}"
            is_highest = row.layer == case.layer.iloc[-1]
            if is_highest and left < right and not math.isnan(row.low_mode_s):
                # The highest layer ends at either mode.
                low, high = row.low_mode_s * factor, row.high_mode_s * factor
                right = max(left, low)
                ax.barh(y, high - right, left=right, height=0.6, color=colour, alpha=0.3)
            elif (time := row.median_s * factor) > right:
                ax.plot(
                    [right, time], [y, y], color=colour, marker="D", markevery=[1], markersize=5,
                    markeredgecolor="white", linewidth=2, zorder=3, gid=f"longer {name}",
                )  # fmt: skip
            ax.barh(y, right - left, left=left, height=0.6, color=colour, gid=name)
    style.name_rows(ax, [style.label(case.backend.iloc[0], 14) for _, case in cases])
    ax.set_xlabel(f"time of one message ({unit})")
    style.from_zero(ax, "x", largest * factor)

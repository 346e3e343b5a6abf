"""What each layer adds to the time of a message: one panel per size, one bar per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.patches import Patch

from commbench import stats
from commbench.model import LAYERS
from commbench.model.units import format_message_size, format_seconds
from commbench.reports.figures import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commbench.analysis.run import Run

MAX_PANELS = 4
LINE_IN = 0.3
COLOURS = {
    "memcpy": "#BBBBBB", "raw": "#4477AA", "coroutine": "#66CCEE", "comm": "#CCBB44",
    "worker": "#AA3377",
}  # fmt: skip
"""Of the layers: none of them is a backend's."""
FASTER = "#CC3311"
_COLUMN_PT = 47


@style.styled
def plot(run: Run) -> Figure | None:
    """Return the additions of all layers, or None where no case has two of them."""
    table = stats.additions(run, run.summaries)
    if table.empty:
        return None
    groups = style.groups(run, "pair")
    name_of = {case.id: name for name, cases in groups.items() for case in cases}
    panels = [
        (str(name), int(size), rows)
        for name, task in table.groupby(table["case_id"].map(name_of), sort=False)
        for size, rows in task.groupby("payload_bytes")
        if size in stats.shown_sizes(list(task["payload_bytes"]), MAX_PANELS)
    ]
    layers = [layer for layer in LAYERS if layer in set(table["layer"])]
    heights = [0.75 + LINE_IN * rows["case_id"].nunique() for _, _, rows in panels]
    figure, (part,) = style.new_figure(
        [sum(heights)],
        f"Where the time of a message goes, layer by layer ({style.launches(table.n_launches)})",
        "Bar = time of one message at the highest layer, from zero; its parts = what each layer"
        " adds to the one below it. Numbers = the whole time at each layer. Hatched: this layer is"
        " faster than the one below, whose time its end shows. Medians of the launches' medians."
        + (" memcpy: one copy. " if "memcpy" in layers else " ")
        + ("worker: a fetch, not halved." if "worker" in layers else "")
        + style.not_shown(run, groups, set(table["case_id"])),
        [Patch(facecolor=COLOURS[layer], label=layer) for layer in layers]
        + [Patch(facecolor="white", edgecolor=FASTER, hatch="////", label="faster than below")],
    )
    axes = part.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for ax, (name, size, rows) in zip(axes.flat, panels, strict=True):
        _panel(ax, rows, layers)
        ax.set_title(format_message_size(size) + (f", {name}" if len(groups) > 1 else ""))
    return figure


def _panel(ax: Axes, rows: pd.DataFrame, layers: list[str]) -> None:
    largest = float(rows["median_s"].max())
    factor, unit = style.scale(largest, "s")
    for place, layer in enumerate(layers, start=1):
        _aside(ax, place, -0.72, layer, color="0.35")
    cases = list(rows.groupby("case_id", sort=False))
    for y, (_, case) in enumerate(cases):
        _bar(ax, y, case, factor)
        times = dict(zip(case["layer"], case["median_s"], strict=True))
        for place, layer in enumerate(layers, start=1):
            _aside(ax, place, y, format_seconds(times[layer]) if layer in times else "—")
    ax.set_yticks(range(len(cases)), [style.label(case.backend.iloc[0], 14) for _, case in cases])
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"time of one message ({unit})")
    style.from_zero(ax, "x", largest * factor)
    ax.grid(visible=True, axis="x")


def _bar(ax: Axes, y: int, case: pd.DataFrame, factor: float) -> None:
    below = 0.0
    for row in case.itertuples():
        time = row.median_s * factor
        ax.barh(
            y, max(0.0, time - below), left=below, height=0.6, color=COLOURS[row.layer],
            gid=f"{row.layer} {row.backend}",
        )  # fmt: skip
        if time < below:
            ax.barh(
                y, below - time, left=time, height=0.3, facecolor="white", edgecolor=FASTER,
                hatch="////", linewidth=1, zorder=3, gid=f"faster {row.layer} {row.backend}",
            )  # fmt: skip
        below = time


def _aside(ax: Axes, place: int, y: float, words: str, **looks: Any) -> None:
    # Points, not shares of the axes: the layout then knows how much room the words need.
    ax.annotate(
        words, (1, y), xycoords=("axes fraction", "data"), xytext=(_COLUMN_PT * place, 0),
        textcoords="offset points", ha="right", va="center", size=8, annotation_clip=False, **looks,
    )  # fmt: skip

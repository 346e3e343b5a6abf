"""The style of all figures: sizes, fonts, colours, and the wording of labels."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeVar

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from commbench.analysis.run import Run
from commbench.model import Case
from commbench.reports.sections import natural, plural, printable
from commbench.stats import outer_regions

WIDE_IN, NARROW_IN = 9.0, 4.6
"""The width of figures, 900 px at the 100 dpi for which the font sizes are chosen; on a phone."""
_width_in = ContextVar("_width_in", default=WIDE_IN)

RC: dict[str, Any] = {
    "font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "grid.color": "0.88", "grid.linewidth": 0.6, "hatch.linewidth": 0.6,
    "legend.fontsize": 8, "legend.title_fontsize": 8, "legend.frameon": False,
    "figure.dpi": 100, "savefig.dpi": 200, "svg.hashsalt": "commbench", "text.parse_math": False,
}  # fmt: skip

ACTIVITIES = {
    "task": "#B5CFEA", "overlap": "#A0567A", "receive": "#EE8866", "idle": "#E4E4E4",
    "compute": "#7799DD", "other CPU": "#334F88", "no core": "#FFAABB", "blocked": "#7733AA",
    "serialize": "#AACC66", "deserialize": "#55605A", "messages": "#DDCC55", "poll": "#99582A",
    "disk": "#6E6E00",
}  # fmt: skip
"""The colours of activities. A task that waits for a core does not compute."""
LAYERS = {
    "memcpy": "#D9F0D3", "raw": "#A6DBA0", "coroutine": "#5AAE61", "comm": "#1B7837",
    "worker": "#00441B",
}  # fmt: skip
"""The colours of the layers of a message, darker for those closer to Dask's users."""
BAD = "#DD2222"
"""The colour of what is wrong."""


PUBLISHED: dict[str, Any] = {
    "color": "#AA0044", "marker": "D", "markerfacecolor": "white", "markersize": 6,
    "linewidth": 1.2,
}  # fmt: skip
"""The style of published values, which differs from that of measured ones."""


class Style(NamedTuple):
    """The colour and the marker of a backend in all figures; each identifies it alone."""

    colour: str = "black"
    marker: str = "o"


_KNOWN = {
    "tcp": Style("#0072B2", "o"), "ucx": Style("#D55E00", "s"), "ucx:shm": Style("#E69F00", "^"),
    "ucx:tcp": Style("#56B4E9", "D"), "ucx:nvlink": Style("#009E73", "v"),
    "ucx:ib": Style("#CC79A7", "P"), "mpi": Style("#222222", "X"),
    "tls": Style("#004466", "H"),
}  # fmt: skip
_SPARE = [  # for backends of other names
    Style("#332288", "<"), Style("#882255", ">"), Style("#999933", "p"), Style("#8C8C8C", "h"),
    Style("#77CCBB", "*"), Style("#5A3A1A", "d"), Style("#BB55BB", "8"),
]  # fmt: skip

Draw = TypeVar("Draw", bound=Callable[..., Any])


def styled(draw: Draw) -> Draw:
    """Make `draw` use this style and ignore the user's matplotlibrc."""
    return matplotlib.style.context(["default", RC])(draw)


@styled
def encoded(figure: Figure, form: str, **options: Any) -> bytes:
    """Return `figure` as SVG or PNG; equal data give equal bytes."""
    image = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else None
    with warnings.catch_warnings():
        # Of letters that the font lacks: a box says as much.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(image, format=form, metadata=metadata, **options)
    if form == "svg":
        # Matplotlib writes names into comments as they are, and XML has no control characters.
        return printable(image.getvalue().decode()).encode()
    return image.getvalue()


class StyledFigure(Figure):
    """A figure that notebooks show in this style, at the width of a page."""

    def _repr_png_(self) -> bytes:
        return encoded(self, "png", dpi="figure")


def width_in() -> float:
    """Return the width of the figures that are drawn now."""
    return _width_in.get()


def is_wide() -> bool:
    """Return whether figures have their ordinary width."""
    return width_in() == WIDE_IN


@contextmanager
def narrow() -> Iterator[None]:
    """Draw figures for a narrow screen."""
    token = _width_in.set(NARROW_IN)
    try:
        yield
    finally:
        _width_in.reset(token)


def new_figure(
    heights_in: Sequence[float], title: str, caption: str, legend: Sequence[Artist] = ()
) -> tuple[Figure, list[SubFigure]]:
    """Return a figure with a title, a legend and a caption, and a part of it for each height."""
    share = width_in() / WIDE_IN
    title, caption = textwrap.fill(title, int(95 * share)), textwrap.fill(caption, int(155 * share))
    heights = [0.24 / share, *heights_in] if legend else [*heights_in]
    around = 0.2 + 0.17 * (title.count("\n") + 1) + 0.13 * (caption.count("\n") + 1)
    figure = StyledFigure(figsize=(width_in(), sum(heights) + around), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", size=11, weight="bold")
    figure.supxlabel(caption, x=0.01, ha="left", size=7.5, color="0.35")
    parts = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    if legend:
        parts.pop(0).legend(handles=legend, loc="center left", ncols=legend_columns(len(legend)))
    return figure, parts


def legend_columns(n: int) -> int:
    """Return the columns of a legend whose `n` entries fill a line of a wide figure."""
    return max(1, int(n * width_in() / WIDE_IN))


def rows(part: SubFigure, heights: Sequence[float], *, sharex: bool = False) -> list[Axes]:
    """Return axes of these relative heights, one below the other."""
    grid = part.subplots(len(heights), squeeze=False, sharex=sharex, height_ratios=heights)
    return list(grid.flat)


def panels(part: SubFigure, n: int, columns: int, *, sharey: bool = False) -> list[Axes]:
    """Return `n` axes of the same size in rows of `columns`."""
    axes = list(part.subplots(math.ceil(n / columns), columns, squeeze=False, sharey=sharey).flat)
    for ax in axes[n:]:
        ax.set_axis_off()
    return axes[:n]


def backend_styles(run: Run) -> dict[str, Style]:
    """Return the look of each backend of `run`: fixed by name, and distinct within the run."""
    return styles({case.variant for case in run.suite.cases})


def styles(names: Collection[str]) -> dict[str, Style]:
    """Return a look for each of these names, as ``backend_styles`` does."""
    chosen: dict[str, Style] = {}
    for name in sorted(names):
        start = zlib.crc32(name.encode()) % len(_SPARE)
        colours, markers = zip(*(_SPARE[start:] + _SPARE[:start]), strict=True)
        # Of many names, some share a colour or a marker.
        looks = (
            Style(*look)
            for shift in range(len(_SPARE))
            for look in zip(colours, markers[shift:] + markers[:shift], strict=True)
        )
        free = (look for look in looks if look not in chosen.values())
        chosen[name] = _KNOWN.get(name) or next(free, _SPARE[start])
    return chosen


def groups(run: Run, kind: str = "") -> dict[str, list[Case]]:
    """Return the cases grouped by label; cases of a group differ in their backend only.

    `kind` is one of ``run.kinds``; without it, cases of all kinds are returned.
    """
    by_label: dict[str, list[Case]] = {}
    for case in run.suite.cases:
        if kind in ("", run.kinds[case.id]):
            by_label.setdefault(run.case_labels[case.id], []).append(case)
    return by_label


def groups_by_workers(run: Run) -> dict[str, list[Case]]:
    """Return `groups` with the same number of workers, which is in their names if it varies."""
    split: dict[str, list[Case]] = {}
    for name, cases in groups(run).items():
        varies = len({case.cluster.n_workers for case in cases}) > 1
        for case in cases:
            suffix = f", {case.cluster.n_workers} workers" * varies
            split.setdefault(f"{name}{suffix}", []).append(case)
    return split


def workers(run: Run, case_ids: Collection[str]) -> list[str]:
    """Return the names of all workers in the records of these cases, in natural order."""
    tasks = run.tasks[run.tasks.case_id.isin(list(case_ids))]
    transfers = run.transfers[run.transfers.case_id.isin(list(case_ids))]
    columns = (tasks.worker, transfers.src, transfers.dst)
    return sorted({name for column in columns for name in column.unique()}, key=natural)


def failed(run: Run, case_id: str) -> str:
    """Return for example ``"2 of 6 launches failed"``, or an empty string if none did."""
    ends = run.ends[run.ends.case_id == case_id]
    ended = {*ends.launch, *run.failures.launch[run.failures.case_id == case_id]}
    bad = len(ended - {*ends.launch[ends.ok.astype(bool)]})
    return f"{bad} of {plural(len(ended), 'launch')} failed" if bad else ""


def not_shown(run: Run, groups: dict[str, list[Case]], shown: Collection[str]) -> str:
    """Return a sentence on the cases that are not among the ids `shown`, with the reasons."""
    no_data = dict.fromkeys(outer_regions(run)["case_id"], "regions are within it")
    why = [
        f"{name} on {case.variant} ({failed(run, case.id) or no_data.get(case.id, 'no data')})"
        for name, cases in groups.items() for case in cases if case.id not in shown
    ]  # fmt: skip
    return f" Not shown: {', '.join(why)}." if why else ""


def launches(summaries: pd.DataFrame) -> str:
    """Return ``"6 launches each"``, or ``"4 to 6 launches each"`` if the cases differ."""
    words = _span(summaries["n_launches"])
    return f"{words or 'no'} launch{'es' * (words != '1')} each"


def interval(mark: str, confidence: pd.Series[float]) -> str:
    """Return the words of a caption on what `mark`, for example a line, shows of summaries."""
    words = _span(confidence[confidence > 0] * 100)
    if not words:
        return " (one launch allows no interval)."
    return f"; {mark} = {words} % confidence interval of that median."


def _span(numbers: pd.Series[Any]) -> str:
    whole = sorted(numbers.round().astype(int))
    return " to ".join(f"{number}" for number in sorted({*whole[:1], *whole[-1:]}))


def largest(*columns: pd.Series[float]) -> float:
    """Return the largest number in `columns`, any of which may be empty."""
    return float(np.nanmax([column.max() for column in columns]))


def scale(largest: float, unit: str) -> tuple[float, str]:
    """Return the factor to a suitable multiple of `unit` for `largest`, and its name."""
    # Prefer 0.4 s to 400 ms, but 40 ms to 0.04 s.
    steps = [(0.3, 1.0, ""), (0.3e-3, 1e-3, "m"), (0.0, 1e-6, "µ")]
    if unit != "s":
        steps = [(1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e3, 1e3, "k"), (0.0, 1.0, "")]
    size, prefix = next((size, prefix) for least, size, prefix in steps if largest >= least)
    return 1 / size, prefix + unit


def from_zero(ax: Axes, axis: Literal["x", "y"], largest: float) -> None:
    """Scale an axis linearly from 0 to a little above `largest`, with a grid of few ticks."""
    getattr(ax, f"set_{axis}lim")(0, largest * 1.05 if largest > 0 else 1)
    getattr(ax, f"{axis}axis").set_major_locator(
        MaxNLocator(6 if is_wide() else 3, steps=[1, 2, 2.5, 5, 10])
    )
    ax.grid(visible=True, axis=axis)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Give the y axis a row for each of `names`, the first one at the top, without ticks."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)


def logarithmic(ax: Axes, n_ticks: int) -> None:
    """Make the y axis logarithmic, with up to `n_ticks` labels, all of them at decades."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(numticks=n_ticks))
    ax.yaxis.set_minor_formatter(NullFormatter())


def fixed_ticks(ax: Axes, names: Mapping[int, str]) -> None:
    """Give the x axis ticks at the keys of `names` only."""
    ax.set_xticks([*names], [*names.values()])
    ax.set_xticks([], minor=True)


def write_columns(ax: Axes, width_pt: float, y: float, words: Sequence[str], **looks: Any) -> None:
    """Write `words` to the right of an axes, in columns of `width_pt` points."""
    # In points rather than fractions of the axes, the layout reserves room for the words.
    for column, text in enumerate(words, start=1):
        ax.annotate(
            text, (1, y), xycoords=("axes fraction", "data"), xytext=(width_pt * column, 0),
            textcoords="offset points", ha="right", va="center", size=8, annotation_clip=False,
            **looks,
        )  # fmt: skip


def corners(left: Any, right: Any, top: Any, bottom: Any) -> np.ndarray[Any, Any]:
    """Return the four corners of each rectangle with these edges: an array of n × 4 × 2."""
    return np.moveaxis(np.array([[left, top], [right, top], [right, bottom], [left, bottom]]), 2, 0)


def contrast(colour: Any) -> str:
    """Return black or white, the one with more contrast to `colour`."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.179 else "white"


def entitle(ax: Axes, name: str, note: str, width: float) -> None:
    """Write `name` and a smaller `note` above an axes of this width."""
    ax.set_title(label(name, int(width / 0.085)), pad=5 + 10 * len(note.splitlines()))
    ax.annotate(note, (0, 1), (0, 4), size=8, xycoords="axes fraction", textcoords="offset points")


def label(name: str, width: int = 24) -> str:
    """Return `name` in lines of at most `width` characters, broken after spaces, + or _."""
    lines = textwrap.fill(re.sub("([+_])", r"\1 ", name), width)
    return re.sub("([+_]) ", r"\1", lines)

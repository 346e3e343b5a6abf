"""Bandwidth between each pair of workers: heat maps with the quantiles written in the cells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from commbench.model.units import format_bytes
from commbench.reports.figures import style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from commbench.analysis.run import Run
    from commbench.model import Case

QUANTILES_UP_TO = 8
MEDIAN_UP_TO = 16
"""Workers up to which all three quantiles, and the median alone, have room in a cell."""
CELLS_UP_TO = 256
"""Cells of a row, of which 2.6 inches can show no more: beyond that several pairs share one."""

MAP = "viridis"
MISSING: dict[str, Any] = {"facecolor": "0.85", "edgecolor": "0.5", "hatch": "////"}
SLOW: dict[str, Any] = {"fill": False, "edgecolor": "#DD2222", "linewidth": 2.0}


@style.styled
def plot(run: Run) -> Figure | None:
    """Return a heat map per backend, a block of them per workload, or None without transfers.

    What all-to-all measured one pair at a time and all at once has heat maps of its own.
    """
    if run.transfers.empty:
        return None
    pairs = run.pairs.dropna(subset="q50_Bps")
    if pairs.empty:
        return None
    slow = run.slow_pairs
    summaries, groups = run.summaries, style.groups(run)
    ids = {name: {case.id for case in cases} for name, cases in groups.items()}
    blocks = {name: groups[name] for name in groups if ids[name] & set(pairs.case_id.unique())}
    workers = {name: style.workers(run, ids[name]) for name in blocks}
    panels = {
        name: [
            (case, str(channel))
            for case in cases
            for channel in sorted(pairs.channel[pairs.case_id.isin(ids[name])].unique())
        ]
        for name, cases in blocks.items()
    }
    shapes = {name: _shape(workers[name], len(panels[name])) for name in blocks}
    heights = [height for *_, height in shapes.values()]
    shown = {case_id for name in blocks for case_id in ids[name]}
    notes = _notes(run, run.suite.cases)
    least = format_bytes(run.manifest.min_transfer_bytes).replace(".00", "")
    fewest, most = (bound(map(len, workers.values())) for bound in (min, max))
    figure, parts = style.new_figure(
        heights,
        f"Bandwidth between pairs of workers: median over single transfers ≥ {least}",
        "Bandwidth = bytes in memory ÷ (stop minus start) in the receiving worker's log:"
        " serialization and waiting at both ends are in it; P2P shuffles are not logged."
        " All measured iterations of all launches. Logged = bytes in the logs ÷ bytes on the wire."
        + (" In a cell: 25 % quantile, median (bold), 75 %." * (fewest <= QUANTILES_UP_TO))
        + (
            f" Each cell shows the slowest of up to {_width(most)} × {_width(most)} pairs."
            * (most > CELLS_UP_TO)
        )
        + (
            " Alone: one pair at a time; together: all at once (all-to-all's largest blocks)."
            * ("alone" in pairs.channel.unique())
        )
        + style.not_shown(run, _of_clusters(run, groups), shown),
    )
    for part, name in zip(parts, blocks, strict=True):
        block = pairs[pairs.case_id.isin(ids[name])]
        marked = slow[slow.case_id.isin(ids[name])]
        counts = summaries.n_launches[summaries.case_id.isin(block.case_id.unique())]
        title = f"{name} ({style.launches(counts)})"
        _block(
            part, title, notes, panels[name], block, marked, workers[name], shapes[name][:2], least
        )
    return figure


def _of_clusters(run: Run, groups: dict[str, list[Case]]) -> dict[str, list[Case]]:
    return {name: cases for name, cases in groups.items() if run.kinds[cases[0].id] != "pair"}


def _shape(workers: list[str], n_panels: int) -> tuple[int, int, float]:
    """Return the rows and columns of panels, and the height that they want in inches."""
    n, words = len(workers), _labels(workers)
    names = 0.07 * max(len(line) for word in words for line in word.split("\n"))
    room, margin = style.WIDTH_IN - 1.0, 0.65 + names
    width, height = (0.38, max(0.36, 1.2 / n)) if n <= QUANTILES_UP_TO else (0.25, 0.2)
    if n > MEDIAN_UP_TO:
        width = height = 2.6 / n
    used = min(n_panels, max(1, int(room / (n * width + margin))))
    width = min(1.5 * width, (room / used - margin) / n)
    # Columns that stay empty keep a small matrix from being stretched over the whole width.
    columns = max(used, int(room / (n * width + margin)))
    rows = math.ceil(n_panels / used)
    return rows, columns, rows * (n * height + 1.0 + names * _upright(words)) + 0.25


def _labels(workers: list[str]) -> list[str]:
    return [style.label(name, 18 if len(workers) <= QUANTILES_UP_TO else 99) for name in workers]


def _upright(words: list[str]) -> bool:
    return max(map(len, words)) > (4 if len(words) <= QUANTILES_UP_TO else 2)


def _block(
    part: SubFigure, title: str, notes: dict[str, str], panels: list[tuple[Case, str]],
    pairs: pd.DataFrame, slow: pd.DataFrame, workers: list[str], shape: tuple[int, int], least: str,
) -> None:  # fmt: skip
    cells = {
        (case.id, channel): _cells(
            pairs[(pairs.case_id == case.id) & (pairs.channel == channel)], workers
        )
        for case, channel in panels
    }
    top = max(float(found.max()) for found in cells.values() if found.count())
    factor, unit = style.scale(top, "B/s")
    norm = Normalize(0, top * factor)
    part.suptitle(title, x=0.01, ha="left", size=10, weight="bold")
    axes = part.subplots(*shape, squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    used, width_in = list(axes.flat[: len(panels)]), (style.WIDTH_IN - 1.0) / shape[1] - 0.4
    incomplete = False
    for ax, (case, channel) in zip(used, panels, strict=True):
        name = case.backend if channel == "gather" else f"{case.backend}, {channel}"
        style.entitle(ax, name, notes[case.id], width_in)
        here, marked = (
            table[(table.case_id == case.id) & (table.channel == channel)]
            for table in (pairs, slow)
        )
        incomplete |= _panel(ax, here, cells[case.id, channel], workers, factor, norm)
        _mark(ax, marked, workers)
    height_in = part.bbox.height / part.figure.dpi
    part.colorbar(
        ScalarMappable(norm, MAP), ax=used, label=f"median bandwidth ({unit})", pad=0.02,
        aspect=height_in / 0.15,
    )  # fmt: skip
    legend = [Patch(**SLOW, label="slow pair (an outlier)")] if len(slow) else []
    if incomplete:
        legend.append(Patch(**MISSING, label=f"no transfer ≥ {least}"))
    if legend:
        part.legend(handles=legend, loc="outside upper right", ncols=2)


def _mark(ax: Axes, slow: pd.DataFrame, workers: list[str]) -> None:
    """Frame the cells of the slow pairs."""
    n, wide = len(workers), _width(len(workers))
    rows, columns = _places(slow, workers)
    cells = np.unique(np.stack([rows // wide, columns // wide]), axis=1)
    _outline(ax, n, *cells, **SLOW, joinstyle="miter", zorder=3)


def _width(n_workers: int) -> int:
    """Return how many workers share a row or column of cells."""
    return math.ceil(n_workers / CELLS_UP_TO)


def _edges(n_workers: int) -> np.ndarray:
    """Return where each row or column of cells begins, and where the last one ends."""
    return np.append(np.arange(0, n_workers, _width(n_workers)), n_workers)


def _outline(ax: Axes, n: int, rows: np.ndarray, columns: np.ndarray, **style: Any) -> None:
    """Draw the cells in these rows and columns of the matrix of `n` workers as one patch.

    Tens of thousands of patches take a minute to lay out, and minutes to hatch.
    """
    if len(rows):
        edges = _edges(n)
        x, y, right, bottom = edges[columns], edges[rows], edges[columns + 1], edges[rows + 1]
        corners = np.array([[x, y], [right, y], [right, bottom], [x, bottom]])
        path = Path.make_compound_path_from_polys(np.moveaxis(corners, 2, 0))
        # add_patch would look at each corner in Python to find limits that are known.
        ax.add_artist(PathPatch(path, rasterized=n > MEDIAN_UP_TO, **style))


def _notes(run: Run, cases: Iterable[Case]) -> dict[str, str]:
    """Return per case which launches failed, and which share of the traffic the logs saw."""
    coverage = run.coverage.set_index("case_id").coverage
    notes = {}
    for case in cases:
        share = coverage.get(case.id, math.nan)
        seen = "" if math.isnan(share) else f"{share * 100:.0f} % logged"
        notes[case.id] = "\n".join(filter(None, [style.failed(run, case.id), seen]))
    return notes


def _places(pairs: pd.DataFrame, workers: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each pair's sender and receiver among the workers."""
    import pandas as pd

    names = pd.Index(workers)
    return names.get_indexer(pairs.src), names.get_indexer(pairs.dst)


def _cells(pairs: pd.DataFrame, workers: list[str]) -> np.ma.MaskedArray:
    """Return the slowest median in each cell of a backend's matrix, in bytes per second."""
    rows, columns = _places(pairs, workers)
    wide = _width(len(workers))
    n_cells = math.ceil(len(workers) / wide)
    slowest = np.full((n_cells, n_cells), np.inf)
    np.minimum.at(slowest, (rows // wide, columns // wide), pairs.q50_Bps.to_numpy())
    return np.ma.masked_invalid(slowest)


def _panel(
    ax: Axes, pairs: pd.DataFrame, cells: np.ma.MaskedArray, workers: list[str],
    factor: float, norm: Normalize,
) -> bool:  # fmt: skip
    """Draw one backend's matrix and return whether pairs are missing from it."""
    n, wide, edges = len(workers), _width(len(workers)), _edges(len(workers))
    ax.pcolormesh(edges, edges, cells * factor, cmap=MAP, norm=norm, rasterized=n > MEDIAN_UP_TO)
    absent = np.ma.getmaskarray(cells)
    if wide == 1:
        absent = absent & ~np.eye(n, dtype=bool)
    top, left = np.nonzero(absent)
    _outline(ax, n, top, left, **MISSING, linewidth=0)
    if n <= MEDIAN_UP_TO:
        _write(ax, pairs, *_places(pairs, workers), factor, norm, all_three=n <= QUANTILES_UP_TO)
    step, words = math.ceil(n / 16), _labels(workers)
    ticks = np.arange(0, n, step) + 0.5
    ax.set_xticks(ticks, words[::step], rotation=90 if _upright(words) else 0)
    ax.set_yticks(ticks, words[::step])
    ax.tick_params(length=0)
    ax.set(xlim=(0, n), ylim=(n, 0), xlabel="to worker (dst)", ylabel="from worker (src)")
    ax.spines[:].set(visible=True, color="0.8", linewidth=0.6)
    return len(top) > 0


def _write(
    ax: Axes, pairs: pd.DataFrame, rows: np.ndarray, columns: np.ndarray,
    factor: float, norm: Normalize, *, all_three: bool,
) -> None:  # fmt: skip
    colours = ScalarMappable(norm, MAP)
    lines = (
        ("q25_Bps", -0.3, 6, "normal"),
        ("q50_Bps", 0, 7, "bold"),
        ("q75_Bps", 0.3, 6, "normal"),
    )
    for column, offset, size, weight in lines if all_three else lines[1:2]:
        values = pairs[column].to_numpy() * factor
        for i, j, value, median in zip(rows, columns, values, pairs.q50_Bps * factor, strict=True):
            ax.text(
                j + 0.5, i + 0.5 + offset, number(value), size=size, weight=weight,
                ha="center", va="center", color=contrast(colours.to_rgba(median)[:3]),
            )  # fmt: skip


def number(value: float) -> str:
    """Return `value` with about three digits, as short as it goes.

    Examples
    --------
    >>> number(812.3), number(46.43), number(3.417), number(0.0042)
    ('812', '46.4', '3.42', '0.0042')
    """
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}" if value >= 0.1 else f"{value:.2g}"


def contrast(colour: Any) -> str:
    """Return black or white, whichever reads better on `colour`."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.179 else "white"

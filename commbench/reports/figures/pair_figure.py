"""Heat maps of the bandwidth between each pair of workers, with quantiles in the cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from commbench.analysis.run import Run
from commbench.model import AGAIN, FETCHES, Case
from commbench.model.units import format_bytes
from commbench.reports.figures import style
from commbench.reports.sections import number

QUANTILES_UP_TO = 8
MEDIAN_UP_TO = 16
"""The maximum workers for which a cell has room for three quantiles, and for the median."""
CELLS_UP_TO = 256
"""The maximum cells in a row of 2.6 inches: with more workers, several pairs share a cell."""

MAP = "viridis"
MISSING: dict[str, Any] = {"facecolor": "0.85", "edgecolor": "0.5", "hatch": "////"}
SLOW: dict[str, Any] = {"fill": False, "edgecolor": style.BAD, "linewidth": 2.0}
_WHEN = FETCHES | {
    "rounds": "in rounds of pairs that share no host", AGAIN: "alone, as they were slow in rounds",
}  # fmt: skip
"""When pairs fetched, by channel."""
LEAST_RATIO = 2.0
"""The smallest ratio to the median that the scale ends with, so that noise has weak colours."""


def ratio_scale(ratios: Iterable[np.ndarray]) -> LogNorm:
    """Return the scale of colours for all these ratios to a median; 1 is in its middle."""
    known = [values[np.isfinite(values) & (values > 0)] for values in ratios]
    logs = [abs(np.log(values)).max() for values in known if values.size]
    limit = max(LEAST_RATIO, float(np.exp(max(logs, default=0.0))))
    return LogNorm(1 / limit, limit)


@dataclass(frozen=True)
class Grid:
    """The workers in their order; up to `wide` of them share a row and a column of cells."""

    workers: Sequence[str]
    wide: int

    @cached_property
    def edges(self) -> np.ndarray:
        """The edges of the rows or columns of cells."""
        n = len(self.workers)
        return np.append(np.arange(0, n, self.wide), n)

    @property
    def n_cells(self) -> int:
        """The number of cells in a row."""
        return len(self.edges) - 1

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The first and the last worker in each row of cells."""
        ends = ((self.workers[i], self.workers[j - 1]) for i, j in itertools.pairwise(self.edges))
        return tuple(first if first == last else f"{first} … {last}" for first, last in ends)

    def slowest(self, pairs: pd.DataFrame) -> np.ma.MaskedArray:
        """Return the slowest median in each cell, in bytes per second."""
        slowest = np.full((self.n_cells, self.n_cells), np.inf)
        np.minimum.at(slowest, self.cells(pairs), pairs.q50_Bps.to_numpy())
        return np.ma.masked_invalid(slowest)

    def n_pairs(self, row: int, column: int) -> int:
        """Return the number of pairs in a cell."""
        n_src, n_dst = np.diff(self.edges)[[row, column]].tolist()
        return int(n_src * n_dst - n_src * (row == column))

    def cells(self, pairs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return the row and the column of the cell of each of `pairs`."""
        index = pd.Index(self.workers)
        return index.get_indexer(pairs.src) // self.wide, index.get_indexer(pairs.dst) // self.wide


@dataclass(frozen=True)
class _Block:
    """The matrices of one workload: one for each case and channel."""

    title: str
    panels: list[tuple[Case, str]]
    pairs: pd.DataFrame
    slow: pd.DataFrame
    grid: Grid

    @property
    def labels(self) -> list[str]:
        """The names at the axes."""
        width = 18 if len(self.grid.workers) <= QUANTILES_UP_TO else 99
        return [style.label(name, width) for name in self.grid.workers]

    @property
    def upright(self) -> bool:
        """Whether names are written vertically below the matrices."""
        labels = self.labels
        return max(map(len, labels)) > (4 if len(labels) <= QUANTILES_UP_TO else 2)

    def shape(self) -> tuple[int, float]:
        """Return the columns of panels, and the height of all in inches."""
        n, n_panels = len(self.grid.workers), len(self.panels)
        names = 0.07 * max(len(line) for label in self.labels for line in label.split("\n"))
        room, margin = style.width_in() - 1.0, 0.65 + names
        width, height = (0.38, max(0.36, 1.2 / n)) if n <= QUANTILES_UP_TO else (0.25, 0.2)
        if n > MEDIAN_UP_TO:
            width = height = 2.6 / n
        used = min(n_panels, max(1, int(room / (n * width + margin))))
        width = min(1.5 * width, (room / used - margin) / n)
        # Empty columns keep a small matrix from being stretched to the full width.
        columns = max(used, int(room / (n * width + margin)))
        rows = math.ceil(n_panels / used)
        return columns, rows * (n * height + 1.0 + names * self.upright) + 0.25


@style.styled
def plot(run: Run) -> Figure | None:
    """Return a figure with a block of heat maps per workload; None without transfers.

    A block has a heat map per backend and channel.
    """
    pairs = run.pairs.dropna(subset="q50_Bps")
    if pairs.empty:
        return None
    groups = style.groups_by_workers(run)
    blocks = list(filter(None, (_block(run, name, groups[name], pairs) for name in groups)))
    channels = {*pairs.channel.unique()}
    least = _least(run, channels)
    when = [f"{name}: {words}" for name, words in _WHEN.items() if name in channels]
    grids = [block.grid for block in blocks]
    widest = max(grid.wide for grid in grids)
    expected = {name: cases for name, cases in groups.items() if run.kinds[cases[0].id] != "pair"}
    figure, parts = style.new_figure(
        [block.shape()[1] for block in blocks],
        f"Bandwidth between pairs of workers: median over single transfers ≥ {least}",
        "Bandwidth = bytes in memory ÷ (stop minus start) in the receiving worker's log:"
        " serialization and waiting at both ends are in it."
        + " p2p: batches of P2P shuffles in the sender's log, without waiting in its queue and"
        " without the receiver's handling."
        * ("p2p" in channels)
        + " All measured iterations of all launches. Colour = multiple of the panel's median pair,"
        " of suspected pairs alone of the others'."
        " Logged = bytes in the logs ÷ bytes on the wire."
        + " In a cell: 25 % quantile, median (bold), 75 %."
        * (min(len(grid.workers) for grid in grids) <= QUANTILES_UP_TO)
        + f" Each cell shows the slowest of up to {widest} × {widest} pairs." * (widest > 1)
        + f" Largest blocks: {'; '.join(when)}." * bool(when)
        + style.not_shown(run, expected, {case.id for block in blocks for case, _ in block.panels}),
    )
    for part, block in zip(parts, blocks, strict=True):
        _draw_block(part, block, run, least)
    return figure


def _least(run: Run, channels: set[str]) -> str:
    """Return the least size of transfers, and that of P2P batches if it differs."""
    sizes = {
        name: format_bytes(run.manifest.least_bytes(name)).replace(".00", "")
        for name in sorted(channels)
    }
    p2p = sizes.pop("p2p", "")
    other = next(iter(sizes.values()), p2p)
    return other + f" (p2p: ≥ {p2p})" * (p2p not in ("", other))


def _block(run: Run, name: str, cases: list[Case], pairs: pd.DataFrame) -> _Block | None:
    ids = [case.id for case in cases]
    pairs, slow = pairs[pairs.case_id.isin(ids)], run.slow_pairs
    if pairs.empty:
        return None
    summaries = run.summaries[run.summaries.case_id.isin(pairs.case_id.unique())]
    workers = style.workers(run, ids)
    return _Block(
        f"{name} ({style.launches(summaries)})",
        [(case, str(channel)) for case in cases for channel in sorted(pairs.channel.unique())],
        pairs,
        slow[slow.case_id.isin(ids)],
        Grid(workers, math.ceil(len(workers) / CELLS_UP_TO)),
    )


def typical_Bps(pairs: pd.DataFrame, channel: str) -> float:  # noqa: N802 - the unit
    """Return the median bandwidth of the pairs of a case's channel, with which each is compared.

    Suspected pairs that fetched again are compared with others alone, or in rounds.
    """
    alone, _, rounds = FETCHES
    channels = [alone, rounds] * (channel == AGAIN)
    known = (pairs["q50_Bps"][pairs["channel"] == each] for each in (*channels, channel))
    return next((float(each.median()) for each in known if len(each)), math.nan)


def _draw_block(part: SubFigure, block: _Block, run: Run, least: str) -> None:
    n_columns, _ = block.shape()
    shown = [
        (case, channel, *(
            table[(table.case_id == case.id) & (table.channel == channel)]
            for table in (block.pairs, block.slow)
        ))
        for case, channel in block.panels
    ]  # fmt: skip
    medians = [
        typical_Bps(block.pairs[block.pairs.case_id == case.id], channel)
        for case, channel, _, _ in shown
    ]
    matrices = [
        block.grid.slowest(pairs) / median
        for (_, _, pairs, _), median in zip(shown, medians, strict=True)
    ]
    factor, unit = style.scale(style.largest(block.pairs.q50_Bps), "B/s")
    norm = ratio_scale(matrix.compressed() for matrix in matrices)
    part.suptitle(block.title, x=0.01, ha="left", size=10, weight="bold")
    used = style.panels(part, len(shown), n_columns)
    width_in = (style.width_in() - 1.0) / n_columns - 0.4
    incomplete = False
    for ax, (case, channel, pairs, slow), matrix, median in zip(
        used, shown, matrices, medians, strict=True
    ):
        name = case.variant if channel == "gather" else f"{case.variant}, {channel}"
        pair = "median of the others" if channel == AGAIN else "median pair"
        typical = "" if math.isnan(median) else f"{pair} {number(median * factor)} {unit}"
        style.entitle(ax, name, _note(run, case, typical), width_in)
        incomplete |= _draw_matrix(ax, pairs, matrix, block, factor, median, norm)
        slow_cells = np.unique(np.stack(block.grid.cells(slow)), axis=1)
        _outline(ax, block.grid, *slow_cells, **SLOW, joinstyle="miter", zorder=3)
    height_in = part.bbox.height / part.figure.dpi
    bar = part.colorbar(
        ScalarMappable(norm, MAP), ax=used, label="× median (log scale)",
        pad=0.02, aspect=height_in / 0.15,
    )  # fmt: skip
    low, high = bar.ax.get_ylim()
    bases = (1, 2, 5) if high > 4 else (1, 1.5, 2, 3, 5, 7)
    ticks = [base * 10.0**power for power in range(-3, 4) for base in bases]
    ticks = [tick for tick in ticks if low <= tick <= high]
    bar.set_ticks(ticks, labels=[f"{tick:g}×" for tick in ticks])
    bar.set_ticks([], minor=True)
    legend = [Patch(**SLOW, label="slow pair")] if len(block.slow) else []
    if incomplete:
        legend.append(Patch(**MISSING, label=f"no transfer ≥ {least}"))
    if legend:
        part.legend(handles=legend, loc="outside upper right", ncols=2)


def _note(run: Run, case: Case, typical: str) -> str:
    """Describe the failed launches of a case, and the share of the traffic in the logs."""
    share = run.coverage.set_index("case_id").coverage.get(case.id, math.nan)
    seen = "" if math.isnan(share) else f"{share * 100:.0f} % logged"
    return "\n".join(filter(None, [style.failed(run, case.id), typical, seen]))


def _draw_matrix(
    ax: Axes, pairs: pd.DataFrame, matrix: np.ma.MaskedArray, block: _Block, factor: float,
    median: float, norm: LogNorm,
) -> bool:  # fmt: skip
    """Draw one backend's matrix and return whether pairs are missing from it."""
    grid, n = block.grid, len(block.grid.workers)
    ax.pcolormesh(grid.edges, grid.edges, matrix, cmap=MAP, norm=norm, rasterized=n > MEDIAN_UP_TO)
    absent = np.ma.getmaskarray(matrix)
    if grid.wide == 1:
        absent = absent & ~np.eye(n, dtype=bool)
    top, left = np.nonzero(absent)
    _outline(ax, grid, top, left, **MISSING, linewidth=0)
    if n <= MEDIAN_UP_TO:
        _write(ax, pairs, grid, factor, median, norm)
    step, labels = math.ceil(n / 16), block.labels
    ticks = np.arange(0, n, step) + 0.5
    ax.set_xticks(ticks, labels[::step], rotation=90 if block.upright else 0)
    ax.set_yticks(ticks, labels[::step])
    ax.tick_params(length=0)
    ax.set(xlim=(0, n), ylim=(n, 0), xlabel="to worker (dst)", ylabel="from worker (src)")
    ax.spines[:].set(visible=True, color="0.8", linewidth=0.6)
    return len(top) > 0


def _outline(ax: Axes, grid: Grid, rows: np.ndarray, columns: np.ndarray, **looks: Any) -> None:
    """Outline the cells in these rows and columns of the matrix as one patch.

    Tens of thousands of single patches would take minutes.
    """
    if len(rows):
        edges = grid.edges
        x, y, right, bottom = edges[columns], edges[rows], edges[columns + 1], edges[rows + 1]
        path = Path.make_compound_path_from_polys(style.corners(x, right, y, bottom))
        # add_patch would iterate over all corners in Python to update the limits of the axes.
        ax.add_artist(PathPatch(path, rasterized=len(grid.workers) > MEDIAN_UP_TO, **looks))


def _write(
    ax: Axes, pairs: pd.DataFrame, grid: Grid, factor: float, median: float, norm: LogNorm
) -> None:
    colours = ScalarMappable(norm, MAP)
    lines = (
        ("q25_Bps", -0.3, 6, "normal"),
        ("q50_Bps", 0, 7, "bold"),
        ("q75_Bps", 0.3, 6, "normal"),
    )
    for column, offset, size, weight in (
        lines if len(grid.workers) <= QUANTILES_UP_TO else lines[1:2]
    ):
        values = pairs[column].to_numpy() * factor
        cells = zip(*grid.cells(pairs), values, pairs.q50_Bps / median, strict=True)
        for i, j, value, ratio in cells:
            # Few transfers have no quartiles.
            if math.isnan(value):
                continue
            ax.text(
                j + 0.5, i + 0.5 + offset, number(value), size=size, weight=weight,
                ha="center", va="center", color=style.contrast(colours.to_rgba(ratio)[:3]),
            )  # fmt: skip

"""Matrices of the bandwidth between all pairs of workers, one per backend.

Up to 64 workers have one row and one column each. With more workers or very many matrices,
consecutive workers share them: a cell shows the slowest of its pairs and the number of all.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm, to_hex

from commbench.analysis.run import Run
from commbench.machine.topology.workers import UNKNOWN
from commbench.model import AGAIN, Case
from commbench.model.units import format_bytes, format_seconds
from commbench.reports.figures import style
from commbench.reports.figures.pair_figure import MAP, Grid, ratio_scale, typical_Bps
from commbench.reports.sections import CHANNELS, plural
from commbench.reports.sections import number as format_number

_MAX_SIDE = 64
_MAX_CELLS = 4 * _MAX_SIDE**2
"""The maximum cells of all matrices together: each takes some 200 bytes, and time to load."""
_TEXT_UP_TO = 16
"""The maximum rows for which cells have room for their median."""


@dataclass(frozen=True)
class Cell:
    """A pair of workers, or a block of pairs: ``kind`` is pair, slow, untimed, none or self."""

    kind: str
    description: str
    text: str = ""
    fill: str = ""
    ink: str = ""


@dataclass(frozen=True)
class Matrix:
    """The cells of one backend: a named row per sender. Colours are multiples of `median`."""

    backend: str
    median: str
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class Block:
    """The matrices of the backends of one task; `ends` are those of the scale of colours."""

    title: str
    names: tuple[str, ...]
    matrices: tuple[Matrix, ...]
    silent: tuple[str, ...]
    ends: tuple[str, ...]
    scale: tuple[str, ...]
    note: str
    size: str
    typical: str


def blocks(run: Run) -> list[Block]:
    """Return the matrices of every task and channel with logged transfers."""
    pairs = run.pairs
    n_matrices = max(1, pairs.groupby(["case_id", "channel"], observed=True).ngroups)
    side = max(8, min(_MAX_SIDE, math.isqrt(_MAX_CELLS // n_matrices)))
    groups = style.groups_by_workers(run)
    names = {case.id: name for name, cases in groups.items() for case in cases}
    tasks = pairs["case_id"].map(names)
    return [
        _block(run, str(task), groups[str(task)], str(channel), group, side)
        for (task, channel), group in pairs.groupby([tasks, "channel"], sort=False, observed=True)
    ]


def _block(
    run: Run, task: str, cases: list[Case], channel: str, pairs: pd.DataFrame, side: int
) -> Block:
    workers = style.workers(run, [case.id for case in cases])
    grid = Grid(workers, math.ceil(len(workers) / side))
    slowest = {
        str(case_id): _slowest(
            group, grid, typical_Bps(run.pairs[run.pairs["case_id"] == case_id], channel)
        )
        for case_id, group in pairs.groupby("case_id", observed=True)
    }
    norm = ratio_scale((t["q50_Bps"] / t["typical_Bps"]).to_numpy() for t in slowest.values())
    slow = run.slow_pairs[run.slow_pairs["channel"] == channel]
    least = format_bytes(run.manifest.least_bytes(channel))
    return Block(
        title=f"{task}{CHANNELS.get(channel, (f', {channel}',))[0]}",
        names=grid.names,
        matrices=tuple(
            _matrix(
                run, case, slowest[case.id], slow[slow["case_id"] == case.id], grid, norm, least
            )
            for case in cases
            if case.id in slowest
        ),
        silent=tuple(case.variant for case in cases if case.id not in slowest),
        ends=tuple(str(format_number(float(end or 1.0))) for end in (norm.vmin, norm.vmax)),
        scale=tuple(_colours()[level][0] for level in range(0, 256, 51)),
        note=_note(run, grid, max(case.cluster.n_workers for case in cases), channel, least),
        typical="median of the others" if channel == AGAIN else "median pair",
        size="roomy" if grid.n_cells <= _TEXT_UP_TO else "dense",
    )


def _numbers(pairs: pd.DataFrame, grid: Grid) -> np.ndarray[Any, Any]:
    """Return the number of the cell of each of `pairs`."""
    rows, columns = grid.cells(pairs)
    return np.asarray(rows * grid.n_cells + columns)


def _note(run: Run, grid: Grid, n_workers: int, channel: str, least: str) -> str:
    way = "src sent to dst" if channel == "p2p" else "dst fetched from src"
    note = f"Median over single transfers ≥ {least}; src → dst: {way}. "
    if grid.wide > 1:
        note += (
            f"{len(grid.workers)} workers: up to {grid.wide} × {grid.wide} pairs share a cell, "
            "which has the colour of the slowest of them, names it and counts the others. Every "
            f"pair: commbench report {shlex.quote(str(run.path))} --format json. "
        )
    if (unseen := n_workers - len(grid.workers)) > 0:
        note += f"{unseen} of {n_workers} workers were seen in no transfer and no task. "
    return note


def _slowest(pairs: pd.DataFrame, grid: Grid, typical: float) -> pd.DataFrame:
    """Return the slowest pair of every cell, with the totals of all of the cell's pairs."""
    # Pairs of unknown bandwidth come last: they only represent a cell without other pairs.
    table = pairs.assign(cell=_numbers(pairs, grid), typical_Bps=typical)
    table = table.sort_values("q50_Bps", kind="stable")
    cells = table.groupby("cell")
    totals = cells.agg(n_pairs=("n", "size"), all_n=("n", "sum"), all_bytes=("bytes", "sum"))
    return cells.head(1).set_index("cell").join(totals)


def _matrix(
    run: Run, case: Case, table: pd.DataFrame, slow: pd.DataFrame, grid: Grid,
    norm: LogNorm, least: str,
) -> Matrix:  # fmt: skip
    slowdowns = slow.set_index(["src", "dst"])["slowdown"].to_dict()
    n_slow = np.bincount(_numbers(slow, grid), minlength=grid.n_cells**2)
    transports = _transports(run.pair_transports, case, table)
    row_by_cell = {row.Index: row for row in table.itertuples()}

    def make_cell(i: int, j: int) -> Cell:
        number = i * grid.n_cells + j
        row, n_pairs = row_by_cell.get(number), grid.n_pairs(i, j)
        lines = [f"{grid.names[i]} → {grid.names[j]}"]
        if row is None:
            why = f"no transfer ≥ {least}" if n_pairs else "the same worker"
            return Cell("none" if n_pairs else "self", "\n".join([*lines, why]))
        if grid.wide > 1:
            lines += _describe_block(row, n_pairs, int(n_slow[number]), least)
        pair = (row.src, row.dst)
        lines += _describe_pair(row, transports.get(pair, "not recorded"), slowdowns.get(pair))
        text = str(format_number(row.q50_Bps / 1e9)) if grid.n_cells <= _TEXT_UP_TO else ""
        if math.isnan(row.q50_Bps):
            return Cell("untimed", "\n".join(lines), text)
        colours = _colours()[round(255 * float(norm(row.q50_Bps / row.typical_Bps)))]
        return Cell("slow" if n_slow[number] else "pair", "\n".join(lines), text, *colours)

    n = range(grid.n_cells)
    rows = ((grid.names[i], tuple(make_cell(i, j) for j in n)) for i in n)
    typical = format_number(table["typical_Bps"].iloc[0] / 1e9)
    return Matrix(case.variant, typical, tuple(rows))


def _describe_block(row: Any, n_pairs: int, n_slow: int, least: str) -> list[str]:
    """Return the lines on all pairs of a cell, which precede those on its slowest pair."""
    missing = n_pairs - row.n_pairs
    transfers = f"{plural(row.all_n, 'transfer')}, {format_bytes(row.all_bytes)}"
    return [
        f"{plural(row.n_pairs, 'pair')}: {transfers}",
        *[f"{missing} more without a transfer ≥ {least}"] * (missing > 0),
        *[f"{n_slow} of them slow"] * (n_slow > 0),
        f"the slowest is {row.src} → {row.dst}:",
    ]


def _describe_pair(row: Any, transport: str, slowdown: float | None) -> list[str]:
    """Return the lines on one pair."""
    quartiles = (row.q25_Bps, row.q50_Bps, row.q75_Bps)
    low, median, high = (format_number(speed_Bps / 1e9) for speed_Bps in quartiles)
    lines = [
        f"median {median} GB/s",
        f"25 %: {low}, 75 %: {high} GB/s",
        f"{plural(row.n, 'transfer')}, {format_bytes(row.bytes)}",
        *[
            f"{name} {format_seconds(seconds)}"
            for name, seconds in (("queue", row.queue_s), ("handling", row.handling_s))
            if not math.isnan(seconds)
        ],
        *[f"link {row.link}"] * (row.link != UNKNOWN),
        f"transport {transport}",
    ]
    if slowdown is not None:
        lines.append(
            f"slow: takes {slowdown:.1f} times as long as the typical pair, or as expected"
        )
    return lines


def _transports(transports: pd.DataFrame, case: Case, shown: pd.DataFrame) -> dict[Any, str]:
    """Return the transports of each of the `shown` pairs."""
    mine = transports[transports["case_id"] == case.id]
    pairs = mine.merge(shown[["src", "dst"]], on=["src", "dst"])
    return {
        pair: ", ".join(name or "unknown" for name in names.unique())
        for pair, names in pairs.groupby(["src", "dst"], observed=True)["transport"]
    }


@cache
def _colours() -> list[tuple[str, str]]:
    """Return the colours of the scale, each with a readable colour of text."""
    colours = colormaps[MAP](np.linspace(0, 1, 256))
    return [(to_hex(colour), style.contrast(colour[:3])) for colour in colours]

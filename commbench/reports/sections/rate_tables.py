"""Tables of the rate of a workload's operations, and of the efficiency of tasks of a given time.

Efficiency and METG(50 %), the minimum effective task granularity, are defined by Slaughter et al.,
"Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance", SC20, section
4 (arXiv:1908.05790).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from commbench.analysis.run import Run
from commbench.model.units import format_bandwidth, format_seconds
from commbench.reports.sections import (
    Quantity,
    Section,
    Table,
    interval_title,
    median_rate,
    median_time,
    number,
    percent,
    quantity,
    variants_title,
    with_tuning,
)

_TASK_S = "task_s"
"""The parameter that is the duration of a task."""
_EFFECTIVE = 0.5


def tables(run: Run) -> Iterator[Table]:
    """Yield a table of rates per workload, and one of efficiency per series of durations."""
    # Of a single operation, the time of the iteration says all.
    counts = run.samples[run.samples["n_operations"] > 1].drop_duplicates("case_id")
    rows = run.summaries[run.summaries["n_launches"] > 0]
    rows = rows.merge(counts[["case_id", "n_operations", "operations"]], on="case_id")
    alone = len({*run.case_labels.values()}) == 1
    # Of tasks that have a duration, the efficiency says more.
    have_duration = [case.id for case in run.suite.cases if _TASK_S in case.params]
    shown = rows[~rows["case_id"].isin(have_duration)]
    for label, group in shown.groupby(shown["case_id"].map(run.case_labels), sort=False):
        name, is_bytes = group.operations.iloc[0], group.operations.iloc[0] == "bytes"
        form: Any = format_bandwidth if is_bytes else number
        title = f"{'payload' if is_bytes else name} per second"
        summaries = [*group.itertuples()]
        seconds = [median_time(row, row.n_operations) for row in summaries]
        yield Table.from_columns(
            "" if alone else f"{label}: {title}",
            {
                variants_title(run): with_tuning(
                    group.backend, run.cases[group.case_id.iloc[0]].cluster.device
                ),
                **({} if is_bytes else {f"time per {name.removesuffix('s')}": seconds}),
                title: [median_rate(row, row.n_operations, form) for row in summaries],
                interval_title(group.confidence): [_rates(row, form) for row in summaries],
            },
        )
    yield from _efficiencies(run, rows.set_index("case_id"))


def _rates(row: Any, form: Any) -> Quantity:
    """Return the interval of a rate, to be sorted by its lower end."""
    if not (row.confidence and row.ci_low_s):
        return Quantity("none", math.nan)
    low, high = row.n_operations / row.ci_high_s, row.n_operations / row.ci_low_s
    return Quantity(f"{form(low)}…{form(high)}", low)


def _efficiencies(run: Run, rows: pd.DataFrame) -> Iterator[Table]:
    """Yield a table of the efficiency by the duration of tasks, and METG, for each such series."""
    series: dict[str, dict[str, dict[float, float]]] = {}
    for case in run.suite.cases:
        if case.id in rows.index and _TASK_S in case.params:
            row = rows.loc[case.id]
            # No launch took a time between two modes.
            median_s = row.median_s if math.isnan(row.low_mode_s) else math.nan
            n_threads = case.cluster.n_workers * case.cluster.threads_per_worker
            task_s = float(case.params[_TASK_S])
            label = re.sub(rf"(, )?{_TASK_S}=[^,)]*", "", run.case_labels[case.id])
            label = label.replace("(, ", "(").replace(" ()", "")
            shares = series.setdefault(label, {}).setdefault(case.variant, {})
            shares[task_s] = task_s * row.n_operations / (n_threads * median_s)
    for label, variants in series.items():
        durations = sorted({task_s for shares in variants.values() for task_s in shares})
        cells = [
            (quantity(format_seconds, task_s), *(percent(shares.get(task_s, math.nan))
                                       for shares in variants.values()))
            for task_s in durations
        ]  # fmt: skip
        several = len(durations) > 1
        if several:
            cells.append(("METG(50 %)", *map(metg, variants.values())))
        yield Table(
            f"{label}: efficiency by the duration of tasks",
            ("task", *variants),
            tuple(cells),
            "Efficiency: the tasks' durations over the time of all task threads."
            + " METG(50 %): the shortest task with an efficiency of 50 %, interpolated. Task Bench "
            "(Slaughter et al., SC20) counts the time of a thread per task, twice that: 4.6 µs for "
            "MPI on one node, 100 µs for the best system at scale; its text has no number for Dask."
            * several,
        )


def metg(shares: Mapping[float, float]) -> str:
    """Return METG(50 %), of efficiencies by the duration of tasks in seconds.

    It is interpolated over the logarithm of the duration, from the longest duration that has an
    efficiency below 50 % to the next longer one. If an efficiency is nan, there is none.

    Examples
    --------
    >>> metg({0.001: 0.1, 0.004: 0.3, 0.016: 0.7, 0.064: 0.9})
    '8.00 ms'
    >>> metg({0.001: 0.6, 0.004: 0.9}), metg({0.001: 0.1, 0.004: 0.4})
    ('< 1.00 ms', '> 4.00 ms')
    """
    durations, efficiencies = np.array(sorted(shares.items())).T
    if np.isnan(efficiencies).any():
        return "—"
    below = np.flatnonzero(efficiencies < _EFFECTIVE)
    if not len(below):
        return f"< {format_seconds(durations[0])}"
    if below[-1] == len(durations) - 1:
        return f"> {format_seconds(durations[-1])}"
    ends = slice(below[-1], below[-1] + 2)
    return format_seconds(
        np.exp(np.interp(_EFFECTIVE, efficiencies[ends], np.log(durations[ends])))
    )


SECTION = Section(
    title="Rates",
    position=15,
    tables=tables,
    opening=tables,
)

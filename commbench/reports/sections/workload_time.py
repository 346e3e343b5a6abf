"""Time per iteration of each workload, backend beside backend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commbench.analysis.run import Run
from commbench.model import Case, ClusterSpec
from commbench.model.units import format_bandwidth, format_bytes, format_seconds
from commbench.reports.sections.cells import (
    Quantity,
    Section,
    Table,
    counts,
    number,
    quantity,
    warmup,
)
from commbench.reports.sections.comparison import ratio

if TYPE_CHECKING:
    import pandas as pd


def tables(run: Run) -> Iterator[Table]:
    """Yield a table per workload and setting."""
    table = run.costs[run.costs["layer"] == "workload"]
    if table.empty:
        return
    cases = {case.id: case for case in run.suite.cases}
    found = {(c.baseline_id, c.candidate_id): c for c in run.comparisons if c.layer == "workload"}
    for _, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        title = _describe(cases[group["case_id"].iloc[0]])
        first = group.iloc[0]
        rows = []
        for row in group.itertuples():
            rows.append(
                (
                    row.backend,
                    quantity(format_seconds, row.median_s),
                    _interval(row),
                    Quantity("1", 1)
                    if row.case_id == first.case_id
                    else ratio(found.get((first.case_id, row.case_id))),
                    quantity(format_bandwidth, row.throughput_Bps),
                    number(row.cpu_s_per_GB),
                    number(row.idle_cores),
                )
            )
        yield Table(
            f"{title}: time per iteration",
            ("backend", "median", _interval_title(group), f"time vs\n{first.backend}", "payload/s",
             "CPU s\nper GB", "idle\ncores"),
            tuple(rows),
            f"Median over launches of each launch's median ({counts(group)}). payload/s: the "
            f"workload's {format_bytes(int(group.payload_bytes.iloc[0]))} over that time. CPU: all "
            "processes, client and scheduler included, over the bytes that crossed between "
            "workers. Idle cores: burned by the cluster while nothing is asked of it."
            + warmup(group),
        )  # fmt: skip


def _describe(case: Case) -> str:
    cluster = case.cluster
    params = ", ".join(f"{key}={value}" for key, value in case.params.items())
    launcher = () if cluster.launcher == ClusterSpec.launcher else (cluster.launcher,)
    placed = ("placed",) * bool(cluster.placement)
    shared = (f"{cluster.workers_per_gpu} per GPU",) * (cluster.workers_per_gpu > 1)
    rmm = (f"RMM {cluster.rmm}",) * bool(cluster.rmm)
    env = (f"{name}={value}" for name, value in cluster.env.items())
    return (
        f"{case.workload} ({params}) on {cluster.n_workers} workers × "
        f"{cluster.threads_per_worker} thread{'s' if cluster.threads_per_worker > 1 else ''}, "
        + ", ".join((cluster.device, *shared, *rmm, *launcher, *cluster.hosts, *placed, *env))
    )


def _interval_title(group: pd.DataFrame) -> str:
    low, high = (f"{level:.0%}" for level in (group.confidence.min(), group.confidence.max()))
    return f"{low}\ninterval" if low == high else f"{low} to {high}\ninterval"


def _interval(row: Any) -> str:
    """Return the interval, which is sorted by its lower end."""
    if row.confidence == 0:
        return Quantity("none", math.nan)
    low, high = format_seconds(row.ci_low_s), format_seconds(row.ci_high_s)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return Quantity(f"{low}…{high}", row.ci_low_s)


SECTION = Section(
    title="Time per iteration", position=20, tables=tables, figures=("workload-time",)
)

"""Tables of the time per iteration, and of its division in task threads and event loops."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from commbench.analysis.run import Run
from commbench.model import Case, ClusterSpec
from commbench.model.units import format_bytes, format_seconds
from commbench.reports.sections import (
    Quantity,
    Section,
    Table,
    counts,
    labels,
    median_time,
    number,
    quantities,
    range_ends,
    warmup,
)
from commbench.reports.sections.differences import ratio, verdict_cells

if TYPE_CHECKING:
    import pandas as pd

_MAX_OPENING = 12
"""The maximum cases of which the opening shows the times."""
_BAR = 16
_DASH = "—"


def time_tables(run: Run) -> Iterator[Table]:
    """Yield a table per workload and setting."""
    table = run.costs[run.costs["layer"] == "workload"]
    cases = {case.id: case for case in run.suite.cases}
    for _, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        first = group.iloc[0]
        ratios = {
            c.candidate_id: ratio(c) for c in run.comparisons
            if c.baseline_id == first.case_id and c.layer == "workload"
        } | {first.case_id: Quantity("1", 1)}  # fmt: skip
        levels = dict.fromkeys(
            f"{level:.0%}" for level in (group.confidence.min(), group.confidence.max())
        )
        yield Table.from_columns(
            f"{_describe(cases[first.case_id])}: time per iteration",
            {
                "backend": group.backend,
                "median": map(median_time, group.itertuples()),
                f"{' to '.join(levels)}\ninterval": map(_interval, group.itertuples()),
                f"time vs\n{first.backend}": [
                    ratios.get(case_id, "—") for case_id in group.case_id
                ],
                "moved": quantities(format_bytes, group.moved_bytes),
                "CPU\ns": map(number, group.cpu_s),
                "idle\ncores": map(number, group.idle_cores),
            },
            f"Median over launches of each launch's median ({counts(group)}). Payload: "
            f"{format_bytes(int(group.payload_bytes.iloc[0]))}. moved: serialized bytes between "
            "workers in an iteration, the mean. CPU: all processes, client and scheduler "
            "included, in an iteration. Idle cores: burned by the cluster while "
            "nothing is asked of it." + warmup(group),
        )


def time_opening(run: Run) -> Iterator[Table]:
    """Yield a table per workload with the times as bars, if there are few."""
    table = run.costs[run.costs["layer"] == "workload"]
    if not 0 < len(table) <= _MAX_OPENING:
        return
    compared = {(c.baseline_id, c.candidate_id): c for c in run.comparisons}
    alone = len({*run.case_labels.values()}) == 1
    for _, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        first = group.iloc[0]
        pairs = [compared.get((first.case_id, case_id)) for case_id in group["case_id"]]
        yield Table.from_columns(
            "" if alone else str(run.case_labels[first.case_id]),
            {
                "backend": group.backend,
                "time per iteration": map(median_time, group.itertuples()),
                "bar": (_bar(median_s / group.median_s.max()) for median_s in group.median_s),
                f"time vs {first.backend}": [_DASH if c is None else ratio(c) for c in pairs],
                "interval": [_DASH if c is None else verdict_cells(c)[1] for c in pairs],
            },
            text_columns={"bar"},
        )


def _bar(share: float) -> str:
    """Return a bar of at most 16 characters.

    Examples
    --------
    >>> _bar(0.53)
    '████████▌'
    """
    if math.isnan(share):
        return ""
    whole, eighths = divmod(round(share * 8 * _BAR), 8)
    return "█" * whole + "▏▎▍▌▋▊▉"[eighths - 1] * (eighths > 0)


def _describe(case: Case) -> str:
    cluster = case.cluster
    params = ", ".join(f"{key}={value}" for key, value in case.params.items())
    details = (
        cluster.device,
        f"{cluster.workers_per_gpu} per GPU" * (cluster.workers_per_gpu > 1),
        f"RMM {cluster.rmm}" * bool(cluster.rmm),
        cluster.launcher * (cluster.launcher != ClusterSpec.launcher),
        *cluster.hosts,
        "placed" * bool(cluster.placement),
        *(f"{name}={value}" for name, value in cluster.env.items()),
    )
    return (
        f"{case.workload} ({params}) on {cluster.n_workers} workers × {cluster.threads_per_worker} "
        f"thread{'s' * (cluster.threads_per_worker > 1)}, {', '.join(filter(None, details))}"
    )


def _interval(row: Any) -> str:
    """Return the interval, to be sorted by its lower end."""
    if row.confidence == 0:
        return Quantity("none", math.nan)
    return Quantity("…".join(range_ends(row.ci_low_s, row.ci_high_s)), row.ci_low_s)


_TASKS = {
    "compute": "compute", "other_cpu": "other\nCPU", "queue": "no core", "blocked": "blocked",
    "data": "await\ndata", "idle": "idle",
}  # fmt: skip
_LOOP = {
    "serialize": "seria-\nlize", "deserialize": "dese-\nrialize", "messages": "mes-\nsages",
    "poll": "poll", "loop_queue": "no core", "asleep": "asleep",
}  # fmt: skip


_DOING = {
    "compute": "compute",
    "queue": "wait for a core",
    "blocked": "sleep in tasks",
    "data": "wait for data",
    "idle": "have no task",
}
"""What a thread does in the parts that the opening shows."""


def profile_tables(run: Run) -> Iterator[Table]:
    """Yield the tables of task threads and event loops, if they were profiled."""
    shares = run.profile_shares
    tasks = shares[shares["compute"].notna()]
    if len(tasks):
        yield Table.from_columns(
            "Where the time went: task threads of the workers (% of the wall time)",
            {
                "backend": labels(run, tasks),
                **{title: map(_percent, tasks[name]) for name, title in _TASKS.items()},
            },
            "An average thread of an average worker; a row adds up to 100. compute: on a core in a "
            "task; no core: ready to run, but other threads had the cores; blocked: in a task, but "
            "asleep (waits for the GIL, locks, I/O); await data: no task, and a fetch under way "
            "(P2P shuffles are not logged as fetches).",
        )
    loops = shares[shares["asleep"].notna()]
    # Without gilknocker the column would be empty.
    gil = {"gil": "GIL\nbusy"} if loops["gil"].notna().any() else {}
    columns = {**_LOOP, "other_threads": "other\nthreads", **gil}
    if len(loops):
        yield Table.from_columns(
            "Where the time went: event loops (% of the wall time)",
            {
                "backend": labels(run, loops),
                "process": loops.process,
                **{title: map(_percent, loops[name]) for name, title in columns.items()},
            },
            "The thread of the event loop; its first six columns add up to 100. messages: all that "
            "it does besides; poll: its turns at the price of a turn in the idle cluster; other "
            "threads: their time on a core (progress threads, offloaded serialization, the "
            "tasks' own)." + " GIL busy: time in which a request for it had to wait." * bool(gil),
            {"process"},
        )


def profile_opening(run: Run) -> Iterator[Table]:
    """Yield a table per workload of where a task thread's time went; its title says the cause."""
    profiles = run.worker_profiles[run.worker_profiles["compute_s"].notna()]
    if not 0 < profiles["case_id"].nunique() <= _MAX_OPENING:
        return
    costs = run.costs.set_index("case_id")
    different = {
        frozenset((c.baseline_id, c.candidate_id))
        for c in run.comparisons
        if c.verdict in ("faster", "slower")
    }
    # The little time on a core between tasks has no column.
    profiles = profiles.assign(compute_s=profiles["compute_s"] + profiles["other_cpu_s"])
    for _, rows in profiles.groupby(profiles["case_id"].map(run.case_labels), sort=False):
        means = rows.groupby("case_id", sort=False)[[f"{name}_s" for name in _DOING]].mean()
        means = means.reindex([case.id for case in run.suite.cases if case.id in means.index])
        yield Table.from_columns(
            _cause(means.set_axis([*_DOING], axis=1), costs["backend"], different),
            {
                "ms of a task thread": costs["backend"][means.index],
                **{
                    _TASKS[name].replace("\n", " "): quantities(_milliseconds, means[f"{name}_s"])
                    for name in _DOING
                },
                "idle cores": map(number, costs["idle_cores"][means.index]),
            },
        )


def _cause(
    means: pd.DataFrame, backends: pd.Series[str], different: Collection[frozenset[str]]
) -> str:
    """Return what threads do for longer in the slowest case than in the fastest.

    If these are not in `different`, return what threads do for most of the time.
    """
    total_s = means.sum(axis=1)
    fastest, slowest = total_s.idxmin(), total_s.idxmax()
    if frozenset((fastest, slowest)) not in different:
        share = means.loc[fastest] / total_s[fastest]
        return (
            f"Where the time goes: over {backends[fastest]} threads {_DOING[str(share.idxmax())]} "
            f"for {share.max():.0%} of it"
        )
    more_s = means.loc[slowest] - means.loc[fastest]
    # While some threads wait, others have nothing to do.
    causes_s = more_s.drop("idle")
    part = "idle" if causes_s.max() < more_s["idle"] / 2 else str(causes_s.idxmax())
    return (
        f"Why: of {format_seconds(more_s.sum())} more over {backends[slowest]} than "
        f"{backends[fastest]}, threads {_DOING[part]} for {format_seconds(more_s[part])}"
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}"


def _percent(share: float) -> str:
    return Quantity("0", 100 * share) if share < 0.0005 else number(100 * share)


TIME = Section(
    title="Time per iteration",
    position=20,
    tables=time_tables,
    figures=("workload-time",),
    opening=time_opening,
)
PROFILE = Section(
    title="Where the time went",
    position=30,
    tables=profile_tables,
    figures=("communication", "task-stream", "worker-profile"),
    opening=profile_opening,
)

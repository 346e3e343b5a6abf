"""Tasks that run again, because nobody kept their results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from commbench.analysis.findings import CaseRecords, Rule, memory_pauses, spilling
from commbench.model import Finding
from commbench.model.units import format_bytes
from commbench.stats.graphs import line

_LEAST = 0.1
"""The smallest effect: a worker that leaves takes some results with it."""
_MAX_NAMED = 3
_READS = r"(?:^|[-_])(?:read|open)(?:[-_]|$)"
"""The names of tasks that read files, as ``read-csv`` and ``open_dataset-u``."""
_WINDOW = ["launch", "iteration"]


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield findings if tasks run again within an iteration or region, or data are read again.

    A collection that is read with other columns has other keys.
    """
    tasks = case.tasks[case.tasks["key"] != ""].sort_values("start_s")
    is_again = tasks.duplicated([*_WINDOW, "key"])
    again = tasks[is_again]
    spent, running = _spent(case, again)
    effect, n_windows = case.effect(spent, running), len(case.wall_s)
    at_once = "call compute once for all results that need them, dask.compute(a, b, …)"
    # What doesn't fit in memory can't be kept.
    is_full = any(map(case.findings, (memory_pauses.RULE, spilling.RULE)))
    if effect.share >= _LEAST:
        nbytes = again.drop_duplicates([*_WINDOW, "key"])["nbytes"].sum() / n_windows
        keep = f"keep their results, x = x.persist() (at most {format_bytes(int(nbytes))}), or "
        yield Finding(
            statement=f"{len(again) / n_windows:.0f} of {case.n_tasks:.0f} tasks per iteration "
            f"repeat earlier ones, which takes {spent.median():.0%} of the task threads' time, "
            f"most in {_most(again)}",
            evidence="tasks: key, start_s, stop_s",
            effect=effect,
            remedy=keep * (not is_full) + at_once,
            doubt="tasks also run again if they failed, or a worker was lost",
        )
    reads = _reads_again(tasks[~is_again])
    spent, running = _spent(case, reads)
    # They may be other data.
    effect = case.effect(0 * spent, running)
    if effect.high >= _LEAST:
        yield Finding(
            statement=f"{len(reads) / n_windows:.0f} of {case.n_tasks:.0f} tasks per iteration "
            "may read data again, as many pieces as an earlier computation, which takes "
            f"{spent.median():.0%} of the task threads' time: {_most(reads)}"
            + _callers(case, reads),
            evidence="tasks: key, graph, start_s, stop_s",
            effect=effect,
            remedy="if they read the same data, "
            + "keep them, x = x.persist(), or " * (not is_full)
            + at_once,
            doubt="they may read other data, or other columns of files that are stored by column",
        )


def _reads_again(tasks: pd.DataFrame) -> pd.DataFrame:
    """Return the tasks that read a collection of as many pieces as one of an earlier graph."""
    is_piece = tasks["key"].astype("str").str.startswith("(") & (tasks["graph"] >= 0)
    reads = tasks[is_piece & tasks["name"].astype("str").str.contains(_READS)]
    n_pieces = reads.groupby([*_WINDOW, "graph", "name"], observed=True)["key"].transform("size")
    alike = reads.assign(n_pieces=n_pieces).groupby([*_WINDOW, "name", "n_pieces"], observed=True)
    return reads[(n_pieces > 1) & (reads["graph"] > alike["graph"].transform("min"))]


def _spent(case: CaseRecords, again: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    """Return what is saved without these tasks, at least and at most.

    Task threads would save their share of the time if all are busy. If the others wait meanwhile,
    it is the time in which any of these tasks runs.
    """
    n_threads, index = case.n_workers * case.case.cluster.threads_per_worker, case.wall_s.index
    spent = again.groupby(_WINDOW)["seconds"].sum().reindex(index, fill_value=0.0)
    spent = spent / n_threads / case.wall_s
    running = case.busy_s(again, *_WINDOW).reindex(index, fill_value=0.0) / case.wall_s
    return spent, np.minimum(running, spent + case.share("data_s", "idle_s"))


def _most(tasks: pd.DataFrame) -> str:
    names = tasks.groupby("name", observed=True)["seconds"].sum().nlargest(_MAX_NAMED).index
    return ", ".join(names)


def _callers(case: CaseRecords, tasks: pd.DataFrame) -> str:
    """Return the lines of code that sent the graphs of these tasks, if they are known."""
    graphs = case.run.graphs
    codes = graphs["code"][graphs["number"].isin(tasks["graph"])].astype("str").unique()
    lines = [*dict.fromkeys(line(code) for code in codes if code)]
    more = f" and {len(lines) - _MAX_NAMED} more" * (len(lines) > _MAX_NAMED)
    return f", by {', '.join(lines[:_MAX_NAMED])}{more}" if lines else ""


RULE = Rule(
    title="tasks run again",
    limit="10 % of the time for tasks whose keys have run before in the iteration or region, or "
    "that may read the same data",
    find=find,
)

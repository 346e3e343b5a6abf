"""The tasks of an iteration, and the times of statements and lines of a user's code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pandas as pd

from commbench.stats import grouping

if TYPE_CHECKING:
    from commbench.analysis.run import Run


def tasks_per_iteration(run: Run) -> pd.Series[float]:
    """Return the number of tasks that compute in an iteration that counts, per case: the median."""
    iteration = ["case_id", "launch", "iteration"]
    samples = run.timed.loc[run.timed["layer"] == "workload", iteration].drop_duplicates()
    tasks = run.tasks.loc[run.tasks["action"] == "compute", iteration]
    n = tasks.groupby(iteration, observed=True).size()
    n = n.reindex(pd.MultiIndex.from_frame(samples)).dropna()
    return n.groupby(level="case_id").median()


def line(code: str) -> str:
    """Return the file and the line of a statement; of a cell of a notebook, all of it.

    Examples
    --------
    >>> line("my job.py:7 x.compute()"), line("cell:1 y.compute()")
    ('my job.py:7', 'cell:1 y.compute()')
    """
    known = re.match(r"(?!cell:)(.*?:[0-9]+)", code)
    return known[1] if known else code


def statements(run: Run) -> pd.DataFrame:
    """Return the statements that sent graphs, in the order of their time within each case.

    Returns
    -------
    DataFrame
        With ``case_id``, ``workload``, ``code`` ("" for graphs of libraries, tasks and other
        clients); ``n_graphs``, and their ``nbytes``; ``seconds``, the time from when the scheduler
        begins to read one of its graphs until the last task of this ends; ``n_tasks`` that ran,
        ``task_seconds``, their durations together, and ``name``, that of the tasks with most of
        them.
    """
    keys = ["case_id", "code"]
    graphs = run.graphs.astype({"code": "str"}).sort_values("received_s", kind="stable")
    tasks = run.tasks.loc[run.tasks["graph"] >= 0]
    # A region's tasks may have come to the scheduler in another one.
    last_s = tasks.groupby("graph")["stop_s"].max()
    graphs = graphs.assign(stop_s=graphs["number"].map(last_s).fillna(graphs["received_s"]))
    group = graphs.groupby(keys, observed=True, sort=False)
    number = group.ngroup().to_numpy()
    order = grouping.sort_order(number)
    start_s, stop_s = graphs[["received_s", "stop_s"]].to_numpy()[order].T
    result = group.agg(
        workload=("workload", "first"), n_graphs=("number", "size"), nbytes=("nbytes", "sum")
    )
    result["seconds"] = grouping.union_lengths(start_s, stop_s, number[order])
    computed = tasks[tasks["action"] == "compute"]
    computed = computed.assign(seconds=computed["stop_s"] - computed["start_s"])
    computed = computed[["graph", "name", "seconds"]].merge(
        graphs[["number", *keys]], left_on="graph", right_on="number"
    )
    by_statement = computed.groupby(keys, observed=True)["seconds"]
    result["n_tasks"] = by_statement.size().reindex(result.index, fill_value=0)
    result["task_seconds"] = by_statement.sum().reindex(result.index, fill_value=0.0)
    names = computed.astype({"name": "str"}).groupby([*keys, "name"], observed=True)["seconds"]
    most = names.sum().sort_values(ascending=False).reset_index("name").groupby(keys)["name"]
    result["name"] = most.first().reindex(result.index, fill_value="")
    cases = {case_id: position for position, case_id in enumerate(run.cases)}
    result = result.reset_index()
    return result.sort_values(
        ["case_id", "seconds"],
        key=lambda column: column.map(cases) if column.name == "case_id" else -column,
        kind="stable", ignore_index=True,
    )  # fmt: skip


def lines(run: Run) -> pd.DataFrame:
    """Return the lines that tasks and the script execute, the longest first.

    Returns
    -------
    DataFrame
        With ``case_id``, ``workload``, ``role`` and ``code`` as in ``run.line_times``; ``name``,
        that of the tasks with most of the time there; ``seconds`` of all task threads, or of the
        script; ``share`` of the sampled time of all tasks of the case or, of the script, of the
        case's regions.
    """
    columns = ["case_id", "workload", "role", "name", "code"]
    times = run.line_times.astype({"role": "str", "name": "str", "code": "str"})
    times = times.groupby(columns, observed=True)["seconds"].sum().reset_index()
    times = times.sort_values("seconds", ascending=False, kind="stable")
    # Compiled code is another for each name, and a line the same for all.
    line = times["code"].where(times["code"] != "", times["name"])
    by_line = times.groupby(["case_id", "role", "code", line.rename("line")], observed=True)
    times = times.assign(seconds=by_line["seconds"].transform("sum"))[by_line.cumcount() == 0]
    times = times.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)
    is_task = times["role"] == "task"
    in_tasks = times[is_task].groupby("case_id", observed=True)["seconds"].sum()
    in_regions = run.regions.groupby("case_id", observed=True)["seconds"].sum()
    whole = times["case_id"].map(in_tasks).where(is_task, times["case_id"].map(in_regions))
    return times.assign(share=times["seconds"] / whole.astype("float"))

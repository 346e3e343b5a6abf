"""Tables of the time per iteration, and of its division in task threads and event loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from commbench.analysis.run import Run
from commbench.model import USER_CODE, Case, ClusterSpec, Comparison
from commbench.model.units import format_bytes, format_seconds
from commbench.reports.sections import (
    Quantity,
    Section,
    Table,
    counts,
    idle_cores,
    interval_title,
    labels,
    median_time,
    number,
    percent,
    plural,
    quantities,
    range_ends,
    variants_title,
    warmup,
    with_tuning,
)
from commbench.reports.sections.differences import (
    ratio,
    same_level,
    slowdowns,
    task,
    verdict_cells,
)
from commbench.stats.selection import outer_regions

if TYPE_CHECKING:
    from commbench.reports.html.timeline import Timeline

_MAX_OPENING = 12
"""The maximum cases of which the opening shows the times."""
_MAX_TASKS = 20
"""The maximum names in the tables of tasks and statements."""
_MAX_STATEMENTS, _LONGEST = 5, 44
"""The maximum statements in the opening, and the characters of each."""
_MAX_LINES, _LEAST_SHARE = 3, 0.1
"""The maximum lines in the opening, and the least share of the time of each."""
_ROLES = {
    "script": "the script", "graph": "its graphs", "wait": "its waits", "blocked": "its threads",
}  # fmt: skip
_LARGE_GRAPHS = 10_000_000
"""The bytes from which Dask warns of the size of a graph."""
_NEAR = 0.8
"""The share of the largest increase from which the second one is named, too."""
_FIGURE = "workload-time"
_BAR = "bar"
_LONGEST_BAR, _SHORTEST_BAR = 16, 6
_ALIKE = 1.05
_WIDTH = 80
"""The characters of a narrow terminal, which the table of the opening fits."""
_DASH = "—"


def time_tables(run: Run) -> Iterator[Table]:
    """Yield a table per workload and setting."""
    table = run.costs[run.costs["layer"] == "workload"]
    if run.is_user_code:
        yield _region_table(run, table, "Times of the regions")
        return
    for _, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        first = _baseline(group)
        # Other numbers of workers may have another.
        payload = int(first.payload_bytes) * (len({*group.payload_bytes}) == 1)
        ratios = {
            c.candidate_id: ratio(c) for c in run.comparisons
            if c.baseline_id == first.case_id and c.layer == "workload"
        } | {first.case_id: Quantity("1", 1)}  # fmt: skip
        yield Table.from_columns(
            f"{_describe(run.cases[first.case_id])}: time per iteration",
            {
                variants_title(run): with_tuning(
                    group.backend, run.cases[first.case_id].cluster.device
                ),
                "median": map(median_time, group.itertuples()),
                interval_title(group.confidence): map(_interval, group.itertuples()),
                f"time vs\n{first.backend}": [
                    ratios.get(case_id, "—") for case_id in group.case_id
                ],
                "moved": quantities(format_bytes, group.moved_bytes),
                "CPU\ns": map(number, group.cpu_s),
                "CPUs\nif idle": map(idle_cores, group.idle_cores),
            },
            f"Median over launches of each launch's median ({counts(group)}). "
            + f"Payload: {format_bytes(payload)}. " * (payload > 0)
            + "moved: serialized bytes between "
            "workers in an iteration, the mean. CPU: all processes, client and scheduler "
            "included, in an iteration. CPUs if idle: those that the cluster uses "
            "while nothing is asked of it." + warmup(group),
        )


def time_opening(run: Run) -> Iterator[Table]:
    """Yield a table per workload with the times as bars, if there are few."""
    table = run.costs[run.costs["layer"] == "workload"]
    if not 0 < len(table) <= _MAX_OPENING:
        return
    if run.is_user_code:
        yield _region_table(run, table)
        return
    compared = {(c.baseline_id, c.candidate_id): c for c in run.comparisons}
    alone = len({*run.case_labels.values()}) == 1
    for _, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        first = _baseline(group)
        pairs = [compared.get((first.case_id, case_id)) for case_id in group["case_id"]]
        times: dict[str, list[str]] = {
            variants_title(run): with_tuning(
                group.backend, run.cases[first.case_id].cluster.device
            ),
            "median": [*map(median_time, group.itertuples())],
        }
        ratios: dict[str, list[str]] = {
            f"time vs {first.backend}": [_DASH if c is None else ratio(c) for c in pairs],
            "interval": [_DASH if c is None else _shown_interval(c) for c in pairs],
        }
        widths = [2 + max(map(len, (name, *cells))) for name, cells in (times | ratios).items()]
        longest = max(_SHORTEST_BAR, min(_LONGEST_BAR, _WIDTH - sum(widths)))
        bars = (_bar(median_s / group.median_s.max(), longest) for median_s in group.median_s)
        # Ratios are of launches; a quotient of medians may say something else.
        notes = (
            "Times are medians; ratios are of launches, not of the medians."
            * any(c is not None and _disagrees(c) for c in pairs),
            _moved(group.moved_bytes.dropna()),
        )
        yield Table.from_columns(
            "" if alone else str(run.case_labels[first.case_id]),
            {**times, _BAR: bars, **ratios},
            " ".join(filter(None, notes)),
            text_columns={_BAR},
            figure=_FIGURE,
        )


def _moved(moved_bytes: pd.Series[float]) -> str:
    """Return the bytes that an iteration moves, from the least to the most of the cases."""
    if moved_bytes.empty:
        return ""
    ends = dict.fromkeys(format_bytes(round(n)) for n in (moved_bytes.min(), moved_bytes.max()))
    return f"An iteration moves {' to '.join(ends)} between workers."


def _baseline(group: pd.DataFrame) -> Any:
    """Return the row with which others are compared: the first with a successful launch."""
    return group.loc[(group["n_launches"] > 0).idxmax()]


def _disagrees(c: Comparison) -> bool:
    """Return whether a ratio and that of the medians differ by 5 %, or are on both sides of 1."""
    if math.isnan(c.ratio):
        return False
    small_s, large_s = sorted((c.ratio * c.baseline_s, c.candidate_s))
    return large_s > _ALIKE * small_s or (c.ratio > 1) != (c.candidate_s > c.baseline_s)


def _region_table(run: Run, table: pd.DataFrame, title: str = "") -> Table:
    """Return the times of the regions of a user's code."""
    raised = run.regions["iteration"][run.regions["error"] != ""]
    n_left_out = int((~raised.isin(run.measured["iteration"])).sum())
    is_nested = bool(table["case_id"].isin(outer_regions(run)["case_id"]).any())
    notes = (
        f"{n_left_out} of {len(run.regions)} entries raised, and don't count." * (n_left_out > 0),
        "between workers: without the regions within a region; CPU s: with them." * is_nested,
    )
    return Table.from_columns(
        title,
        {
            "region": table.workload,
            "times": quantities(str, table.n_samples),
            "median": map(median_time, table.itertuples()),
            _BAR: map(_bar, table.median_s / table.median_s.max()),
            "between\nworkers": quantities(format_bytes, table.moved_bytes),
            "CPU s": map(number, table.cpu_s),
        },
        " ".join(filter(None, notes)),
        text_columns={_BAR},
        figure=_FIGURE,
    )


def _shown_interval(c: Comparison) -> str:
    """Return the interval on which the verdict rests."""
    _, interval, _, _, same, verdict = verdict_cells(c)
    return f"{same} ({same_level(c)})" if verdict == "same" else interval


def _bar(share: float, longest: int = _LONGEST_BAR) -> str:
    """Return a bar of at most `longest` characters.

    Examples
    --------
    >>> _bar(0.53)
    '████████▌'
    """
    if math.isnan(share):
        return ""
    whole, eighths = divmod(round(share * 8 * longest), 8)
    return "█" * whole + "▏▎▍▌▋▊▉"[eighths - 1] * (eighths > 0)


_IN_WORDS = {
    "workers", "threads", "device", "launcher", "hosts", "placement", "rmm", "workers_per_gpu",
}  # fmt: skip
"""The labels of clusters that titles have in words."""


def _describe(case: Case) -> str:
    cluster = case.common_cluster
    # Of the hash of a script, as many digits as git shows.
    params = ", ".join(
        f"{key}={value[:7] if key == 'sha256' else value}" for key, value in case.params.items()
    )
    size = {
        "workers": plural(cluster.n_workers, "worker"),
        "threads": plural(cluster.threads_per_worker, "thread"),
    }
    fixed = " × ".join(text for name, text in size.items() if name not in case.varied)
    launcher = "" if cluster.launcher in (ClusterSpec.launcher, USER_CODE) else cluster.launcher
    details = (
        cluster.device,
        f"{cluster.workers_per_gpu} per GPU" * (cluster.workers_per_gpu > 1),
        f"RMM {cluster.rmm}" * bool(cluster.rmm),
        launcher,
        *cluster.hosts,
        "placed" * bool(cluster.placement),
        *(
            f"{name}={value}"
            for name, value in cluster.labels().items()
            if name not in _IN_WORDS and value != ""
        ),
    )
    task = case.workload + f" ({params})" * bool(params)
    return f"{task} on {', '.join(filter(None, (fixed, *details)))}"


def _interval(row: Any) -> str:
    """Return the interval, to be sorted by its lower end."""
    if row.confidence == 0:
        return Quantity("none", math.nan)
    return Quantity("…".join(range_ends(row.ci_low_s, row.ci_high_s)), row.ci_low_s)


TASKS = {
    "compute": "compute", "other_cpu": "other\nCPU", "queue": "no core", "blocked": "blocked",
    "data": "await\ndata", "idle": "idle",
}  # fmt: skip
"""The titles of the parts of a task thread's time."""
_LOOP = {
    "serialize": "seria-\nlize", "deserialize": "dese-\nrialize", "messages": "mes-\nsages",
    "poll": "poll", "loop_queue": "no core", "asleep": "asleep",
}  # fmt: skip
DOING = {
    "compute": "on a core", "queue": "with no core", "blocked": "blocked",
    "data": "awaiting data", "idle": "idle",
}  # fmt: skip
"""How a thread spends the parts of its time that the opening shows, as their columns say it."""
_OPENING = {"compute": "on core"}
"""The titles in the opening, where they differ: of compute and other CPU together."""


def profile_tables(run: Run) -> Iterator[Table]:
    """Yield the tables of tasks, task threads and event loops, if they were profiled."""
    if run.is_user_code and len(run.tasks):
        if (run.statements["n_tasks"] > 0).any():
            yield _statement_table(run)
        yield _task_table(run)
    if len(run.line_times):
        yield _line_table(run)
    shares = run.profile_shares
    tasks = shares[shares["compute"].notna()]
    if len(tasks):
        yield Table.from_columns(
            "Where the time went: task threads of the workers (% of the wall time)",
            {
                variants_title(run): labels(run, tasks),
                **{title: map(_percent, tasks[name]) for name, title in TASKS.items()},
            },
            "An average thread of an average worker; a row adds up to 100. compute: on a core in a "
            "task; other CPU: on a core outside of what Dask meters as tasks; no core: ready to "
            "run, but other threads had the cores, or for a moment the GIL; blocked: in a task, "
            "but asleep (waits for the GIL, locks, I/O); await data: no task, and a fetch or a P2P "
            "batch under way; idle: the rest." + _bound(run),
        )
    loops = shares[shares["asleep"].notna()]
    # Without gilknocker the column would be empty.
    gil = {"gil": "GIL\nbusy"} if loops["gil"].notna().any() else {}
    columns = {**_LOOP, "other_threads": "other\nthreads", **gil}
    if len(loops):
        yield Table.from_columns(
            "Where the time went: event loops (% of the wall time)",
            {
                variants_title(run): labels(run, loops),
                "process": loops.process,
                **{title: map(_percent, loops[name]) for name, title in columns.items()},
            },
            "The thread of the event loop; its columns from serialize to asleep add up to 100. "
            "serialize, deserialize: for fetches; those of P2P shuffles and all that it does "
            "besides are messages; poll: the CPU time that its turns take in the idle cluster; "
            "other threads: their time on a core (progress threads, offloaded serialization, the "
            "tasks' own)." + " GIL busy: time in which a request for it had to wait." * bool(gil),
            {"process"},
        )


def _statement_table(run: Run, most: int = _MAX_TASKS) -> Table:
    """Return the time of the statements that make the cluster compute, the longest first."""
    known = run.statements[run.statements["n_tasks"] > 0].sort_values("seconds", ascending=False)
    shown = known.head(most)
    codes = shown["code"].replace("", "a library or a task")
    has_data = bool((shown["nbytes"] >= _LARGE_GRAPHS).any())
    # The opening has room for a line each. HTML leaves out its tables with titles of others below.
    is_short = most < _MAX_TASKS
    if is_short:
        longest = _LONGEST - len("  100 MB") * has_data
        codes = _shortened(codes, longest)
    regions = {} if is_short else {"region": shown["workload"]}
    notes = (
        "time: from when the scheduler receives a graph until its last task ends; those of several "
        "statements overlap." * bool(regions),
        "sent: the pickled graphs, with the data in them." * bool(regions) * has_data,
        f"The first {len(shown)} of {len(known)}." * (len(shown) < len(known)),
    )
    return Table.from_columns(
        "Where your code keeps the cluster busy" + " longest" * is_short,
        {
            **regions,
            "statement": codes,
            "times": quantities(str, shown["n_graphs"]),
            "time": quantities(format_seconds, shown["seconds"]),
            "tasks": quantities(str, shown["n_tasks"]),
            **({"sent": quantities(format_bytes, shown["nbytes"])} if has_data else {}),
            "most of it": shown["name"],
        },
        " ".join(filter(None, notes)),
        text_columns={"statement", "most of it"},
    )


def _line_table(run: Run, most: int = _MAX_TASKS, least: float = 0.0) -> Table:
    """Return the lines that tasks and the script execute for the longest time.

    Parameters
    ----------
    least
        The smallest share that is shown.
    """
    is_short = most < _MAX_TASKS
    known = run.lines[run.lines["share"] >= least]
    if is_short:
        # Those of the statements that keep the cluster busy are in their table.
        known = known[known["role"] != "wait"]
    shown = known.head(most)
    codes = shown["code"].replace("", "Dask, or compiled code that it calls")
    return Table.from_columns(
        "Which lines take" + " most of" * is_short + " the time",
        {
            **({} if is_short else {"region": shown["workload"]}),
            "line": _shortened(codes, _LONGEST) if is_short else codes,
            "in": shown["name"].where(shown["role"] == "task", shown["role"].replace(_ROLES)),
            "time": quantities(format_seconds, shown["seconds"]),
            "share": quantities(percent, shown["share"]),
        },
        "By samples, every 20 ms or more. line: the innermost of your code, or the library's "
        "function that Dask calls; in: the task, the script, graphs that Dask makes and sends for "
        "it, or its waits for the cluster or other threads; time: of all task threads, or of the "
        "script; share: of the sampled time of all tasks, or of the region."
        + f" The first {len(shown)} of {len(known)}."
        * (len(shown) < len(known))
        if not is_short
        else "",
        text_columns={"line", "in"},
    )


def _shortened(texts: pd.Series[str], longest: int) -> pd.Series[str]:
    return texts.map(lambda text: text if len(text) <= longest else f"{text[: longest - 1]}…")


def _task_table(run: Run) -> Table:
    """Return the time of the tasks of a user's code, by the prefix of their keys."""
    tasks = run.tasks[run.tasks["action"] == "compute"]
    tasks = tasks.assign(seconds=tasks["stop_s"] - tasks["start_s"])
    groups = tasks.groupby(["workload", "name"], observed=True)["seconds"]
    groups = groups.agg(["size", "sum", "median"]).sort_values("sum", ascending=False)
    shares = groups["sum"] / groups["sum"].groupby("workload", observed=True).transform("sum")
    shown = groups.head(_MAX_TASKS)
    return Table.from_columns(
        "Tasks by name",
        {
            "region": shown.index.get_level_values(0),
            "name": shown.index.get_level_values(1),
            "tasks": quantities(str, shown["size"]),
            "total": quantities(format_seconds, shown["sum"]),
            "median": quantities(format_seconds, shown["median"]),
            "share": quantities(percent, shares[shown.index]),
        },
        "name: the beginning that keys have in common; total: from their begins to their ends, "
        "with waits for a core; share: of all tasks of the region."
        + f" The first {len(shown)} of {len(groups)}."
        * (len(shown) < len(groups)),
        {"name"},
    )


def profile_opening(run: Run) -> Iterator[Table]:
    """Yield a table per workload of where a task thread's time went, and the lines of code."""
    parts_s = _parts(run)
    if 0 < len(parts_s) <= _MAX_OPENING:
        yield from _thread_tables(run, parts_s)
    known = run.statements[run.statements["n_tasks"] > 0]
    if run.is_user_code and len(known):
        yield _statement_table(run, _MAX_STATEMENTS)
    lines = _line_table(run, _MAX_LINES, _LEAST_SHARE) if len(run.line_times) else None
    if lines and lines.rows:
        yield lines


def _thread_tables(run: Run, parts_s: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per workload of where a task thread's time went, titled by the difference."""
    costs = run.costs.set_index("case_id")
    # The regions of a user's code are rows of one table.
    names = costs["workload" if run.is_user_code else "backend"]
    tasks = parts_s.index.map({} if run.is_user_code else run.case_labels).fillna("")
    for _, rows in parts_s.groupby(tasks, sort=False):
        why = _cause(rows, costs["backend"], run.comparisons)
        yield Table.from_columns(
            f"Why {why}" if why else "Where the time of a task thread goes",
            {
                "ms of the median": names[rows.index],
                **{
                    title.replace("\n", " "): map(number, 1000 * rows[name])
                    for name, title in (TASKS | _OPENING).items()
                    if name in DOING
                },
                "CPUs if idle": map(idle_cores, costs["idle_cores"][rows.index]),
            },
            _bound(run).strip(),
        )


def _bound(run: Run) -> str:
    """Return that *blocked* is a lower bound, of runs without the waits within tasks."""
    is_recorded = run.activities.empty or (run.activities["label"] == "run-queue").any()
    return "" if is_recorded else " blocked: at least; waits within tasks were not recorded."


def causes(run: Run) -> dict[str, str]:
    """Return why a backend is slower than another, by the label of the task."""
    parts_s, names = _parts(run), run.costs.set_index("case_id")["backend"]
    tasks = parts_s.groupby([task(run, case_id) for case_id in parts_s.index], sort=False)
    return {str(what): _cause(rows, names, run.comparisons) for what, rows in tasks}


def _parts(run: Run) -> pd.DataFrame:
    """Return the parts of the median that the opening shows, in seconds, by case id.

    They are nan where launches split into two modes. Medians of the parts would not add up to the
    median of the times.
    """
    shares = run.profile_shares[run.profile_shares["compute"].notna()]
    # The little time on a core between tasks has no column.
    shares = shares.assign(compute=shares["compute"] + shares["other_cpu"]).set_index("case_id")
    costs = run.costs.set_index("case_id")
    # Those of a median between modes are the parts of no launch.
    medians = costs["median_s"].mask(costs["low_mode_s"].notna())
    return shares[[*DOING]].mul(medians[medians.index.isin(shares.index)], axis=0)


def _cause(
    parts_s: pd.DataFrame, backends: Mapping[str, str], comparisons: Sequence[Comparison]
) -> str:
    """Return the states that last longer with the slowest backend than with the first good one.

    Parameters
    ----------
    parts_s
        Seconds by case id (rows, in the suite's order) and part (columns).
    backends
        Names of backends by case id.
    comparisons
        Comparisons of backends; if no difference is significant, the result is empty.
    """
    ratios = slowdowns(
        c for c in comparisons if {c.baseline_id, c.candidate_id} <= {*parts_s.index}
    )
    if not ratios:
        return ""
    beaten = {slow for _, slow in ratios}
    unbeaten = [pair[0] for pair in ratios if pair[0] not in beaten] or [pair[0] for pair in ratios]
    fast_id = min(unbeaten, key=parts_s.index.get_loc)
    slow_id = max((pair for pair in ratios if pair[0] == fast_id), key=ratios.__getitem__)[1]
    more_s = (parts_s.loc[slow_id] - parts_s.loc[fast_id]).sort_values(ascending=False)
    # While some threads wait, others have nothing to do.
    causes_s = more_s.drop("idle")
    if causes_s.iloc[0] < more_s["idle"] / 2:
        causes_s = more_s
    named_s = causes_s.head(2)
    named_s = named_s[named_s > max(0.0, _NEAR * causes_s.iloc[0])]
    if named_s.empty:
        return ""
    slow, fast, total = backends[slow_id], backends[fast_id], format_seconds(more_s.sum())
    if "idle" not in causes_s and more_s["idle"] > _NEAR * causes_s.iloc[0]:
        named_s = pd.concat([named_s, more_s[["idle"]]])
    # Other parts may be shorter.
    of_it = " of it" if named_s.sum() < more_s.sum() else ""
    parts = [
        f"{format_seconds(seconds)}{of_it * (number == 0)} {DOING[str(part)]}"
        for number, (part, seconds) in enumerate(named_s.items())
    ]
    return f"{slow} takes {total} longer than {fast}: {', '.join(parts)}"


def _timelines(run: Run) -> list[Timeline]:
    # This imports matplotlib.
    from commbench.reports.html import timeline

    return timeline.timelines(run)


def _percent(share: float) -> str:
    return Quantity("0", 100 * share) if share < 0.0005 else number(100 * share)


TIME = Section(
    title="Time per iteration",
    position=20,
    tables=time_tables,
    figures=(_FIGURE,),
    opening=time_opening,
    to_read="A dot is the median of one launch, the upright bar the median of the dots, the line "
    "its confidence interval. How far the dots of one colour lie apart is what a second cluster, "
    "started alike, may differ by.",
    not_to_conclude="That the backend with the smallest median is the fastest: see the verdicts. "
    "Nor that a slow backend moves bytes slowly: where the time went has the reason.",
)
PROFILE = Section(
    title="Where the time went",
    position=30,
    tables=profile_tables,
    figures=("worker-profile", "communication", "task-stream"),
    timelines=_timelines,
    opening=profile_opening,
    to_read="No core is time in which a thread could have run, but others had the cores; "
    "receiving and await data are time in which data were coming in. The task stream has the same "
    "iterations: where the same tasks take longer, and how much of the time has none.",
    not_to_conclude="That receiving is the network: a fetch lasts from the request to the "
    "deserialized data, so a sender or receiver that gets no core makes it longer. Nor that a "
    "machine with more cores would show the same shares.",
)

"""Divide the wall time of an iteration, per worker: its task threads and its event loop.

The two run concurrently, so each has a separate account that adds up to the wall time. The parts of
an account are subtracted in order, the most accurate first. Each is limited to the time that is
left, so that none is negative, and the last part is the remainder.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commbench.stats import grouping
from commbench.stats.grouping import Array
from commbench.stats.selection import in_suite_order, outer_regions

if TYPE_CHECKING:
    from commbench.analysis.run import Run

TASK_PARTS = ("compute_s", "other_cpu_s", "queue_s", "blocked_s", "data_s", "idle_s")
LOOP_PARTS = ("serialize_s", "deserialize_s", "poll_s", "messages_s", "loop_queue_s", "asleep_s")

_DIVISION = ("transfer_only_s", "overlap_s", "compute_only_s", "neither_s")
_KEY = ["case_id", "launch", "iteration", "worker"]
_EXTRA = ("other_threads_s", "gil_s")
NO_TASKS = ("scheduler", "client")
"""The processes that run no tasks."""
_LOOP_CONTEXTS = ("gather-dep", "get-data")
_P2P_WAIT = "p2p-comms-limiter"
"""Dask's name for the wait of a P2P shuffle's task for earlier bytes to be sent."""
FAILED = ("failed", "cancelled")
"""Dask's names for the time of attempts that fail, are rescheduled or cancelled."""
_WORKS = 0.05
"""The share of an idle period in which task threads that work want a core."""
_SLEEPS = 0.05
"""The share of an idle period in which an event loop that sleeps between its turns is on a core."""
_TURN_WAIT_S = 1e-3
"""The least wait for a core that is one of each turn, not one after many turns that poll."""
_STAY = 0.9
"""The least share of the workers of a window that are there from its begin to its end."""
_LABELS = {
    "serialize_s": ("serialize", "compress"),
    "deserialize_s": ("deserialize", "decompress"),
}


def worker_profiles(run: Run) -> pd.DataFrame:
    """Divide the wall time of every measured iteration, per process.

    Returns
    -------
    DataFrame
        One row per case without ``outer_regions``, launch, iteration and ``worker`` (a worker's
        name, ``scheduler`` or ``client``; no workers if more than a tenth of them joined, left or
        were restarted within the iteration), with its ``process`` (``workers`` of all workers),
        ``workload``, ``backend``, ``wall_s`` and seconds of it:

        - of an average task thread (nan for scheduler and client): ``compute_s`` on a core in a
          task, ``other_cpu_s`` on a core outside of tasks, ``queue_s`` ready but without a core
          (that which the hypervisor takes is estimated by the stolen time per busy time of the
          worker's cores during the iterations of a launch),
          ``blocked_s`` in a task but asleep (the GIL, locks, I/O), ``data_s`` without a task during
          a fetch, or in a task that waits until P2P has sent earlier bytes, ``idle_s`` the
          remainder. The barrier of a P2P shuffle is no task;
        - of the event loop's thread: ``serialize_s`` and ``deserialize_s``; ``poll_s``, its turns
          at the cost of an idle turn (nan if turns can't be counted); ``messages_s``, the rest of
          its time on a core; ``loop_queue_s`` ready but without a core; ``asleep_s`` the remainder;
        - ``other_threads_s``: time on a core of all other threads of the process; ``gil_s``:
          time in which a request for the GIL would have waited (nan without gilknocker).
    """
    windows = run.measured.drop_duplicates(_KEY[:3])
    windows = windows[~windows["case_id"].isin(outer_regions(run)["case_id"])]
    processes = _without_changing_workers(run.threads[_KEY].drop_duplicates(), run).merge(
        windows[[*_KEY[:3], "workload", "backend", "started_at_s", "seconds"]], on=_KEY[:3]
    )  # fmt: skip
    profiles = processes.rename(columns={"seconds": "wall_s"}).set_index(_KEY)
    idle_s = run.threads["idle_seconds"].where(is_idle(run.threads))
    threads = {
        role: table.drop_duplicates(_KEY).set_index(_KEY).reindex(profiles.index)
        for role, table in run.threads.assign(idle_seconds=idle_s).groupby("role")
    }
    # All values of a missing role are nan.
    no_threads = run.threads[:0].set_index(_KEY).reindex(profiles.index)
    metrics = _metrics(run.activities).reindex(profiles.index)
    # The kernel counts what the hypervisor takes neither as CPU time nor as waiting.
    cores_s = metrics.groupby(["case_id", "launch", "worker"])[["stolen_s", "busy_s"]]
    used = cores_s.transform("sum")
    stolen = (used["stolen_s"] / used["busy_s"]).where(used["busy_s"] > 0, 0.0)
    if metrics["queue_s"].notna().any():
        in_tasks_s = stolen * metrics["compute_s"].fillna(0.0)
        metrics["queue_s"] = metrics["queue_s"].fillna(0.0) + in_tasks_s
    for table in threads.values():
        table["wait_seconds"] += stolen * table["cpu_seconds"]
    others = run.threads[~run.threads["role"].isin(["loop", "tasks"])]
    others_s = others.groupby(_KEY)["cpu_seconds"].sum()
    profiles = profiles.assign(
        **_task_accounts(profiles, threads.get("tasks", no_threads), metrics, run),
        **_loop_accounts(
            profiles.wall_s,
            threads.get("loop", no_threads),
            threads.get("offload", no_threads),
            metrics,
        ),
        other_threads_s=others_s.reindex(profiles.index, fill_value=0.0),
        gil_s=metrics["gil_s"],
    )
    columns = ["workload", "backend", "wall_s", *TASK_PARTS, *LOOP_PARTS, *_EXTRA]
    table = profiles[columns].reset_index()
    process = table["worker"].where(table["worker"].isin(NO_TASKS), "workers")
    return table.assign(process=process)


def _without_changing_workers(processes: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Drop the workers of iterations in which many workers joined or left."""
    workers = processes[~processes["worker"].isin(NO_TASKS)]
    seen = pd.concat([workers, run.log_counts[_KEY], run.tasks[_KEY].drop_duplicates()])
    timed, every = (each.groupby(_KEY[:3]).size() for each in (workers, seen.drop_duplicates()))
    share = timed / every
    is_changing = pd.MultiIndex.from_frame(workers[_KEY[:3]]).isin(share.index[share < _STAY])
    return processes.drop(workers.index[is_changing])


def profile_shares(profiles: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the share of each part in the wall time, per case and kind of process.

    Parameters
    ----------
    profiles
        The result of ``worker_profiles``.

    Returns
    -------
    DataFrame
        One row per case and ``process`` (``workers``, ``scheduler`` or ``client``) with
        ``workload``, ``backend``, ``n_iterations`` (summed over processes) and for every part
        Σ part / Σ wall time of the rows in which it is known, named without ``_s``. If ``poll_s``
        is known in some, only these count for the loop. The shares of an account add up to 1.
    """
    parts = [*TASK_PARTS, *LOOP_PARTS, *_EXTRA]
    group = [*_KEY[:1], "workload", "backend", "process"]
    grouped = profiles.groupby(group, sort=False)
    # Where poll_s is unknown, messages_s includes it.
    is_mixed = profiles["poll_s"].isna() & (grouped["poll_s"].transform("count") > 0)
    known = profiles.assign(**{name: profiles[name].mask(is_mixed) for name in LOOP_PARTS})
    wall_s = known.assign(**known[parts].notna().mul(known["wall_s"], axis=0))
    sums = known.groupby(group, sort=False)[parts].sum(min_count=1)
    sums /= wall_s.groupby(group, sort=False)[parts].sum()
    sums = sums.rename(columns={name: name.removesuffix("_s") for name in parts})
    table = sums.assign(n_iterations=grouped.size()).reset_index()
    rank = table["process"].map({"workers": 0, "scheduler": 1, "client": 2})
    return in_suite_order(table.assign(_rank=rank), run, ["_rank"]).drop(columns="_rank")


def worker_times(run: Run) -> pd.DataFrame:
    """Divide the wall time of every iteration, per worker, into transfer and computation.

    Returns
    -------
    DataFrame
        One row per case without ``outer_regions``, launch, iteration and worker: ``wall_s`` and
        the four parts that add up to it: ``transfer_only_s`` (at least one incoming fetch or
        P2P batch and no task), ``overlap_s`` (both), ``compute_only_s`` (at least one task alone),
        ``neither_s``.
    """
    fetches, tasks = _fetches_and_tasks(run)
    # Every worker has a count in every iteration, even one without fetches or tasks.
    samples = run.measured[~run.measured["case_id"].isin(outer_regions(run)["case_id"])]
    workers = run.log_counts[_KEY].drop_duplicates()
    windows = samples[samples["layer"] == "workload"].merge(workers, on=_KEY[:3])
    rows = []
    for window in windows.itertuples():
        key = (window.case_id, window.launch, window.iteration, window.worker)
        transfer = fetches.within(key, window.started_at_s, window.seconds)
        compute = tasks.within(key, window.started_at_s, window.seconds)
        parts = divide(window.seconds, transfer, compute)
        rows.append((*key, window.workload, window.backend, window.seconds, *parts))
    return pd.DataFrame(rows, columns=[*_KEY, "workload", "backend", "wall_s", *_DIVISION])


def _metrics(activities: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of the metrics that are used, per process; nan if not recorded."""
    context, label = activities["context"], activities["label"]
    on_loop = context.isin(_LOOP_CONTEXTS)
    counts = {
        # thread-cpu, and the metrics of the P2P shuffle, which Dask subtracts from it.
        "compute_s": (context == "execute") & label.str.endswith("-cpu"),
        "queue_s": (context == "execute") & (label == "run-queue"),
        "p2p_s": (context == "execute") & (label == _P2P_WAIT),
        "failed_s": (context == "execute") & label.isin(FAILED),
        "seceded_s": (context == "execute") & (label == "seceded"),
        "gil_s": (context == "gil") & (label == "contention"),
        "busy_s": (context == "cores") & (label == "busy"),
        "stolen_s": (context == "cores") & (label == "stolen"),
        **{name: on_loop & label.isin(labels) for name, labels in _LABELS.items()},
    }
    seconds = {name: activities["seconds"].where(mask) for name, mask in counts.items()}
    return activities.assign(**seconds).groupby(_KEY)[list(seconds)].sum(min_count=1)


def _task_accounts(
    processes: pd.DataFrame, threads: pd.DataFrame, metrics: pd.DataFrame, run: Run
) -> dict[str, pd.Series[float]]:
    n, cpu_s, queue_s = threads["n_threads"], threads["cpu_seconds"], threads["wait_seconds"]
    n = n.where(~processes.index.get_level_values("worker").isin(NO_TASKS))
    compute_s = np.minimum(cpu_s, metrics["compute_s"].fillna(0.0))
    # Older runs don't tell waits within tasks from those between them.
    is_counted = metrics["queue_s"].notna().any()
    queue_in_tasks_s = metrics["queue_s"].fillna(0.0) if is_counted else queue_s
    waits_s = metrics["p2p_s"].fillna(0.0)
    spans = _spans(processes[n.notna()], run).reindex(processes.index)
    # Dask's task stream lacks attempts that are retried or cancelled; its metric has their wall
    # time, of which `other_cpu_s` has the CPU time.
    failed_s = metrics["failed_s"].fillna(0.0)
    in_tasks_s = spans["in_tasks_s"] + (failed_s - spans["erred_s"]).clip(lower=0.0)
    in_tasks_s -= np.minimum(failed_s, (cpu_s - compute_s).clip(lower=0.0))
    # Tasks that sleep after they have seceded occupy no thread.
    in_tasks_s -= metrics["seceded_s"].fillna(0.0)
    parts = _allocate(
        n * processes["wall_s"],
        {
            "compute_s": compute_s,
            "other_cpu_s": cpu_s - compute_s,
            "queue_s": queue_s,
            "p2p_s": waits_s,
            "blocked_s": in_tasks_s - compute_s - queue_in_tasks_s - waits_s,
            "data_s": n * spans["fetching_s"] - spans["both_s"],
        },
        "idle_s",
    )
    parts["data_s"] += parts.pop("p2p_s")
    return {name: part / n for name, part in parts.items()}


def _spans(processes: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the seconds in tasks, failed tasks, fetches, and tasks during fetches, by process."""
    columns = ["in_tasks_s", "erred_s", "fetching_s", "both_s"]
    if processes.empty:
        # A run without a profile may have millions of transfers.
        return pd.DataFrame(index=processes.index, columns=columns, dtype=float)
    fetches, tasks = _fetches_and_tasks(run)
    # What a task returns has a size.
    erred = Spans(run.tasks[(run.tasks["action"] == "compute") & (run.tasks["nbytes"] == 0)], _KEY)
    rows = []
    for process in processes[["started_at_s", "wall_s"]].itertuples():
        fetched, computed, failed = (
            spans.within(process.Index, process.started_at_s, process.wall_s)
            for spans in (fetches, tasks, erred)
        )
        fetching_s = divide(process.wall_s, fetched, computed[:0])[0]
        in_tasks_s, erred_s = ((each[:, 1] - each[:, 0]).sum() for each in (computed, failed))
        rows.append((in_tasks_s, erred_s, fetching_s, overlap_length(fetched, computed)))
    return pd.DataFrame(rows, index=processes.index, columns=columns, dtype=float)


def _fetches_and_tasks(run: Run) -> tuple[Spans, Spans]:
    tasks = run.tasks[run.tasks["action"] == "compute"]
    return Spans(run.transfers, [*_KEY[:3], "dst"]), Spans(tasks[~is_barrier(tasks)], _KEY)


def is_barrier(tasks: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the tasks that only wait until all bytes of a P2P shuffle have arrived."""
    names = tasks["name"]
    return names.isin([name for name in names.unique() if str(name).startswith("shuffle-barrier")])


def idle_demand(threads: pd.DataFrame) -> pd.Series[float]:
    """Return the cores that rows of ``Run.threads`` use or wait for in their idle periods.

    An event loop that sleeps between its turns may wait for a core before each of them if other
    programs use the cores. It wants no more than it uses.
    """
    waits_s = threads["idle_wait_seconds"]
    sleeps = (threads["role"] == "loop") & (waits_s > _TURN_WAIT_S * threads["idle_n_turns"])
    sleeps &= threads["idle_cpu_seconds"] < _SLEEPS * threads["idle_seconds"]
    wanted_s: pd.Series[float] = threads["idle_cpu_seconds"] + waits_s.mask(sleeps, 0.0)
    return wanted_s / threads["idle_seconds"]


def is_idle(threads: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the rows of ``Run.threads`` with an idle period in which no task ran."""
    windows = pd.MultiIndex.from_frame(threads[_KEY[:3]])
    works = (threads["role"] == "tasks") & (idle_demand(threads) > _WORKS)
    return (threads["idle_seconds"] > 0) & ~windows.isin(windows[works])


def _loop_accounts(
    wall_s: pd.Series[float], loop: pd.DataFrame, offload: pd.DataFrame, metrics: pd.DataFrame
) -> dict[str, pd.Series[float]]:
    coding = {name: metrics[name].fillna(0.0) for name in _LABELS}
    # Dask serializes large messages in the offload thread, but doesn't record which ones.
    both = coding["serialize_s"] + coding["deserialize_s"]
    on_loop = ((both - offload["cpu_seconds"].fillna(0.0)).clip(lower=0.0) / both).fillna(0.0)
    polled_s = _polling(wall_s, loop)
    on_core = _allocate(
        np.minimum(loop["cpu_seconds"], wall_s),
        {**{name: part * on_loop for name, part in coding.items()}, "poll_s": polled_s.fillna(0.0)},
        "messages_s",
    )
    left_s = (wall_s - sum(on_core.values())).clip(lower=0.0)
    parts = on_core | _allocate(left_s, {"loop_queue_s": loop["wait_seconds"]}, "asleep_s")
    return parts | {"poll_s": parts["poll_s"].where(polled_s.notna())}


def _polling(wall_s: pd.Series[float], loop: pd.DataFrame) -> pd.Series[float]:
    """Return the turns of each loop times the CPU time of an idle turn; nan if that is unknown.

    The limit is the time on a core that the idle loop would want in this time: a loop that sleeps
    when idle does not poll, regardless of the turns that messages take.
    """
    known = (loop["idle_n_turns"] > 0) & (loop["idle_seconds"] > 0)
    turn_s = loop["idle_cpu_seconds"] / loop["idle_n_turns"]
    return np.minimum(loop["n_turns"] * turn_s, idle_demand(loop) * wall_s).where(known)


def _allocate(
    total_s: pd.Series[float], claims: Mapping[str, pd.Series[float]], rest: str
) -> dict[str, pd.Series[float]]:
    """Allocate `total_s` to the claims in their order, and the remainder to `rest`."""
    parts = {}
    for name, claim_s in claims.items():
        parts[name] = np.minimum(claim_s.clip(lower=0.0), total_s)
        total_s = total_s - parts[name]
    return parts | {rest: total_s}


class Spans:
    """The spans of many processes and iterations, indexed by their key.

    Parameters
    ----------
    table
        A row per span, with ``start_s`` and ``stop_s``.
    key
        The columns that identify a group of spans.
    """

    def __init__(self, table: pd.DataFrame, key: list[str]) -> None:
        group = table.groupby(key, observed=True, sort=False).ngroup().to_numpy()
        order = grouping.sort_order(group)
        self._spans = table[["start_s", "stop_s"]].to_numpy(dtype=float)[order]
        first = grouping.starts(group[order])
        names = table[key].iloc[order[first]].itertuples(index=False, name=None)
        self._bounds = dict(zip(names, pairwise([*first.tolist(), len(table)]), strict=True))

    def within(self, key: tuple[Any, ...], began_s: float, seconds: float) -> Array:
        """Return the spans of `key`, clipped to a window, in seconds since its start.

        Returns
        -------
        ndarray
            Shape (n, 2): spans of positive length within [0, `seconds`].
        """
        begin, end = self._bounds.get(key, (0, 0))
        spans = np.clip(self._spans[begin:end] - began_s, 0.0, seconds)
        return np.asarray(spans[spans[:, 1] > spans[:, 0]])


def divide(seconds: float, first: Array, second: Array) -> tuple[float, float, float, float]:
    """Return the time in `first` only, in both, in `second` only and in neither.

    Parameters
    ----------
    seconds
        The length of the window, and the sum of the four parts.
    first, second
        Spans of positive length within [0, `seconds`], shape (n, 2).

    Examples
    --------
    >>> divide(10.0, np.array([[0.0, 4.0], [2.0, 5.0]]), np.array([[3.0, 9.0]]))
    (3.0, 2.0, 4.0, 1.0)
    """
    edges = np.unique(np.concatenate([[0.0, seconds], first.ravel(), second.ravel()]))
    lengths = np.diff(edges)
    one, two = _cover(first, edges[:-1]), _cover(second, edges[:-1])
    parts = (one & ~two, one & two, ~one & two, ~one & ~two)
    return tuple(float(lengths[part].sum()) for part in parts)  # type: ignore[return-value]


def overlap_length(first: Array, second: Array) -> float:
    """Return the total length of the spans in `second` that spans in `first` cover.

    Parameters
    ----------
    first, second
        Spans of positive length, shape (n, 2). Overlapping spans in `second` all count.

    Examples
    --------
    >>> overlap_length(np.array([[0.0, 4.0], [2.0, 5.0]]), np.array([[3.0, 9.0], [4.0, 6.0]]))
    3.0
    """
    if len(first) == 0 or len(second) == 0:
        return 0.0
    edges = np.unique(first.ravel())
    covered = np.concatenate([[0.0], np.cumsum(np.diff(edges) * _cover(first, edges[:-1]))])
    until = np.interp(second, edges, covered)
    return float((until[:, 1] - until[:, 0]).sum())


def _cover(spans: Array, at: Array) -> Array:
    """Return whether any of `spans` covers the time just after each of these times."""
    begun, ended = (np.searchsorted(np.sort(ends), at, side="right") for ends in spans.T)
    return np.asarray(begun > ended)

"""How the wall time of an iteration divides, per worker: its task threads and its event loop.

The two run side by side, so each has an account of its own that adds up to the wall time. Each
part is capped by what is left of its account when its turn comes, the best known first, so that
none is negative; what nobody claims is the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from commbench.stats.intervals import divide, shared, spans_in
from commbench.stats.selection import in_suite_order, measured

if TYPE_CHECKING:
    import pandas as pd

    from commbench.store import RunData

TASK_PARTS = ("compute_s", "other_cpu_s", "queue_s", "blocked_s", "data_s", "idle_s")
LOOP_PARTS = ("serialize_s", "deserialize_s", "poll_s", "messages_s", "loop_queue_s", "asleep_s")

_KEY = ["case_id", "launch", "iteration", "worker"]
_EXTRA = ("other_threads_s", "gil_s")
_NO_TASKS = ("scheduler", "client")
_LOOP_CONTEXTS = ("gather-dep", "get-data")
_LABELS = {
    "serialize_s": ("serialize", "compress"),
    "deserialize_s": ("deserialize", "decompress"),
}


def worker_profiles(run: RunData) -> pd.DataFrame:
    """Divide the wall time of every measured iteration, per process.

    Returns
    -------
    DataFrame
        One row per case, launch, iteration and ``worker`` (a worker's name, ``scheduler`` or
        ``client``), with ``workload``, ``backend``, ``wall_s`` and seconds of it:

        - of an average task thread (nan for scheduler and client): ``compute_s`` on a core in a
          task, ``other_cpu_s`` on a core besides, ``queue_s`` ready but without a core,
          ``blocked_s`` in a task but asleep (the GIL, locks, I/O), ``data_s`` without a task while
          a fetch was under way, ``idle_s`` the rest;
        - of the event loop's thread: ``serialize_s`` and ``deserialize_s``, ``poll_s`` turns at
          the price of an idle turn (nan where turns can't be counted), ``messages_s`` the rest
          of its time on a core, ``loop_queue_s`` ready but without a core, ``asleep_s`` the rest;
        - ``other_threads_s``: time on a core of all other threads of the process; ``gil_s``:
          time in which a thread that asked for the GIL would have waited (nan without gilknocker).
    """
    import pandas as pd

    windows = measured(run).drop_duplicates(_KEY[:3])
    processes = run.threads[_KEY].drop_duplicates().merge(
        windows[[*_KEY[:3], "workload", "backend", "started_at_s", "seconds"]], on=_KEY[:3]
    )  # fmt: skip
    threads = _by_process(run.threads)
    activities = _by_process(run.activities)
    fetches = _by_process(run.transfers.rename(columns={"dst": "worker"}))
    tasks = _by_process(run.tasks[run.tasks.action == "compute"])
    rows = []
    for window in processes.itertuples():
        place = (window.case_id, window.launch, window.iteration, window.worker)
        roles = {row.role: row for row in threads[place].itertuples()}
        metrics = activities.get(place)
        row = dict(zip(_KEY, place, strict=True)) | {
            "workload": window.workload, "backend": window.backend, "wall_s": window.seconds,
        }  # fmt: skip
        if window.worker not in _NO_TASKS and "tasks" in roles:
            spans = [
                spans_in(table.get(place), window.started_at_s, window.seconds)
                for table in (fetches, tasks)
            ]
            row |= _task_account(window.seconds, roles["tasks"], metrics, *spans)
        if "loop" in roles:
            row |= _loop_account(window.seconds, roles, metrics)
        row["other_threads_s"] = sum(
            thread.cpu_seconds for role, thread in roles.items() if role not in ("loop", "tasks")
        )
        if metrics is not None and (metrics.context == "gil").any():
            row["gil_s"] = _total(metrics, ("gil",), ("contention",))
        rows.append(row)
    columns = [*_KEY, "workload", "backend", "wall_s", *TASK_PARTS, *LOOP_PARTS, *_EXTRA]
    return pd.DataFrame(rows, columns=columns)


def profile_shares(profiles: pd.DataFrame, run: RunData) -> pd.DataFrame:
    """Return what share of the wall time each part has, per case and kind of process.

    Parameters
    ----------
    profiles
        What ``worker_profiles`` returns.

    Returns
    -------
    DataFrame
        One row per case and ``process`` (``workers``, ``scheduler`` or ``client``) with
        ``workload``, ``backend``, ``n_iterations`` (of one process each) and for every part
        Σ part / Σ wall time, without the ``_s`` of its name. Shares of one account add up to 1.
    """
    parts = [*TASK_PARTS, *LOOP_PARTS, *_EXTRA]
    process = profiles["worker"].where(profiles["worker"].isin(_NO_TASKS), "workers")
    group = [*_KEY[:1], "workload", "backend", "process"]
    grouped = profiles.assign(process=process).groupby(group, sort=False)
    sums = grouped[parts].sum(min_count=1).div(grouped["wall_s"].sum(), axis=0)
    sums = sums.rename(columns={name: name.removesuffix("_s") for name in parts})
    table = sums.assign(n_iterations=grouped.size()).reset_index()
    rank = table["process"].map({"workers": 0, "scheduler": 1, "client": 2})
    return in_suite_order(table.assign(_rank=rank), run, ["_rank"]).drop(columns="_rank")


def _by_process(table: pd.DataFrame) -> Mapping[Any, pd.DataFrame]:
    return dict(iter(table.groupby(_KEY)))


def _task_account(
    wall_s: float, threads: Any, metrics: pd.DataFrame | None, fetches: Any, tasks: Any
) -> dict[str, float]:
    n, cpu_s, queue_s = threads.n_threads, threads.cpu_seconds, threads.wait_seconds
    compute_s = min(cpu_s, _computing(metrics))
    in_tasks_s = float((tasks[:, 1] - tasks[:, 0]).sum())
    fetching_s = divide(wall_s, fetches, tasks[:0])[0]
    parts = _shared_out(
        n * wall_s,
        {
            "compute_s": compute_s,
            "other_cpu_s": cpu_s - compute_s,
            "queue_s": queue_s,
            "blocked_s": in_tasks_s - compute_s - queue_s,
            "data_s": n * fetching_s - shared(fetches, tasks),
        },
        "idle_s",
    )
    return {name: part / n for name, part in parts.items()}


def _computing(metrics: pd.DataFrame | None) -> float:
    if metrics is None:
        return 0.0
    mine = metrics[metrics.context == "execute"]
    # thread-cpu, and the P2P shuffle's own, which Dask takes out of it.
    on_core = mine.label.str.endswith("-cpu")
    return float(mine.seconds[on_core].sum())


def _loop_account(
    wall_s: float, roles: Mapping[str, Any], metrics: pd.DataFrame | None
) -> dict[str, float]:
    loop = roles["loop"]
    offloaded_s = roles["offload"].cpu_seconds if "offload" in roles else 0.0
    coding = {name: _total(metrics, _LOOP_CONTEXTS, labels) for name, labels in _LABELS.items()}
    # Dask serializes large messages in a thread of their own; which ones is not told.
    both = sum(coding.values())
    on_loop = max(0.0, both - offloaded_s) / both if both > 0 else 0.0
    polled_s = _polling(wall_s, loop)
    on_core = _shared_out(
        min(loop.cpu_seconds, wall_s),
        {**{name: part * on_loop for name, part in coding.items()}, "poll_s": polled_s or 0.0},
        "messages_s",
    )
    left_s = max(0.0, wall_s - sum(on_core.values()))
    parts = on_core | _shared_out(left_s, {"loop_queue_s": loop.wait_seconds}, "asleep_s")
    return parts if polled_s is not None else parts | {"poll_s": float("nan")}


def _polling(wall_s: float, loop: Any) -> float | None:
    """Return the CPU time of as many idle turns as the loop made, None where that is unknown.

    No more than what the idle loop asks for in that time: a loop that sleeps when idle does not
    poll, however many turns its messages take.
    """
    if loop.idle_n_turns == 0 or loop.idle_seconds <= 0:
        return None
    turn_s = loop.idle_cpu_seconds / loop.idle_n_turns
    asked = (loop.idle_cpu_seconds + loop.idle_wait_seconds) / loop.idle_seconds
    return float(min(loop.n_turns * turn_s, asked * wall_s))


def _total(
    metrics: pd.DataFrame | None, contexts: tuple[str, ...], labels: tuple[str, ...]
) -> float:
    if metrics is None:
        return 0.0
    wanted = metrics.context.isin(contexts) & metrics.label.isin(labels)
    return float(metrics.seconds[wanted].sum())


def _shared_out(total_s: float, claims: Mapping[str, float], rest: str) -> dict[str, float]:
    """Give each claim what it asks for, as far as `total_s` goes, and the rest to `rest`."""
    parts = {}
    for name, claim_s in claims.items():
        parts[name] = min(max(0.0, claim_s), total_s)
        total_s -= parts[name]
    return parts | {rest: total_s}

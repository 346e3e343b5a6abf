"""What commbench sets up on a cluster to measure it, and takes away again where that lives on.

A cluster that ends with its launch keeps its plugins. One that is only visited gets all of it
back: by the launch itself at its end, and, where that was killed, by the scheduler, which sees its
client go.

Where the threads spend an iteration is known from readings of counters around its window. Nothing
is sampled and nothing runs within the window but a count of the event loops' turns, one short
Python call a turn. What is read just before and just after it:

- the kernel's time on a core and in the run queue of every thread (``schedstat``), by the client,
  closest to the window;
- the turns of the event loops and the totals of Dask's fine performance metrics, by each process
  itself.

Two more readings, when all is collected, tell what the same threads do while nothing is asked of
them. A process on another host reads the times of its threads itself, with the other counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from distributed import Worker
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from commbench.errors import LaunchError
from commbench.launchers.base import RunningCluster
from commbench.machine import cores
from commbench.model import Activity, Launch, ThreadTime

IDLE_SECONDS = 0.1
_TASK_STREAM = "task-stream"
_ROLES = {"Dask-Default-Threads": "tasks", "Dask-Offload": "offload"}
_SECONDS = "seconds"
_FREE_SECONDS = 10.0


class _Cleaner(SchedulerPlugin):  # type: ignore[misc]
    """Knows what a client brought, and takes it away when that client is gone."""

    name = "commbench-cleaner"

    def __init__(self, client: str, worker_plugins: tuple[str, ...], scheduler: Any) -> None:
        self.client, self.worker_plugins = client, worker_plugins
        stream = scheduler.plugins.get(_TASK_STREAM)
        self.had_task_stream = stream is not None
        self.n_tasks_kept = stream.buffer.maxlen if stream is not None else None

    def remove_client(self, scheduler: Any, client: str) -> None:
        from tornado.ioloop import IOLoop

        if client == self.client:
            IOLoop.current().add_callback(uninstall, scheduler)


class _Uncounted(WorkerPlugin):  # type: ignore[misc]
    """Ends the count of a worker's turns, where that goes on."""

    name = "commbench-uncounted"

    def teardown(self, worker: Any) -> None:
        del worker
        stop()


@contextmanager
def installed(cluster: RunningCluster, *plugins: WorkerPlugin) -> Iterator[None]:
    """Have the worker `plugins` on `cluster`, and the cluster as it was afterwards if it lives on.

    Raises
    ------
    LaunchError
        Where another commbench is measuring it.
    """
    client = cluster.client
    if not cluster.preexisting:
        for plugin in plugins:
            client.register_plugin(plugin)
        yield
        return
    plugins = (*plugins, _Uncounted())
    deadline = time.monotonic() + _FREE_SECONDS
    while not client.run_on_scheduler(_claim, client.id, tuple(each.name for each in plugins)):
        if time.monotonic() > deadline:
            raise LaunchError(
                "another commbench is measuring this cluster; wait until it has ended"
            )
        time.sleep(0.1)
    try:
        for plugin in plugins:
            client.register_plugin(plugin)
        # Connections from before would not be counted: they have told no names.
        client.run(_close_idle)
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            client.run_on_scheduler(uninstall)
        raise
    client.run_on_scheduler(uninstall)


def _claim(client: str, worker_plugins: tuple[str, ...], dask_scheduler: Any) -> bool:
    """Let a cleaner stand ready on the scheduler, unless another client's does."""
    if _Cleaner.name in dask_scheduler.plugins:
        return False
    dask_scheduler.add_plugin(_Cleaner(client, worker_plugins, dask_scheduler))
    return True


async def uninstall(dask_scheduler: Any) -> None:
    """Take everything away that the client of the cleaner brought; runs on the scheduler."""
    cleaner = dask_scheduler.plugins.get(_Cleaner.name)
    if cleaner is None:
        return
    for name in cleaner.worker_plugins:
        if name in dask_scheduler.worker_plugins:
            await dask_scheduler.unregister_worker_plugin(None, name=name)
    stop()
    stream = dask_scheduler.plugins.get(_TASK_STREAM)
    if cleaner.had_task_stream:
        stream.buffer = deque(stream.buffer, cleaner.n_tasks_kept)
    elif stream is not None:
        dask_scheduler.remove_plugin(name=_TASK_STREAM)
    # Last: until then no other may begin.
    if _Cleaner.name in dask_scheduler.plugins:
        dask_scheduler.remove_plugin(name=_Cleaner.name)


def _close_idle(dask_worker: Any) -> None:
    dask_worker.rpc.collect()


class TurnCounter:
    """Counts the turns of an event loop of asyncio's by the calls of its selector.

    Loops that have no such selector (uvloop's) are left alone: their count stays 0.
    """

    def __init__(self, loop: Any) -> None:
        self.n_turns = 0
        self._selector = getattr(loop, "_selector", None)
        if self._selector is None:
            return
        select = self._selector.select

        def counted(timeout: float | None = None) -> Any:
            self.n_turns += 1
            return select(timeout)

        self._selector.select = counted

    def close(self) -> None:
        """Give the loop its own selector back."""
        if self._selector is not None:
            del self._selector.select


_counters: dict[int, TurnCounter] = {}
"""The counter of each event loop of this process, by the loop's thread."""


def start() -> None:
    """Begin to count the turns of the event loop that this runs in."""
    ident = threading.get_native_id()
    if ident not in _counters:
        _counters[ident] = TurnCounter(asyncio.get_running_loop())


def stop() -> None:
    """End what ``start`` began; runs in the same event loop."""
    counter = _counters.pop(threading.get_native_id(), None)
    if counter is not None:
        counter.close()


def read(dask_worker: Any = None) -> str:
    """Return this process's counters as JSON; runs in the thread of its event loop.

    Returns
    -------
    {"pid": int, "clock": s, "n_turns": int, "n_task_threads": int,
    "roles": {thread id: role}, "totals": [[context, label, s], ...]}
        The roles are those of the threads that Python knows.
    """
    # Dask hands a scheduler over by the same name.
    worker = dask_worker if isinstance(dask_worker, Worker) else None
    own = threading.get_native_id()
    counter = _counters.get(own)
    return json.dumps(
        {
            "pid": os.getpid(),
            "clock": time.perf_counter(),
            "n_turns": counter.n_turns if counter is not None else 0,
            "n_task_threads": worker.state.nthreads if worker is not None else 0,
            "roles": {
                thread.native_id: "loop" if thread.native_id == own else _role(thread.name)
                for thread in threading.enumerate()
            },
            "totals": list(_totals(worker)) if worker is not None else [],
        }
    )


def read_all(dask_worker: Any = None) -> str:
    """Return what ``read`` does, and ``"times"``, those of this process's own threads."""
    return json.dumps({**json.loads(read(dask_worker)), "times": cores.thread_seconds()})


def _role(name: str) -> str:
    return next((role for part, role in _ROLES.items() if part in name), "other")


def _totals(worker: Any) -> Iterator[tuple[str, str, float]]:
    sums: dict[tuple[str, str], float] = {}
    for key, value in worker.digests_total.items():
        if not isinstance(key, tuple) or key[-1] != _SECONDS:
            continue
        # ("p2p", span, where, label, unit), and others without span or where.
        where = f"{key[2]} " if key[0] == "p2p" and len(key) > 4 else ""
        place = (str(key[0]), f"{where}{key[-2]}")
        sums[place] = sums.get(place, 0.0) + value
    monitor = worker.monitor
    if monitor.monitor_gil_contention:
        monitor.update()
        sums["gil", "contention"] = monitor.cumulative_gil_contention
    for (context, label), value in sums.items():
        yield context, label, value


class Profiler:
    """Reads the counters of all processes of a cluster, before and after an iteration."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._read = read_all if cluster.remote_members else read
        self._ask(start)

    def close(self) -> None:
        """Take the counters out of the event loops."""
        self._ask(stop)

    def begin(self) -> None:
        """Read the counters; the window begins when this returns."""
        self._before = self._readings(kernel_first=False)

    def end(self) -> None:
        """Read the counters; the window ended when this was called."""
        self._after = self._readings(kernel_first=True)

    def records(self, launch: Launch, iteration: int) -> Iterator[ThreadTime | Activity]:
        """Let the cluster idle for a moment, and yield what all the counters have to say."""
        idle_before = self._readings(kernel_first=False)
        time.sleep(IDLE_SECONDS)
        idle_after = self._readings(kernel_first=True)
        common: dict[str, Any] = {
            "case_id": launch.case.id, "launch": launch.index, "iteration": iteration,
        }  # fmt: skip
        for name, after in self._after.items():
            before = self._before[name]
            seconds, roles = _spent(before, after)
            idle_seconds, idle = _spent(idle_before[name], idle_after[name])
            for role, (n_threads, cpu_seconds, wait_seconds, n_turns) in roles.items():
                _, idle_cpu_seconds, idle_wait_seconds, idle_n_turns = idle.get(role, _NOTHING)
                yield ThreadTime(
                    **common, worker=name, role=role, n_threads=n_threads, seconds=seconds,
                    cpu_seconds=cpu_seconds, wait_seconds=wait_seconds, n_turns=n_turns,
                    idle_seconds=idle_seconds, idle_cpu_seconds=idle_cpu_seconds,
                    idle_wait_seconds=idle_wait_seconds, idle_n_turns=idle_n_turns,
                )  # fmt: skip
            totals = {(context, label): value for context, label, value in before.told["totals"]}
            for context, label, value in after.told["totals"]:
                seconds = value - totals.get((context, label), 0.0)
                if seconds > 0:
                    yield Activity(
                        **common, worker=name, context=context, label=label, seconds=seconds
                    )

    def _readings(self, *, kernel_first: bool) -> dict[str, _Reading]:
        """Read all counters, those of the kernel first or last: next to the window."""
        times = self._times() if kernel_first else {}
        answers = self._ask(self._read)
        times = times or self._times()
        cluster = self._cluster
        elsewhere = {cluster.names.get(member, member) for member in cluster.remote_members}
        readings = {}
        for name, answer in answers.items():
            row = json.loads(answer)
            # Another host may use the same id for another process.
            if name in elsewhere:
                by_thread = {int(tid): tuple(spent) for tid, spent in row["times"].items()}
                readings[name] = _Reading(row, row["clock"], by_thread)
            else:
                readings[name] = _Reading(row, *times.get(row["pid"], (row["clock"], {})))
        return readings

    def _times(self) -> dict[int, tuple[float, _Times]]:
        return {pid: (time.perf_counter(), cores.thread_seconds(pid)) for pid in self._cluster.pids}

    def _ask(self, function: Any) -> dict[str, Any]:
        client, names = self._cluster.client, self._cluster.names

        async def here() -> Any:
            return function()

        return {
            "scheduler": client.run_on_scheduler(function),
            "client": client.sync(here),
            **{names[address]: row for address, row in client.run(function).items()},
        }


_Times = dict[int, tuple[float, float]]
_NOTHING = (0, 0.0, 0.0, 0)


class _Reading(NamedTuple):
    """What one process told, and what the kernel told of its threads at `clock`."""

    told: dict[str, Any]
    clock: float
    times: _Times


def _spent(
    before: _Reading, after: _Reading
) -> tuple[float, dict[str, tuple[int, float, float, int]]]:
    """Return the time between two readings, and what the threads of each role did in it.

    That is by role: how many threads, how long on a core and waiting for one, and their turns.
    """
    seconds = after.clock - before.clock
    roles: dict[str, tuple[int, float, float, int]] = {}
    known = {int(tid): role for tid, role in after.told["roles"].items()}
    # A process tells of its turns a little before and after the window, not at its edges.
    pace = (after.told["n_turns"] - before.told["n_turns"]) / (
        after.told["clock"] - before.told["clock"]
    )
    for tid, (cpu_s, wait_s) in after.times.items():
        role = known.get(tid, "native")
        # A thread that began within the window has all of its time in it.
        cpu_before_s, wait_before_s = before.times.get(tid, (0.0, 0.0))
        n_threads, cpu_sum_s, wait_sum_s, _ = roles.get(role, _NOTHING)
        roles[role] = (
            n_threads + 1,
            cpu_sum_s + max(0.0, cpu_s - cpu_before_s),
            wait_sum_s + max(0.0, wait_s - wait_before_s),
            round(pace * seconds) if role == "loop" else 0,
        )
    if after.times and (n_task_threads := after.told["n_task_threads"]):
        # Those that no task has needed yet don't exist, and are as idle as the others.
        roles["tasks"] = (n_task_threads, *roles.get("tasks", _NOTHING)[1:])
    return seconds, roles

"""Install plugins on a cluster, and profile its threads.

Plugins are uninstalled from clusters that were running before: by the launch at its end or, if it
was killed, by the scheduler when its client disconnects.

The profile comes from readings of counters around an iteration. Nothing is sampled here. During the
iteration each turn of an event loop is counted, by a short Python call, and each task reads its
thread's time in the run queue when it starts, secedes, rejoins and ends. Just before and after an
iteration these are read:

- every thread's time on a core and in the run queue (``schedstat``), by the client, closest to the
  iteration;
- the turns of the event loops and the totals of Dask's fine performance metrics, by each process.

Two further readings, when all records are collected, measure the idle threads. A process on another
host reads the times of its threads, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import mmap
import os
import resource
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from distributed import Worker, threadpoolexecutor
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.threadpoolexecutor import ThreadPoolExecutor

from commbench.errors import LaunchError
from commbench.harness import p2p, transfer_log, wire
from commbench.harness.measure import record_keys
from commbench.harness.measure.conditions import scheduler_offset
from commbench.launchers.launcher import RunningCluster
from commbench.machine import cores
from commbench.machine.cores import WaitClock, cpu_seconds, thread_seconds
from commbench.model import Launch
from commbench.model.observed import Activity, LongTurn, ProcessUse, Record, ThreadTime

IDLE_SECONDS = 0.1
TASK_STREAM = "commbench-task-stream"
"""The name of a task stream of commbench's, as dashboards and clients use Dask's."""
_ROLES = {"Dask-Default-Threads": "tasks", "Dask-Offload": "offload", "Dask-Actor": "actors"}
_SECONDS = "seconds"
_QUEUE = "run-queue"
"""The metric of tasks' waits for a core."""
_FREE_SECONDS = 10.0
_LAUNCH = "a launch"
_LONG_TURN_S = 0.1
_MAX_LONG_TURNS = 1000
"""The long turns of a region that are recorded one by one."""
_TICK_S = 0.01
"""The longest time after which the kernel brings a running thread's time on a core up to date."""
_CPU_CLOCK_S = 0.01
"""The error of the CPU time of a long turn, at most."""
_N_PAGES = 1024
"""The pages for which the time of a page fault is measured."""
_WIRE_METER = wire.WireMeter.name


class _Cleaner(SchedulerPlugin):  # type: ignore[misc]
    """Uninstalls a client's plugins when the client disconnects, and names workers that join."""

    name = "commbench-cleaner"

    def __init__(self, client: str, plugins: tuple[str, ...]) -> None:
        self.client, self.plugins = client, plugins
        self.joined: dict[str, str] = {}

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.joined[worker] = str(scheduler.workers[worker].name)

    def remove_client(self, scheduler: Any, client: str) -> None:
        from tornado.ioloop import IOLoop

        if client == self.client:
            IOLoop.current().add_callback(uninstall, client, scheduler)


class _Uncounted(WorkerPlugin):  # type: ignore[misc]
    """Stops counting event loop turns when it is unregistered from a worker."""

    name = "commbench-uncounted"

    def teardown(self, worker: Any) -> None:
        del worker
        stop()


def meters(cluster: RunningCluster) -> list[WorkerPlugin]:
    """Return new plugins that log transfers, and those of ``wire_meters``."""
    return [transfer_log.TransferLog(), p2p.BatchLog(), *wire_meters(cluster)]


def wire_meters(cluster: RunningCluster) -> list[WorkerPlugin]:
    """Return a new plugin that counts bytes, or none if workers share their process."""
    return [] if cluster.shares_processes else [wire.WireMeter()]


@contextmanager
def installed(cluster: RunningCluster, *plugins: WorkerPlugin | SchedulerPlugin) -> Iterator[None]:
    """Install plugins on `cluster`; uninstall them at the end if it was running before.

    Raises
    ------
    LaunchError
        If another commbench is measuring it.
    """
    client = cluster.client
    if not cluster.preexisting:
        for plugin in plugins:
            client.register_plugin(plugin)
        yield
        return
    plugins = (*plugins, _Uncounted())
    deadline = time.monotonic() + _FREE_SECONDS
    names = tuple(each.name for each in plugins)
    while owner := client.run_on_scheduler(_claim, client.id, names):
        if owner in (client.id, _LAUNCH):
            raise LaunchError(
                "this code is being measured already, by commbench run, profile or diagnose; leave "
                "commbench.profile out of it, or name the part: with run.region(name)"
            )
        if time.monotonic() > deadline:
            raise LaunchError(
                "another commbench is measuring this cluster; wait until it has ended"
            )
        time.sleep(0.1)
    try:
        for plugin in plugins:
            # A worker that leaves is no error; the scheduler has asked all others.
            with contextlib.suppress(OSError):
                client.register_plugin(plugin)
        client.run(wire.introduce, list(cluster.names))
        yield
    finally:
        # The cluster may be gone by now.
        if client.status == "running":
            with contextlib.suppress(Exception):
                client.run_on_scheduler(uninstall, client.id)


def _claim(client: str, plugins: tuple[str, ...], dask_scheduler: Any) -> str:
    """Add a cleaner to the scheduler and return "", or who measures it: a client, or `_LAUNCH`."""
    if cleaner := dask_scheduler.plugins.get(_Cleaner.name):
        return str(cleaner.client)
    if dask_scheduler.worker_plugins.keys() & {*plugins}:
        return _LAUNCH
    dask_scheduler.add_plugin(_Cleaner(client, plugins))
    return ""


async def uninstall(client: str, dask_scheduler: Any) -> None:
    """Uninstall all plugins of `client`; runs on the scheduler."""
    cleaner = dask_scheduler.plugins.get(_Cleaner.name)
    if cleaner is not None and cleaner.client != client:
        # It was disconnected, and another one is measuring.
        return
    stop()
    if cleaner is None:
        return
    for name in (*cleaner.plugins, TASK_STREAM):
        if dask_scheduler.plugins.get(_Cleaner.name) is not cleaner:
            # Another call has ended, and another client may be measuring.
            return
        if name in dask_scheduler.worker_plugins:
            with contextlib.suppress(OSError):
                await dask_scheduler.unregister_worker_plugin(None, name=name)
        elif name in dask_scheduler.plugins:
            dask_scheduler.remove_plugin(name=name)
    # This comes last, because it allows other clients to measure.
    if dask_scheduler.plugins.get(_Cleaner.name) is cleaner:
        dask_scheduler.remove_plugin(name=_Cleaner.name)


def is_installed(client: str, dask_scheduler: Any) -> bool:
    """Return whether the plugins of `client` are installed: not if it was disconnected."""
    cleaner = dask_scheduler.plugins.get(_Cleaner.name)
    return cleaner is not None and cleaner.client == client


def joined(dask_scheduler: Any) -> dict[str, str]:
    """Return the names by address of workers that joined since plugins were installed."""
    return getattr(dask_scheduler.plugins.get(_Cleaner.name), "joined", {})


class TurnCounter:
    """Counts the turns of an asyncio event loop, by the calls of its selector.

    Those of at least ``_LONG_TURN_S``, in which the loop does nothing else, are ``n_long``, for
    ``long_seconds``, of which ``long_cpu_seconds`` are on a core; ``long_turns`` has the begin and
    end of the last ones, in seconds since the epoch, and their seconds on a core. Loops without
    such a selector (uvloop) have none.
    """

    def __init__(self, loop: Any) -> None:
        self.n_turns, self.n_long, self.long_seconds, self.long_cpu_seconds = 0, 0, 0.0, 0.0
        self.long_turns: deque[tuple[float, float, float]] = deque(maxlen=_MAX_LONG_TURNS)
        self._n_seen: dict[str, int] = {}
        self.name = uuid.uuid4().hex
        self._selector = getattr(loop, "_selector", None)
        if self._selector is None:
            return
        select, clock, cpu_clock = self._selector.select, time.perf_counter, time.thread_time
        selected, read_at, read_cpu = math.inf, 0.0, 0.0

        def counted(timeout: float | None = None) -> Any:
            nonlocal selected, read_at, read_cpu
            self.n_turns += 1
            if (seconds := clock() - selected) >= _LONG_TURN_S:
                cpu_seconds = min(seconds, cpu_clock() - read_cpu)
                self.n_long += 1
                self.long_seconds += seconds
                self.long_cpu_seconds += cpu_seconds
                ended_at_s = time.time()
                self.long_turns.append((ended_at_s - seconds, ended_at_s, cpu_seconds))
            events = select(timeout)
            selected = clock()
            # It takes ten times as long as the other clock.
            if selected - read_at > _CPU_CLOCK_S:
                read_at, read_cpu = selected, cpu_clock()
            return events

        self._selector.select = counted

    def new_turns(self, reader: str) -> list[tuple[float, float, float]]:
        """Return the last long turns since the last call of a reader; none at its first one."""
        n_new = self.n_long - self._n_seen.get(reader, self.n_long)
        self._n_seen[reader] = self.n_long
        return [*self.long_turns][-n_new:] if n_new else []

    def close(self) -> None:
        """Restore the loop's selector."""
        if self._selector is not None:
            del self._selector.select


class QueueCounter:
    """Sums the seconds that the threads of an executor wait for a core while they run tasks.

    ``seconds`` is nan if the kernel doesn't count them, or if tasks don't run in threads.
    """

    def __init__(self, executor: Any) -> None:
        self.seconds = math.nan
        self._executor = executor
        if not isinstance(executor, ThreadPoolExecutor):
            return
        self._clock = WaitClock()
        if not math.isnan(self._waited_s()):
            self.seconds = self._seceded_s = 0.0
            self._read_at = time.perf_counter()
            self._thread = threading.local()
            # Tasks of several threads end at the same time.
            self._lock = threading.Lock()
            self._submit, self._adjust = executor.submit, executor._adjust_thread_count
            executor.submit, executor._adjust_thread_count = self._counted, self._adjusted

    def seceded_seconds(self) -> float:
        """Return for how long tasks slept outside the executor's threads, once they are back.

        These tasks have called ``secede``, as ``worker_client`` and ``compute`` in a task do. Of
        each, what was before the last call is left out: it was in another window.
        """
        self._read_at = time.perf_counter()
        return self._seceded_s

    def _counted(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            before_s = self._waited_s()
            try:
                return function(*args, **kwargs)
            finally:
                waited_s = self._waited_s() - before_s
                self._end_seceded()
                if not math.isnan(waited_s):
                    with self._lock:
                        self.seconds += waited_s

        # A task that rejoins submits an empty one, and waits until a thread leaves the executor.
        with self._executor._rejoin_lock:
            rejoining = dict(self._executor._rejoin_list).get(threading.current_thread())
        future = self._submit(run)
        if rejoining is None:
            self._end_seceded()
        else:
            wait = rejoining.wait

            def rejoined() -> None:
                wait()
                self._end_seceded()

            rejoining.wait = rejoined
        return future

    def _adjusted(self) -> None:
        state = threadpoolexecutor.thread_state
        # A task that secedes asks for another thread.
        if getattr(state, "executor", None) is self._executor and not state.proceed:
            now = time.perf_counter(), time.thread_time() + self._waited_s()
            vars(self._thread).setdefault("seceded", now)
        self._adjust()

    def _end_seceded(self) -> None:
        if (seceded := vars(self._thread).pop("seceded", None)) is None:
            return
        (since, busy_before_s), now = seceded, time.perf_counter()
        asleep_s = now - since - (time.thread_time() + self._waited_s() - busy_before_s)
        if now > since and not math.isnan(asleep_s):
            share = (now - max(since, self._read_at)) / (now - since)
            with self._lock:
                self._seceded_s += max(0.0, asleep_s * share)

    def _waited_s(self) -> float:
        # A process may have no descriptor left, which must not cost a task.
        try:
            return self._clock.seconds()
        except (OSError, IndexError, ValueError):
            return math.nan

    def close(self) -> None:
        """Restore the executor."""
        if not math.isnan(self.seconds):
            del self._executor.submit, self._executor._adjust_thread_count


class PageFaultCounter:
    """Sums the seconds of this process's minor page faults: their number × the time of one.

    That is measured now, as the time to write to fresh pages and to give them back, the shortest of
    three.
    """

    def __init__(self) -> None:
        seconds = []
        for _ in range(3):
            with mmap.mmap(-1, _N_PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE) as memory:
                # A huge page is a single fault. Some kernels have none.
                with contextlib.suppress(OSError):
                    memory.madvise(mmap.MADV_NOHUGEPAGE)
                # The thread may have to wait for a core.
                began = time.thread_time()
                memory[:: mmap.PAGESIZE] = bytes(_N_PAGES)
            seconds.append(time.thread_time() - began)
        self._seconds_each = min(seconds) / _N_PAGES

    @property
    def seconds(self) -> float:
        """The seconds since the process began."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt * self._seconds_each


_COUNTERS = "commbench_counters"
"""The attribute of an event loop with its counters; functions sent by value share no globals."""


def start(dask_worker: Any = None) -> None:
    """Start counting the turns of the running event loop, and the waits of its worker's tasks."""
    loop = asyncio.get_running_loop()
    if not hasattr(loop, _COUNTERS):
        executor = dask_worker.executors["default"] if isinstance(dask_worker, Worker) else None
        counters = (TurnCounter(loop), QueueCounter(executor), PageFaultCounter())
        setattr(loop, _COUNTERS, counters)


def stop() -> None:
    """Stop counting; runs in the same event loop as ``start``."""
    # The counter of page faults has changed nothing.
    for counter in vars(asyncio.get_running_loop()).pop(_COUNTERS, ())[:2]:
        counter.close()


def read(times: bool, reader: str = "", dask_worker: Any = None) -> str:
    """Return this process's counters as JSON; runs in the event loop's thread.

    Returns
    -------
    {"pid": int, "counted_by": str, "clock": s, "cpu": s, "delay": s, "n_turns": int,
    "n_long": int, "long_seconds": s, "long_cpu_seconds": s, "long_turns": [[s, s, s], ...],
    "n_task_threads": int,
    "roles": {thread id: role}, "totals": [[context, label, s], ...],
    "times": {thread id: [s, s]}}
        What has to be added to this process's clock to have the scheduler's is ``delay``. The
        ``long_turns`` are those since the last call of this `reader`; without one there are none.
        The roles of Python's threads, and if `times`, those of ``thread_seconds``.
    """
    # Dask may pass a scheduler by this name.
    worker = dask_worker if isinstance(dask_worker, Worker) else None
    thread_id = threading.get_native_id()
    roles = {thread.native_id: _role(thread.name) for thread in threading.enumerate()}
    roles |= {thread.native_id: "shuffle" for thread in _shuffle_threads(worker)}
    roles[thread_id] = "loop"
    # A thread that is about to start.
    roles.pop(None, None)
    turns, queue, faults = getattr(asyncio.get_running_loop(), _COUNTERS, (None, None, None))
    return json.dumps(
        {
            "pid": os.getpid(),
            "counted_by": turns.name if turns is not None else "",
            "clock": time.perf_counter(),
            "cpu": time.process_time(),
            "delay": worker.scheduler_delay if worker is not None else 0.0,
            "n_turns": turns.n_turns if turns is not None else 0,
            "n_long": turns.n_long if turns is not None else 0,
            "long_seconds": turns.long_seconds if turns is not None else 0.0,
            "long_cpu_seconds": turns.long_cpu_seconds if turns is not None else 0.0,
            "long_turns": turns.new_turns(reader) if turns is not None and reader else [],
            "n_task_threads": worker.state.nthreads if worker is not None else 0,
            "roles": roles,
            "totals": _totals(worker, queue, faults) if worker is not None else [],
            "times": thread_seconds() if times else {},
        }
    )


def _role(name: str) -> str:
    return next((role for part, role in _ROLES.items() if part in name), "other")


def _shuffle_threads(worker: Any) -> list[threading.Thread]:
    """Return the threads in which P2P shuffles write, read and split what they receive."""
    plugin = worker.plugins.get("shuffle") if worker is not None else None
    return [*getattr(getattr(plugin, "_executor", None), "_threads", ())]


def _totals(
    worker: Any, queue: QueueCounter | None, faults: PageFaultCounter | None
) -> list[tuple[str, str, float]]:
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    if faults is not None:
        sums["memory", "page-faults"] = faults.seconds
    if (used := cores.times(os.sched_getaffinity(0))) is not None:
        sums["cores", "busy"], sums["cores", "stolen"] = used
    if queue is not None and not math.isnan(queue.seconds):
        sums["execute", _QUEUE] = queue.seconds
        sums["execute", "seceded"] = queue.seceded_seconds()
    for key, value in worker.digests_total.items():
        if not isinstance(key, tuple) or key[-1] != _SECONDS:
            continue
        # ("p2p", span, where, label, unit), and others without span or where.
        where = f"{key[2]} " if key[0] == "p2p" and len(key) > 4 else ""
        sums[str(key[0]), f"{where}{key[-2]}"] += value
    if meter := worker.plugins.get(_WIRE_METER):
        sums["connect", "connect"] = meter.connect_seconds
    monitor = worker.monitor
    if monitor.monitor_gil_contention:
        monitor.update()
        sums["gil", "contention"] = monitor.cumulative_gil_contention
    return [(*activity, seconds) for activity, seconds in sums.items()]


def monitored(since_s: float, until_s: float, dask_worker: Any = None) -> list[dict[str, Any]]:
    """Return the readings of Dask's system monitor in a period, as fields of `ProcessUse`.

    All times are on the scheduler's clock.
    """
    # The client has none.
    delay_s = getattr(dask_worker, "scheduler_delay", 0.0)
    if (monitor := getattr(dask_worker, "monitor", None)) is None:
        return []
    # It reads every half second.
    monitor.update()
    names = ("time", "cpu", "memory")
    readings = zip(*(list(monitor.quantities[name]) for name in names), strict=True)
    return [
        {"start_s": start_s + delay_s, "stop_s": stop_s + delay_s, "n_cores": cpu / 100,
         "memory_bytes": int(memory)}
        for (start_s, *_), (stop_s, cpu, memory) in pairwise(readings)
        if stop_s + delay_s > since_s and start_s + delay_s < until_s
    ]  # fmt: skip


class Profiler:
    """Reads the counters of all processes of a cluster, before and after an iteration.

    Workers that share a process are left out: its threads are not one worker's.
    """

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._name = f"{cluster.client.id} {id(self)}"
        self._ask(start)
        # That of the scheduler is ahead of this process's clock.
        self.offset_s = scheduler_offset(cluster)

    def close(self) -> None:
        """Stop counting the turns of the event loops."""
        self._ask(stop)

    def begin(self) -> None:
        """Read the counters; the iteration begins when this returns."""
        self._before = self._readings(self._name, kernel_first=False)
        self._began_at_s = time.time() + self.offset_s

    def end(self) -> None:
        """Read the counters; the iteration has ended."""
        self._ended_at_s = time.time() + self.offset_s
        self._after = self._readings(self._name, kernel_first=True)

    def records(self, launch: Launch, iteration: int) -> Iterator[Record]:
        """Measure the idle cluster for a moment, and yield the records of the profile."""
        idle_before = self._readings(kernel_first=False)
        time.sleep(IDLE_SECONDS)
        idle_after = self._readings(kernel_first=True)
        common = record_keys.keys(launch, iteration)
        for name, uses in self._ask(monitored, self._began_at_s, self._ended_at_s).items():
            for use in uses:
                yield ProcessUse(**common, worker=name, **use)
        readings = (self._before, self._after, idle_before, idle_after)
        for name, after in self._after.items():
            if name == "client" and self._is_shared:
                continue
            names = ("pid", "counted_by")
            counters = {
                tuple(map(each[name].counters.get, names)) if name in each else None
                for each in readings
            }
            if len(counters) > 1:
                # A worker has joined, left or been restarted, or another record in its loop ended.
                continue
            before = self._before[name]
            seconds, roles = _spent(before, after)
            idle_seconds, idle = _spent(idle_before[name], idle_after[name])
            long_turns = self._long_turns(name, before, after)
            if "loop" in roles:
                long_s, long_cpu_s = _long_s(before, after, long_turns, seconds)
                roles["loop"] = roles["loop"]._replace(
                    long_turn_seconds=long_s, long_turn_cpu_seconds=long_cpu_s
                )
            for role, use in roles.items():
                unused = idle.get(role, _Use())
                yield ThreadTime(
                    **common, worker=name, role=role, seconds=seconds, **use._asdict(),
                    idle_seconds=idle_seconds, idle_cpu_seconds=unused.cpu_seconds,
                    idle_wait_seconds=unused.wait_seconds, idle_n_turns=unused.n_turns,
                )  # fmt: skip
            for start_s, stop_s, _ in long_turns:
                yield LongTurn(**common, worker=name, start_s=start_s, stop_s=stop_s)
            began = {tuple(activity): value for *activity, value in before.counters["totals"]}
            for context, label, value in after.counters["totals"]:
                seconds = value - began.get((context, label), 0.0)
                # That the GIL was never busy is news.
                if seconds > 0 or context == "gil":
                    yield Activity(
                        **common, worker=name, context=context, label=label, seconds=seconds
                    )

    def _long_turns(
        self, name: str, before: _Reading, after: _Reading
    ) -> list[tuple[float, float, float]]:
        """Return the parts of a loop's long turns within the iteration, on the scheduler's clock.

        Each is its begin, its end and its seconds on a core. The counters of a loop that is blocked
        at the end are read when it goes on.
        """
        ahead_s = self._scheduler_ahead_s(name, before)
        n_new = after.counters["n_long"] - before.counters["n_long"]
        parts = []
        for start_s, stop_s, cpu_s in after.counters["long_turns"][-n_new:] if n_new else ():
            began_s = max(start_s + ahead_s, self._began_at_s)
            ended_s = min(stop_s + ahead_s, self._ended_at_s)
            if ended_s > began_s:
                parts.append((began_s, ended_s, cpu_s * (ended_s - began_s) / (stop_s - start_s)))
        return parts

    def _scheduler_ahead_s(self, name: str, before: _Reading) -> float:
        """Return by how much the scheduler's clock is ahead of that of a process."""
        if name not in self._remote:
            return self.offset_s
        # A long turn delays the heartbeat by which Dask measures this; so take it from before.
        return float(before.counters["delay"])

    @property
    def _is_shared(self) -> bool:
        """Whether the scheduler is in the client's process, which is then recorded once."""
        one, two = (self._after[name].counters["pid"] for name in ("client", "scheduler"))
        return one == two and "scheduler" not in self._remote

    @property
    def _remote(self) -> set[str]:
        """The names of the processes on other hosts."""
        cluster = self._cluster
        return {cluster.names.get(member, member) for member in cluster.remote_members}

    def _readings(self, reader: str = "", *, kernel_first: bool) -> dict[str, _Reading]:
        """Read all counters, the kernel's first or last, closest to the iteration.

        Without a `reader` no long turns, of which there may be many.
        """
        times = self._times() if kernel_first else {}
        cluster = self._cluster
        answers = self._ask(read, bool(cluster.remote_members), reader)
        times = times or self._times()
        remote = self._remote
        readings = {}
        for name, answer in answers.items():
            row = json.loads(answer)
            # Process ids are only unique within a host.
            if name in remote:
                by_thread = {int(tid): tuple(spent) for tid, spent in row["times"].items()}
                readings[name] = _Reading(row, row["clock"], by_thread, row["cpu"])
            else:
                unknown: tuple[float, _Times, float] = (row["clock"], {}, row["cpu"])
                readings[name] = _Reading(row, *times.get(row["pid"], unknown))
        return readings

    def _times(self) -> dict[int, tuple[float, _Times, float]]:
        return {
            pid: (time.perf_counter(), thread_seconds(pid), cpu_seconds([pid]))
            for pid in self._cluster.pids
        }

    def _ask(self, function: Any, *args: Any) -> dict[str, Any]:
        client, names = self._cluster.client, self._cluster.names

        async def here() -> Any:
            return function(*args)

        workers = {} if self._cluster.shares_processes else client.run(function, *args)
        return {
            "scheduler": client.run_on_scheduler(function, *args),
            "client": client.sync(here),
            **{names.get(address, address): row for address, row in workers.items()},
        }


_Times = dict[int, tuple[float, float]]


class _Use(NamedTuple):
    """The number of threads, their seconds on a core and waiting for one, and turns."""

    n_threads: int = 0
    cpu_seconds: float = 0.0
    wait_seconds: float = 0.0
    n_turns: int = 0
    long_turn_seconds: float = 0.0
    long_turn_cpu_seconds: float = 0.0


class _Reading(NamedTuple):
    """The counters, the threads' times and the CPU time of a process, at the time `clock`."""

    counters: dict[str, Any]
    clock: float
    times: _Times
    cpu_seconds: float


def _spent(before: _Reading, after: _Reading) -> tuple[float, dict[str, _Use]]:
    """Return the time between two readings, and the sums over the threads of each role."""
    seconds = after.clock - before.clock
    roles: defaultdict[str, _Use] = defaultdict(_Use)
    known = {int(tid): role for tid, role in after.counters["roles"].items()}
    # The turns were read a little before and after the iteration, so use their rate.
    pace = (after.counters["n_turns"] - before.counters["n_turns"]) / (
        after.counters["clock"] - before.counters["clock"]
    )
    for tid, (cpu_s, wait_s) in after.times.items():
        role = known.get(tid, "native")
        # A thread that started in between has used all of its time in between.
        cpu_before_s, wait_before_s = before.times.get(tid, (0.0, 0.0))
        roles[role] = _Use(
            roles[role].n_threads + 1,
            roles[role].cpu_seconds + max(0.0, cpu_s - cpu_before_s),
            roles[role].wait_seconds + max(0.0, wait_s - wait_before_s),
            round(pace * seconds) if role == "loop" else 0,
        )
    if after.times and (n_task_threads := after.counters["n_task_threads"]):
        # Threads of tasks that `worker_client` has replaced end, and are no longer listed.
        listed_s = sum(use.cpu_seconds for use in roles.values())
        ended_s = after.cpu_seconds - before.cpu_seconds - listed_s
        tasks = roles["tasks"]
        computed_s, queued_s = (
            _in_tasks_s(after, label) - _in_tasks_s(before, label) for label in ("-cpu", _QUEUE)
        )
        in_tasks_s = max(0.0, min(ended_s, computed_s - tasks.cpu_seconds))
        cpu_s, wait_s = tasks.cpu_seconds + in_tasks_s, tasks.wait_seconds
        if in_tasks_s > _TICK_S * len(after.times):
            wait_s = max(wait_s, queued_s)
        # Dask starts threads when they are first needed.
        roles["tasks"] = _Use(n_task_threads, cpu_s, wait_s)
        # The rest is of threads that tasks had started; listed times may be some ticks old.
        if (rest_s := ended_s - in_tasks_s) > _TICK_S * len(after.times):
            native = roles["native"]
            roles["native"] = native._replace(cpu_seconds=native.cpu_seconds + rest_s)
    return seconds, roles


def _long_s(
    before: _Reading, after: _Reading, turns: Sequence[tuple[float, float, float]], seconds: float
) -> tuple[float, float]:
    """Return the time of a loop's long turns in an iteration, and what of it is on a core."""
    # Only the last ones are known.
    if after.counters["n_long"] - before.counters["n_long"] > len(after.counters["long_turns"]):
        long_s, cpu_s = (
            min(seconds, after.counters[name] - before.counters[name])
            for name in ("long_seconds", "long_cpu_seconds")
        )
        return long_s, cpu_s
    return sum(stop_s - start_s for start_s, stop_s, _ in turns), sum(cpu for *_, cpu in turns)


def _in_tasks_s(reading: _Reading, label: str) -> float:
    """Return the seconds of metrics whose names end in `label`, of a worker's ended tasks."""
    return float(
        sum(
            value
            for context, name, value in reading.counters["totals"]
            if context == "execute" and name.endswith(label)
        )
    )

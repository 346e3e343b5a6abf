"""The timed loop of a workload that computes on a Dask cluster.

Steps of an iteration: build the graph, time ``persist`` until the last result is in memory, read
the CPU clocks, collect the workers' logs, verify the result. Between the two readings of the clock
commbench runs nothing on the cluster, except that the scheduler looks up the workers of pinned
tasks, and that with GPU memory every worker waits for its GPU, because for Dask a task has finished
when its kernels have been started.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.task_stream import TaskStreamPlugin

from commbench.backends.backend import Backend
from commbench.errors import LaunchError
from commbench.harness import p2p, pinning, spill_counters, transfer_log, wire
from commbench.harness.measure import plugins, record_keys, traffic
from commbench.harness.measure.conditions import N_IDLE_LAUNCHES, measure_idle
from commbench.harness.measure.plugins import TASK_STREAM, Profiler
from commbench.launchers.launcher import RunningCluster
from commbench.machine import gpu
from commbench.model import Launch
from commbench.model.observed import Record, Sample, Spill, TaskRecord
from commbench.store import parts
from commbench.store.emitter import Emitter
from commbench.workloads.device import wait_finished
from commbench.workloads.workload import ClusterWorkload

if TYPE_CHECKING:
    import pyarrow as pa

_FORGET_SECONDS = 30.0
_COLLECT_SECONDS = 1.0


def measure_cluster(
    launch: Launch, workload: ClusterWorkload, backend: Backend, cluster: RunningCluster,
    emit: Emitter,
) -> None:  # fmt: skip
    """Run the warm-ups and iterations of one launch, and emit their records.

    Raises
    ------
    LaunchError
        If a task failed.
    VerificationError
        If the result is wrong.
    """
    from distributed import futures_of

    client, case = cluster.client, launch.case
    pin = [pinning.Pinning()] * (case.cluster.task_placement == "pinned")
    with plugins.installed(cluster, *plugins.meters(cluster), *pin):
        client.run_on_scheduler(keep_tasks, None)
        if launch.index < N_IDLE_LAUNCHES:
            emit(measure_idle(launch, cluster.cpu_seconds, cluster.n_processes))
        emit.phase("loading your code" if workload.tool else "making the data")
        workload.prepare(client)
        profiler = Profiler(cluster)
        for iteration in range(-case.warmups, case.iterations):
            emit.phase(record_keys.counted(iteration, case))
            # Drop transfers of the preparation and of the last verification.
            n_tasks_before = drain(client)
            spilled_before = client.run(spill_counters.written)
            sample, result, counted = _time_once(launch, iteration, workload, cluster, profiler)
            emit.phase("collecting and verifying")
            # If the result is wrong, none of these records is written.
            with emit.region() as keep:
                tasks = range(n_tasks_before, tasks_kept(client).stop)
                for record in chain(
                    [sample],
                    counted,
                    collect(launch, iteration, tasks, cluster),
                    spills(launch, sample, spilled_before, cluster),
                    profiler.records(launch, iteration),
                ):
                    keep(record)
                workload.verify(client, result)
            # A user's code may keep its results, and computes them once then.
            keys = [future.key for future in futures_of(result)] if not workload.tool else []
            del result
            until_forgotten(client, keys)
        profiler.close()
        if not cluster.shares_processes:
            for record in traffic.links(launch, backend, cluster):
                emit(record)
        if cluster.preexisting:
            # Otherwise the plugin would add transfers of the verification to Dask's logs.
            drain(client)


def _time_once(
    launch: Launch, iteration: int, workload: ClusterWorkload, cluster: RunningCluster,
    profiler: Profiler,
) -> tuple[Sample, Any, list[Record]]:  # fmt: skip
    from distributed import futures_of, wait

    client = cluster.client
    before_build = time.perf_counter()
    graph = workload.build()
    build_seconds = time.perf_counter() - before_build
    on_gpu = launch.case.cluster.device == "gpu"
    pinned = launch.case.cluster.task_placement == "pinned"
    if pinned:
        client.run_on_scheduler(pinning.activate, True)
    if on_gpu:
        client.run(gpu.synchronize)

    profiler.begin()
    counters = traffic.network_counters()
    cpu_began = cluster.cpu_seconds()
    started_at_s, began = time.time() + profiler.offset_s, time.perf_counter()
    result = workload.compute(client, graph)
    submitted = time.perf_counter()
    wait(result)
    if on_gpu:
        client.run(gpu.synchronize)
    ended = time.perf_counter()
    cpu_seconds = cluster.cpu_seconds() - cpu_began
    # What the profiler asks for is no traffic of the iteration.
    counted = list(traffic.network_bytes(launch, iteration, counters))
    profiler.end()
    if pinned:
        client.run_on_scheduler(pinning.activate, False)
    wait_finished(futures_of(result), "the task {!r} failed")
    n_operations, operations = workload.operations
    sample = record_keys.sample(
        launch, iteration, "workload", workload.payload_bytes, started_at_s, ended - began,
        cpu_seconds, build_seconds=build_seconds, submit_seconds=submitted - began,
        verified=not workload.tool, tool=workload.tool,
        n_operations=n_operations, operations=operations,
    )  # fmt: skip
    return sample, result, counted


def until_forgotten(client: Any, keys: list[Any]) -> None:
    """Wait until the scheduler has forgotten all `keys`.

    The next iteration has the same keys, and would not compute them again otherwise.
    """

    def n_known(keys: list[Any], dask_scheduler: Any) -> int:
        return sum(key in dask_scheduler.tasks for key in keys)

    collect_at, deadline = (time.monotonic() + each for each in (_COLLECT_SECONDS, _FORGET_SECONDS))
    while (n_left := client.run_on_scheduler(n_known, keys)) > 0:
        if time.monotonic() > deadline:
            raise LaunchError(
                f"the scheduler still holds {n_left} of {len(keys)} results {_FORGET_SECONDS:g} s "
                "after they were released; the next iteration would not compute them"
            )
        if time.monotonic() > collect_at:
            # Futures in a cycle of references wait for the garbage collector.
            gc.collect()
            collect_at = deadline
        time.sleep(0.01)


def drain(client: Any) -> int:
    """Clear the logs, and return the number of tasks that the scheduler has seen."""
    deque(take_graphs(client), maxlen=0)
    client.run(transfer_log.forget)
    client.run(p2p.forget)
    client.run(wire.forget)
    n_tasks = tasks_kept(client).stop
    client.run_on_scheduler(forget_tasks, n_tasks)
    return n_tasks


def tasks_kept(client: Any) -> range:
    """Return the numbers of the tasks that the scheduler remembers, to the last one."""

    def kept(dask_scheduler: Any) -> tuple[int, int]:
        stream = dask_scheduler.plugins[TASK_STREAM]
        return stream.index - len(stream.buffer), stream.index

    return range(*client.run_on_scheduler(kept))


def collect(
    launch: Launch, iteration: int, tasks: range, cluster: RunningCluster
) -> Iterator[Record | pa.Table]:
    """Yield the workers' logs since the last call or ``drain``, and these `tasks`.

    What ends meanwhile is left for the next call.
    """
    client, known = cluster.client, cluster.known_names
    common = record_keys.keys(launch, iteration)
    # First, because collecting sends messages, though not between workers.
    yield from traffic.wire_bytes(launch, iteration, cluster)
    yield from traffic.fetches(client, cluster.names, known, **common)
    yield from traffic.p2p_batches(client, cluster.names, known, **common)
    for columns in _tasks(client, tasks):
        # A worker may have left.
        workers = [known.get(address, address) for address in columns.pop("worker")]
        yield parts.table(TaskRecord, **common, worker=workers, **columns)


def spills(
    launch: Launch,
    sample: Sample,
    before: dict[str, tuple[int, int]],
    cluster: RunningCluster,
    elapsed_s: float | None = None,
) -> Iterator[Record]:
    """Yield the spills since ``spill_counters.written`` returned `before`.

    Their pauses count within the `sample`, or if it is less, within the time that has elapsed.
    """
    client, known, began_s = cluster.client, cluster.known_names, sample.started_at_s
    ended_s = began_s + (sample.seconds if elapsed_s is None else elapsed_s)
    written = client.run(spill_counters.written)
    paused_s = client.run_on_scheduler(spill_counters.paused, [*known], began_s, ended_s)
    # Of a worker that was killed, only the scheduler knows something.
    for address in {**written, **paused_s}:
        n_values_before, nbytes_before = before.get(address, (0, 0))
        n_values, nbytes = written.get(address, (n_values_before, nbytes_before))
        if n_values < n_values_before:
            # Another process has this address now.
            n_values_before, nbytes_before = 0, 0
        if n_values > n_values_before or address in paused_s:
            yield Spill(
                **record_keys.keys(launch, sample.iteration),
                worker=known.get(address, address), paused_seconds=paused_s.get(address, 0.0),
                n_values=n_values - n_values_before, nbytes=nbytes - nbytes_before,
            )  # fmt: skip


class _TaskStream(TaskStreamPlugin):  # type: ignore[misc]
    """A task stream that also records graphs, and the graph of each task."""

    def __init__(self, scheduler: Any, most: int | None) -> None:
        super().__init__(scheduler, maxlen=0)
        self.buffer = deque[dict[str, Any]](maxlen=most)
        self.graphs = deque[tuple[int, str, str, float, int]](maxlen=most)
        self._n_graphs = 0
        self._numbers = dict[Any, int]()

    def update_graph(
        self, _scheduler: Any, *, client: str, tasks: Any, keys: Any, stimulus_id: str = "",
        **_others: Any,
    ) -> None:  # fmt: skip
        number, self._n_graphs = self._n_graphs, self._n_graphs + 1
        # A client is recognized by its id, and its call by any of the keys.
        key = str(next(iter(keys), ""))
        # Unpickling and ordering the graph, which come before, may take longest.
        began = stimulus_id.removeprefix("update-graph-")
        received_s = float(began) if began.replace(".", "", 1).isdigit() else time.time()
        self.graphs.append((number, client, key, received_s, len(tasks)))
        for each in tasks:
            self._numbers.setdefault(each, number)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "forgotten":
            self._numbers.pop(key, None)
        elif start == "processing":
            kwargs["graph"] = self._numbers.get(key, -1)
            super().transition(key, start, finish, *args, **kwargs)


def lost_workers(client: Any, since_s: float) -> list[tuple[float, str, int]]:
    """Return the time of each loss of a worker, the name of most of its tasks, and its results.

    Workers without tasks and results, and those that a client restarted, are left out.

    Parameters
    ----------
    since_s
        A time on the scheduler's clock.
    """

    def lost(since_s: float, dask_scheduler: Any) -> str:
        from dask.utils import key_split

        rows, events = [], dask_scheduler.get_events("all")
        events = [(at_s, each) for at_s, each in events if isinstance(each, dict)]
        restarts = (each for _, each in events if each.get("action") == "restart-workers")
        restarted = {address for each in restarts for address in each.get("workers") or ()}
        for at_s, event in events:
            # Dask expects no worker to end that its nanny ends, as clusters do that scale down.
            tasks, lost = event.get("processing-tasks"), event.get("lost-computed-tasks")
            is_loss = event.get("action") == "remove-worker" and (tasks or lost)
            is_wanted = event.get("expected", True) or event.get("worker") in restarted
            if is_loss and not is_wanted and at_s > since_s:
                names = Counter(map(key_split, tasks or ())).most_common(1)
                rows.append((at_s, str(names[0][0]) if names else "", len(lost or ())))
        return json.dumps(rows)

    return [(*row,) for row in json.loads(client.run_on_scheduler(lost, since_s))]


def keep_tasks(most: int | None, dask_scheduler: Any) -> None:
    """Record tasks and graphs on the scheduler: at most this number or, if it is None, all."""
    stream = _TaskStream(dask_scheduler, most)
    dask_scheduler.add_plugin(stream, name=TASK_STREAM, idempotent=True)


def take_graphs(client: Any) -> Iterator[list[list[Any]]]:
    """Yield the graphs since the last call, as many at a time as fit a message.

    Each is its number, the client's id, one of the requested keys, the time and the number of
    tasks.
    """

    def taken(most: int, dask_scheduler: Any) -> str:
        graphs = dask_scheduler.plugins[TASK_STREAM].graphs
        return json.dumps([graphs.popleft() for _ in range(min(most, len(graphs)))])

    while graphs := json.loads(client.run_on_scheduler(taken, traffic.CHUNK)):
        yield graphs


def forget_tasks(number: int, dask_scheduler: Any) -> None:
    """Drop tasks before `number`."""
    stream = dask_scheduler.plugins[TASK_STREAM]
    for _ in range(number - (stream.index - len(stream.buffer))):
        stream.buffer.popleft()


def _tasks(client: Any, tasks: range) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of `tasks`, by their numbers, in messages of bounded size."""
    for first in tasks[:: traffic.CHUNK]:
        stop = min(first + traffic.CHUNK, tasks.stop)
        yield json.loads(client.run_on_scheduler(_tasks_between, first, stop))


def _tasks_between(number: int, stop: int, dask_scheduler: Any) -> str:
    # By number, not by time, because the scheduler's correction of workers' clocks has an error of
    # milliseconds, so that a task of the preparation might count for the iteration.
    from dask.utils import key_split

    stream = dask_scheduler.plugins[TASK_STREAM]
    n_gone = stream.index - len(stream.buffer)
    tasks = list(islice(stream.buffer, max(0, number - n_gone), max(0, stop - n_gone)))
    bars = [(task, bar) for task in tasks for bar in task["startstops"]]
    columns = {
        "worker": [task["worker"] for task, _ in bars],
        "thread": [task["thread"] or 0 for task, _ in bars],
        "name": [str(key_split(task["key"])) for task, _ in bars],
        "action": [bar["action"] for _, bar in bars],
        "start_s": [bar["start"] for _, bar in bars],
        "stop_s": [bar["stop"] for _, bar in bars],
        "key": [str(task["key"]) for task, _ in bars],
        "nbytes": [task.get("nbytes") or 0 for task, _ in bars],
        "graph": [task["graph"] for task, _ in bars],
    }
    return json.dumps(columns)

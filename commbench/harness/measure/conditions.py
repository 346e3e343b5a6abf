"""The conditions of a launch.

These are the use of the cores on each host, by the launch and by others; the CPU time of its idle
processes; the locations of its workers; their GPUs and memory resources, which are validated; and
the clock offsets of other hosts.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from commbench.errors import LaunchError
from commbench.harness.measure import record_keys
from commbench.launchers.launcher import SCHEDULER, RunningCluster, ask
from commbench.machine import cores, environment, gpu
from commbench.machine.topology.workers import worker_location
from commbench.model import ClusterSpec, Launch
from commbench.model.observed import GPU_MEMORY, LOCAL, CoreUse, IdleCost, Setting, WorkerPlace
from commbench.store.emitter import Emit

_CUPYS = "rmm_cupy_allocator"
_N_REQUESTS = 10
_SETTLE_SECONDS = 0.5
N_IDLE_LAUNCHES = 2
"""The number of launches of a cluster, the first ones, whose idle cost is measured."""


class Reading(NamedTuple):
    """A reading of the cores that a launch may use, and of its CPU time."""

    host: str
    at: float
    n_cores: int
    cores: cores.Times | None
    launch_cpu_s: float


@dataclass
class Conditions:
    """The use of cores during a launch."""

    launch: Launch
    foreign_cpu_s: float = 0.0
    """The CPU seconds of processes on this host that are no descendants of this process."""
    remote_use: tuple[CoreUse, ...] = ()

    @contextmanager
    def on(self, cluster: RunningCluster) -> Iterator[None]:
        """Measure the foreign processes of `cluster`, and the cores of its remote hosts."""
        # Processes of a preexisting cluster have used CPU time before.
        used_s = _foreign_seconds(cluster) if cluster.preexisting else 0.0
        before = _read_remote(cluster)
        yield
        self.foreign_cpu_s += _foreign_seconds(cluster) - used_s
        after = _read_remote(cluster)
        kernel = environment.kernel_id()
        if here := before.pop(kernel, None):
            # Members in containers on this host.
            used_s = here.launch_cpu_s if cluster.preexisting else 0.0
            self.foreign_cpu_s += after[kernel].launch_cpu_s - used_s
        uses = (core_use(self.launch, before[each], after[each]) for each in before)
        self.remote_use += tuple(filter(None, uses))


def core_use(launch: Launch, began: Reading, ended: Reading) -> CoreUse | None:
    """Return the use of the cores between two readings, None if the kernel doesn't count it."""
    if began.cores is None or ended.cores is None or ended.cores.busy_s == began.cores.busy_s:
        # Some containers hide the counters, or don't update them.
        return None
    return CoreUse(
        **record_keys.keys(launch),
        host=began.host,
        n_cores=began.n_cores,
        seconds=ended.at - began.at,
        busy_cpu_seconds=ended.cores.busy_s - began.cores.busy_s,
        own_cpu_seconds=ended.launch_cpu_s - began.launch_cpu_s,
        stolen_cpu_seconds=ended.cores.stolen_s - began.cores.stolen_s,
    )


@contextmanager
def watched(launch: Launch, emit: Emit) -> Iterator[Conditions]:
    """Emit the use of cores when all processes of a successful launch have ended.

    On other hosts only the lifetime of the cluster counts, without its start and shutdown.
    """
    numbers = tuple(os.sched_getaffinity(0))
    n_cores = len(numbers)
    began = Reading(LOCAL, time.perf_counter(), n_cores, cores.times(numbers), _family_seconds())
    conditions = Conditions(launch)
    yield conditions
    cpu_s = _family_seconds() + conditions.foreign_cpu_s
    ended = Reading(LOCAL, time.perf_counter(), n_cores, cores.times(numbers), cpu_s)
    if here := core_use(launch, began, ended):
        emit(here)
    for use in conditions.remote_use:
        emit(use)


def _family_seconds() -> float:
    """Return the CPU seconds of this process and of its descendants that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _foreign_seconds(cluster: RunningCluster) -> float:
    """Return the CPU seconds of the processes of a cluster here that are no descendants."""
    pids = cluster.foreign_pids
    return cores.cpu_seconds(pids) + cores.child_seconds(pids)


def _read_remote(cluster: RunningCluster) -> dict[str, Reading]:
    """Return a reading of the cores of the remote members, by the id of their kernel."""
    processes = defaultdict(list)
    described = ask(cluster.client, cluster.remote_processes, _describe_process)
    # Containers on a host share its kernel, which counts the CPU time of all. Hosts may share a
    # name.
    for member, (kernel, host, allowed, cpu_s) in described.items():
        processes[kernel].append((member, host, allowed, cpu_s))
    readings = {}
    for kernel, rows in processes.items():
        members, names, allowed, cpu_s = zip(*rows, strict=True)
        numbers = sorted(set().union(*allowed))
        (times,) = ask(cluster.client, members[:1], cores.times, numbers).values()
        used = cores.Times(*times) if times is not None else None
        reading = Reading(names[0], time.perf_counter(), len(numbers), used, sum(cpu_s))
        readings[kernel] = reading
    return readings


def _describe_process() -> tuple[str, str, tuple[int, ...], float]:
    """Return the kernel, the host, the cores that this process may use, and its CPU seconds.

    Those of its children that have ended are included: tasks may start programs.
    """
    cpus = tuple(os.sched_getaffinity(0))
    return environment.kernel_id(), os.uname().nodename, cpus, _family_seconds()


def measure_idle(
    launch: Launch, cpu_seconds: Callable[[], float], n_processes: int, seconds: float = 1.0
) -> IdleCost:
    """Return the CPU time of idle processes; `cpu_seconds` returns the total of all of them."""
    time.sleep(_SETTLE_SECONDS)
    began, cpu_began = time.perf_counter(), cpu_seconds()
    time.sleep(seconds)
    return IdleCost(
        **record_keys.keys(launch),
        seconds=time.perf_counter() - began,
        cpu_seconds=cpu_seconds() - cpu_began,
        n_processes=n_processes,
    )


def worker_places(
    launch: Launch, cluster: RunningCluster, nic_variable: str = ""
) -> Iterator[WorkerPlace]:
    """Yield the location of each worker of a cluster; `nic_variable` is that of its backend."""
    device, workers = launch.case.cluster.device, list(cluster.names)
    answers = cluster.client.run(_location, device, nic_variable, workers=workers)
    for address, location in answers.items():
        yield WorkerPlace(**record_keys.keys(launch), worker=cluster.names[address], **location)


def emit_places(launch: Launch, locations: Iterable[Mapping[str, Any]], emit: Emit) -> None:
    """Emit the locations of processes, which are named by their number."""
    for number, location in enumerate(locations):
        emit(WorkerPlace(**record_keys.keys(launch), worker=str(number), **location))


def _location(device: str, nic_variable: str, dask_worker: Any) -> dict[str, Any]:
    return worker_location(
        os.getpid(), device=device, address=dask_worker.address,
        folder=dask_worker.local_directory, nic_variable=nic_variable,
    )  # fmt: skip


def validate_gpus(launch: Launch, cluster: RunningCluster, emit: Emit) -> None:
    """Validate the GPUs and the memory resources of the workers of `cluster`, and emit them.

    Raises
    ------
    LaunchError
        If a worker has no GPU, too many workers share one, or RMM is not set up as specified.
    """
    spec = launch.case.cluster
    if spec.device != "gpu":
        return
    answers = cluster.client.run(_describe_gpu)
    rows = {cluster.names[address]: row for address, row in answers.items()}
    owners = defaultdict(list)
    for name, row in rows.items():
        if "error" in row:
            raise LaunchError(f"worker {name} has no GPU to work on: {row['error']}")
        owners[row["uuid"]].append(name)
    for uuid, names in owners.items():
        if len(names) > spec.workers_per_gpu:
            row = rows[names[0]]
            raise LaunchError(
                f"workers {', '.join(names)} work on one GPU ({row['name']}, {uuid}, first of "
                f"CUDA_VISIBLE_DEVICES={row['visible']}), and {spec.workers_per_gpu} per GPU are "
                "asked for: start them with a GPU each (a queue: one in each job), or say "
                "--workers-per-gpu"
            )
    for name, row in rows.items():
        if wrong := _compare_rmm(spec, row):
            raise LaunchError(f"worker {name}: {wrong}")
    emit_gpu_memory(launch, *rows.values(), emit=emit)


def emit_gpu_memory(launch: Launch, *rows: dict[str, Any], emit: Emit) -> None:
    """Emit the memory allocators in ``gpu.describe`` of these processes."""
    for value in sorted({f"RMM {row['rmm']}; CuPy by {row['cupy']}" for row in rows}):
        emit(Setting(**record_keys.keys(launch), name=GPU_MEMORY, value=value))


def _describe_gpu() -> dict[str, Any]:
    try:
        return gpu.describe()
    except Exception as error:  # noqa: BLE001 - all errors must reach the report
        return {"error": f"{type(error).__name__}: {error}"}


def _compare_rmm(spec: ClusterSpec, row: dict[str, Any]) -> str:
    """Return how RMM differs from `spec`; "" if it does not."""
    wanted = [
        *["CudaAsync"] * spec.rmm_async,
        *["Managed"] * spec.rmm_managed,
        *["Pool"] * bool(spec.rmm_pool and not spec.rmm_async),
    ]
    if missing := [kind for kind in wanted if kind not in row["rmm"]]:
        return f"RMM was asked for ({spec.rmm}), and its resource is {row['rmm']}, not {missing[0]}"
    if spec.rmm and row["cupy"] != _CUPYS:
        return f"CuPy should allocate by RMM ({spec.rmm}), and does by {row['cupy']}"
    return ""


def clock_offsets(cluster: RunningCluster) -> dict[str, float]:
    """Return the seconds by which the clock of each remote worker is ahead of this process's."""
    return {address: _offset(cluster, address) for address in cluster.remote_members - {SCHEDULER}}


def scheduler_offset(cluster: RunningCluster) -> float:
    """Return the seconds by which the scheduler's clock is ahead of this process's.

    Dask logs all times of tasks and transfers on the scheduler's clock.
    """
    return _offset(cluster, SCHEDULER) if SCHEDULER in cluster.remote_members else 0.0


def _offset(cluster: RunningCluster, member: str) -> float:
    """Return the seconds by which the clock of a member is ahead of this process's.

    By Cristian's method: of several requests for the time the one with the shortest round trip
    counts, assuming that it was answered half-way. The error is at most half of that round trip.
    """
    answers = []
    for _ in range(_N_REQUESTS):
        sent = time.time()
        theirs: float = ask(cluster.client, [member], time.time)[member]
        answered = time.time()
        answers.append((answered - sent, theirs - (sent + answered) / 2))
    return min(answers)[1]

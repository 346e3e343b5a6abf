"""What a launch was measured under.

Who else used its cores, on every host that it used; what its processes burn while they idle; where
they are; whether each worker has the GPU and the memory that it should have; and how far the clocks
of other hosts are off this one's.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from commbench.errors import LaunchError
from commbench.launchers.base import SCHEDULER, RunningCluster
from commbench.machine import cores, gpu
from commbench.machine.topology import worker_location
from commbench.model import GPU_MEMORY, ClusterSpec, CoreUse, IdleCost, Launch, Setting, WorkerPlace
from commbench.store.emitter import Emit

_LOCAL = "local"
_CUPYS = "rmm_cupy_allocator"
_N_QUESTIONS = 10
_SETTLE_SECONDS = 0.5


class _Process(NamedTuple):
    """What a process of the cluster on another host tells of it and of itself."""

    host: str
    core_numbers: tuple[int, ...]
    cpu_s: float


class _Reading(NamedTuple):
    at: float
    cores: cores.Times | None
    own_s: float


@dataclass
class Conditions:
    """What is known of them so far."""

    launch: Launch
    foreign_cpu_s: float = 0.0
    """CPU time of processes on this host that work for the launch, but are not its children."""
    remote_use: tuple[CoreUse, ...] = ()

    @contextmanager
    def on(self, cluster: RunningCluster) -> Iterator[None]:
        """Watch the processes of `cluster` that this process did not start, and their hosts."""
        # Those that were there before have used time for others.
        used_s = cores.cpu_seconds(cluster.foreign_pids) if cluster.preexisting else 0.0
        before = _elsewhere(cluster)
        yield
        self.foreign_cpu_s += cores.cpu_seconds(cluster.foreign_pids) - used_s
        after = _elsewhere(cluster)
        self.remote_use += tuple(
            use
            for host, (numbers, began) in before.items()
            if (use := self._use(host, len(numbers), began, after[host][1])) is not None
        )

    def _use(self, host: str, n_cores: int, began: _Reading, ended: _Reading) -> CoreUse | None:
        if began.cores is None or ended.cores is None or ended.cores.busy_s == began.cores.busy_s:
            # Some containers hide it, or show a clock that stands: that is not an idle machine.
            return None
        return CoreUse(
            case_id=self.launch.case.id,
            launch=self.launch.index,
            host=host,
            n_cores=n_cores,
            seconds=ended.at - began.at,
            busy_cpu_seconds=ended.cores.busy_s - began.cores.busy_s,
            own_cpu_seconds=ended.own_s - began.own_s,
            stolen_cpu_seconds=ended.cores.stolen_s - began.cores.stolen_s,
        )


@contextmanager
def watched(launch: Launch, emit: Emit) -> Iterator[Conditions]:
    """Emit, when all processes of a good launch have ended, what its cores did meanwhile.

    On hosts other than this one the time that the cluster was there counts, and no start or end.
    """
    numbers = tuple(os.sched_getaffinity(0))
    began = _Reading(time.perf_counter(), cores.times(numbers), _own_seconds())
    found = Conditions(launch)
    yield found
    own_s = _own_seconds() + found.foreign_cpu_s
    ended = _Reading(time.perf_counter(), cores.times(numbers), own_s)
    if here := found._use(_LOCAL, len(numbers), began, ended):
        emit(here)
    for use in found.remote_use:
        emit(use)


def _own_seconds() -> float:
    """Return the CPU time of this process and of those of its descendants that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _elsewhere(cluster: RunningCluster) -> dict[str, tuple[Sequence[int], _Reading]]:
    """Return by host the numbers of the cores that the cluster may use there, and a reading."""
    client = cluster.client
    told: dict[str, Any] = {}
    if workers := sorted(cluster.remote_members - {SCHEDULER}):
        told |= client.run(_tell, workers=workers)
    if SCHEDULER in cluster.remote_members:
        told[SCHEDULER] = client.run_on_scheduler(_tell)
    members: dict[str, list[str]] = {}
    rows = {member: _Process(*row) for member, row in told.items()}
    for member, row in rows.items():
        members.setdefault(row.host, []).append(member)
    found: dict[str, tuple[Sequence[int], _Reading]] = {}
    for host, names in members.items():
        numbers = sorted({number for name in names for number in rows[name].core_numbers})
        times = _ask(client, names[0], numbers)
        own_s = sum(rows[name].cpu_s for name in names)
        found[host] = numbers, _Reading(time.perf_counter(), times, own_s)
    return found


def _tell() -> _Process:
    return _Process(os.uname().nodename, tuple(os.sched_getaffinity(0)), time.process_time())


def _ask(client: Any, member: str, numbers: Sequence[int]) -> cores.Times | None:
    if member == SCHEDULER:
        told = client.run_on_scheduler(cores.times, numbers)
    else:
        (told,) = client.run(cores.times, numbers, workers=[member]).values()
    return cores.Times(*told) if told is not None else None


def measure_idle(
    launch: Launch, cpu_seconds: Callable[[], float], n_processes: int, seconds: float = 1.0
) -> IdleCost:
    """Return the CPU time that processes burn while nothing is asked of them.

    Parameters
    ----------
    cpu_seconds
        Returns the CPU time that they have used so far, all of the `n_processes` together.
    """
    time.sleep(_SETTLE_SECONDS)
    began, cpu_began = time.perf_counter(), cpu_seconds()
    time.sleep(seconds)
    return IdleCost(
        case_id=launch.case.id,
        launch=launch.index,
        seconds=time.perf_counter() - began,
        cpu_seconds=cpu_seconds() - cpu_began,
        n_processes=n_processes,
    )


def worker_places(launch: Launch, cluster: RunningCluster) -> Iterator[WorkerPlace]:
    """Yield what each worker of a cluster tells of its place."""
    found = cluster.client.run(_own, launch.case.cluster.device)
    for address, place in found.items():
        yield WorkerPlace(
            case_id=launch.case.id, launch=launch.index, worker=cluster.names[address], **place
        )


def process_places(launch: Launch, pids: Mapping[str, int]) -> Iterator[WorkerPlace]:
    """Yield the places of processes on this host, whose names `pids` has."""
    for name, pid in pids.items():
        place = worker_location(pid, device=launch.case.cluster.device)
        yield WorkerPlace(case_id=launch.case.id, launch=launch.index, worker=name, **place)


def _own(device: str, dask_worker: Any) -> dict[str, Any]:
    return worker_location(os.getpid(), device=device, address=dask_worker.address)


def check_gpus(launch: Launch, cluster: RunningCluster, emit: Emit) -> None:
    """Compare what the workers of `cluster` have with what is asked for, and emit it.

    Raises
    ------
    LaunchError
        Where a worker has no GPU, more workers share one than may, or RMM is not as asked for.
    """
    spec = launch.case.cluster
    if spec.device != "gpu":
        return
    told = {cluster.names[where]: row for where, row in cluster.client.run(_told).items()}
    owners = defaultdict(list)
    for name, row in told.items():
        if "error" in row:
            raise LaunchError(f"worker {name} has no GPU to work on: {row['error']}")
        owners[row["uuid"]].append(name)
    for uuid, names in owners.items():
        if len(names) > spec.workers_per_gpu:
            row = told[names[0]]
            raise LaunchError(
                f"workers {', '.join(names)} work on one GPU ({row['name']}, {uuid}, first of "
                f"CUDA_VISIBLE_DEVICES={row['visible']}), and {spec.workers_per_gpu} per GPU are "
                "asked for: start them with a GPU each (a queue: one in each job), or say "
                "--workers-per-gpu"
            )
    for name, row in told.items():
        if wrong := _unlike(spec, row):
            raise LaunchError(f"worker {name}: {wrong}")
    emit_gpu_memory(launch, *told.values(), emit=emit)


def emit_gpu_memory(launch: Launch, *told: dict[str, Any], emit: Emit) -> None:
    """Emit where the memory of these processes comes from."""
    for value in sorted({f"RMM {row['rmm']}; CuPy by {row['cupy']}" for row in told}):
        emit(Setting(case_id=launch.case.id, launch=launch.index, name=GPU_MEMORY, value=value))


def _told() -> dict[str, Any]:
    try:
        return gpu.describe()
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
        return {"error": f"{type(error).__name__}: {error}"}


def _unlike(spec: ClusterSpec, row: dict[str, Any]) -> str:
    """Return in what RMM is not as asked for; nothing where it is."""
    wanted = [
        *["CudaAsync"] * spec.rmm_async,
        *["Managed"] * spec.rmm_managed,
        *["Pool"] * bool(spec.rmm_pool and not spec.rmm_async),
    ]
    if lacking := [kind for kind in wanted if kind not in row["rmm"]]:
        return f"RMM was asked for ({spec.rmm}), and its resource is {row['rmm']}, not {lacking[0]}"
    if spec.rmm and row["cupy"] != _CUPYS:
        return f"CuPy should allocate by RMM ({spec.rmm}), and does by {row['cupy']}"
    return ""


def clock_offsets(cluster: RunningCluster) -> dict[str, float]:
    """Return by how many seconds the clock of each worker elsewhere is ahead of this process's.

    By Cristian's method: of some questions for the time the one that was answered soonest, taken
    to have been answered half-way. It is off by half of that round trip at the most.
    """
    found = {}
    for address in cluster.remote_members - {SCHEDULER}:
        answers = []
        for _ in range(_N_QUESTIONS):
            asked = time.time()
            theirs = cluster.client.run(time.time, workers=[address])[address]
            answered = time.time()
            answers.append((answered - asked, theirs - (asked + answered) / 2))
        found[address] = min(answers)[1]
    return found

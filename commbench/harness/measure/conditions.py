"""What a launch was measured under: who else used its cores, on every host that it used."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from commbench.launchers.base import SCHEDULER, RunningCluster
from commbench.machine import cores
from commbench.model import CoreUse, IdleCost, Launch
from commbench.store.emitter import Emit

_LOCAL = "local"


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
    adopted_s: float = 0.0
    """CPU time of processes on this host that work for the launch, but are not its children."""
    elsewhere: tuple[CoreUse, ...] = ()

    @contextmanager
    def on(self, cluster: RunningCluster) -> Iterator[None]:
        """Watch the processes of `cluster` that this process did not start, and their hosts."""
        # Those that were there before have used time for others.
        used_s = cores.cpu_seconds(cluster.adopted) if cluster.outlives else 0.0
        before = _elsewhere(cluster)
        yield
        self.adopted_s += cores.cpu_seconds(cluster.adopted) - used_s
        after = _elsewhere(cluster)
        self.elsewhere += tuple(
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
    own_s = _own_seconds() + found.adopted_s
    ended = _Reading(time.perf_counter(), cores.times(numbers), own_s)
    if here := found._use(_LOCAL, len(numbers), began, ended):
        emit(here)
    for use in found.elsewhere:
        emit(use)


def _own_seconds() -> float:
    """Return the CPU time of this process and of those of its descendants that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _elsewhere(cluster: RunningCluster) -> dict[str, tuple[Sequence[int], _Reading]]:
    """Return by host the numbers of the cores that the cluster may use there, and a reading."""
    client = cluster.client
    told: dict[str, Any] = {}
    if workers := sorted(cluster.elsewhere - {SCHEDULER}):
        told |= client.run(_tell, workers=workers)
    if SCHEDULER in cluster.elsewhere:
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


_SETTLE_SECONDS = 0.5


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

"""The estimated duration of a run, and warnings of problems, before anything starts.

The constants are those of a virtual machine with two cores, and right within a factor of three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from commbench import workloads
from commbench.backends import parse
from commbench.harness.cases import make_workload
from commbench.launchers.launcher import Launcher
from commbench.machine import cores, environment
from commbench.model import Case, Stopping, Suite, registry
from commbench.model.units import format_duration
from commbench.workloads.workload import (
    MODES,
    ClusterWorkload,
    FetchWorkload,
    PairWorkload,
    Workload,
)

_LAUNCH_SECONDS = 4.0
"""Time to start Python and a scheduler, measure their idle cost, and end them."""
_LAYER_SECONDS = 1.0
"""Time to start the peer of a layer of pingpong."""
_WORKER_SECONDS = 0.5
"""The CPU time that a worker takes to start and to end."""
_CALL_SECONDS = 0.05
"""Time of the requests to a worker for one size of all-to-all."""
_ROUND_SECONDS = 0.04
"""Time of a round in one direction: fetches, their verification, and requests to workers."""
_MESSAGE_SECONDS, _SECONDS_PER_BYTE = 3e-3, 3e-9
"""Time of a fetch between workers and its verification."""
_SMALL_MESSAGE_SECONDS = 3e-4
_GPU_SECONDS = 4.0
"""Time to import CuPy and create a CUDA context, on a machine with an H200."""
_LONGEST_SECONDS = 1e4 * 3600
"""The longest launch for which a deadline is suggested."""
_CROWDED = 4
"""The processes per core from which on starting them takes long."""


def launch_seconds(case: Case) -> float:
    """Return a rough estimate of the seconds of a launch of `case`."""
    workload = make_workload(case)
    n_starts = len(workload.layers) if isinstance(workload, PairWorkload) else 1
    gpu_s = _GPU_SECONDS * n_starts if case.cluster.device == "gpu" else 0.0
    return gpu_s + parse(case.backend).launch_factor * _seconds_over_tcp(workload, case)


def _seconds_over_tcp(workload: Workload, case: Case) -> float:
    n_workers = case.cluster.n_workers
    if isinstance(workload, PairWorkload):
        start_s = _LAUNCH_SECONDS + _LAYER_SECONDS * len(workload.layers)
        return start_s + _messages_seconds(workload, case)
    n_processes, here = _processes_and_cores_here(case)
    start_s = _LAUNCH_SECONDS + _WORKER_SECONDS * max(1.0, n_processes / here if here else 1.0)
    # Making the data takes as long as an iteration.
    return start_s + (1 + case.warmups + case.iterations) * _iteration_seconds(workload, n_workers)


def _messages_seconds(workload: PairWorkload, case: Case) -> float:
    return len(workload.layers) * sum(
        min(
            workload.n_samples(size, n)
            * (_SMALL_MESSAGE_SECONDS + size * _SECONDS_PER_BYTE)
            * (max(1, workload.window) if "window" in MODES[workload.mode] else 1),
            workload.seconds_per_size,
        )
        for size in workload.sizes
        for n in (case.warmups, case.iterations)
    )


def _iteration_seconds(workload: Workload, n_workers: int) -> float:
    n_pairs = n_workers * (n_workers - 1)
    if isinstance(workload, FetchWorkload) and workload.in_rounds:
        # Each round in two directions, and one of them pair by pair.
        n_groups = 2 * (n_workers - 1) + n_workers
        return n_groups * _ROUND_SECONDS * len(workload.sizes)
    if isinstance(workload, FetchWorkload):
        return sum(
            n_workers * _CALL_SECONDS + 2 * n_pairs * (_MESSAGE_SECONDS + size * _SECONDS_PER_BYTE)
            for size in workload.sizes
        )
    assert isinstance(workload, ClusterWorkload)
    return 0.2 + n_pairs * _MESSAGE_SECONDS + workload.expected_seconds


def _processes_and_cores_here(case: Case) -> tuple[int, float]:
    """Return the number of workers' processes, and of this host's cores (0 with other hosts)."""
    launcher = registry.load("launcher", case.cluster.launcher)
    n_cores = None if launcher.remote(case.cluster) else cores.usable(environment.cpu(Path("/")))
    return launcher.n_processes(case.cluster), n_cores or 0


def can_choose(cases: Sequence[Case]) -> bool:
    """Return whether a budget suits the cases: there are verdicts to reach, in a known time.

    Efficiencies of numbers of workers need launches, not verdicts. Jobs may wait in queues.
    """
    fixed = {"launches", "iterations"}
    return len(cases) > 1 and not any(
        "workers" in case.varied
        or fixed & workloads.load(case.workload).defaults.keys()
        or registry.load("launcher", case.cluster.launcher).script is not Launcher.script
        for case in cases
    )


def default_budget_s(cases: Sequence[Case]) -> float:
    """Return a budget in which each of the cases is likely to have the launches of a verdict."""
    # The estimate may be a third of the truth, and these launches may exceed a budget by half.
    enough_s = 2 * sum(case.launches * launch_seconds(case) for case in cases)
    return max(Stopping().budget_s, 60.0 * math.ceil(enough_s / 60))


def describe(suite: Suite, stopping: Stopping | None) -> Iterator[str]:
    """Yield the estimated duration of a run of `suite`, and warnings of foreseeable problems."""
    seconds = [(case, launch_seconds(case)) for case in suite.cases]
    if stopping is None:
        n_launches = sum(case.launches for case in suite.cases)
        total_s = sum(case.launches * each for case, each in seconds)
        launches = "1 launch" if n_launches == 1 else f"{n_launches} launches"
        yield f"{launches}, about {format_duration(total_s)}"
    else:
        block_s = sum(each for _, each in seconds)
        most_s, longest_s = max(stopping.budget_s, block_s), stopping.longest_s
        longer = f", up to {format_duration(longest_s)} for a verdict" * (longest_s > most_s)
        yield f"about {format_duration(most_s)} of launches, or less{longer}"
        # By default there are as many as a verdict takes.
        enough_s = Case.launches * block_s
        if len(suite.cases) > 1 and most_s < enough_s / 2:
            yield (
                f"warning: a verdict takes {Case.launches} launches of each case, and the budget "
                f"is {format_duration(stopping.budget_s)}; for that: "
                f"--budget {math.ceil(enough_s)}s"
            )
    said = set()
    for case, each in seconds:
        spec = case.cluster
        n_processes, here = _processes_and_cores_here(case)
        has_cluster = workloads.load(case.workload).has_cluster
        if has_cluster and here and n_processes + 2 > _CROWDED * here:
            are_shared = n_processes < spec.n_workers
            who = f"the {n_processes} processes of {spec.n_workers}" if are_shared else n_processes
            fewer = "processes" if are_shared else "--workers"
            said.add(
                f"warning: {who} workers share {here:g} cores: they wait for cores more "
                "than for data, and may not be there in time (--start-timeout "
                f"{format_duration(spec.start_timeout_s)}); take fewer {fewer}, or hosts with "
                "more cores"
            )
        if each > case.timeout_s:
            fewer = f"--timeout {math.ceil(2 * each)}s, or fewer iterations, sizes or workers"
            said.add(
                f"warning: a launch of {case.workload} over {case.variant} takes about "
                f"{format_duration(each)}, and its deadline is {format_duration(case.timeout_s)}: "
                + (fewer if each < _LONGEST_SECONDS else "take less data")
            )
    yield from sorted(said)

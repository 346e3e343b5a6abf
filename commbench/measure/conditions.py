"""What a launch was measured under: who else used its cores."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from commbench import cores
from commbench.measure.idle import Emit
from commbench.model import CoreUse, Launch


@contextmanager
def watched(launch: Launch, emit: Emit) -> Iterator[None]:
    """Emit, when all processes of a good launch have ended, what its cores did meanwhile."""
    numbers = os.sched_getaffinity(0)
    began, own_began, all_began = time.perf_counter(), _own_seconds(), cores.times(numbers)
    yield
    seconds, own_s = time.perf_counter() - began, _own_seconds() - own_began
    all_ended = cores.times(numbers)
    if all_began is None or all_ended is None or all_ended.busy_s == all_began.busy_s:
        # Some containers hide it, or show a clock that stands: that is not an idle machine.
        return
    emit(
        CoreUse(
            case_id=launch.case.id,
            launch=launch.index,
            host="local",
            n_cores=len(numbers),
            seconds=seconds,
            busy_cpu_seconds=all_ended.busy_s - all_began.busy_s,
            own_cpu_seconds=own_s,
            stolen_cpu_seconds=all_ended.stolen_s - all_began.stolen_s,
        )
    )


def _own_seconds() -> float:
    """Return the CPU time of this process and of those of its descendants that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)

"""What a cluster costs while it does nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from commbench import cpu
from commbench.model import IdleCost, Launch, Record

Emit = Callable[[Record], None]

_SETTLE_SECONDS = 0.5


def measure_idle(launch: Launch, pids: Sequence[int], seconds: float = 1.0) -> IdleCost:
    """Return the CPU time that the processes `pids` burn while nothing is asked of them."""
    time.sleep(_SETTLE_SECONDS)
    began, cpu_began = time.perf_counter(), cpu.seconds(pids)
    time.sleep(seconds)
    return IdleCost(
        case_id=launch.case.id,
        launch=launch.index,
        seconds=time.perf_counter() - began,
        cpu_seconds=cpu.seconds(pids) - cpu_began,
        n_processes=len(pids),
    )

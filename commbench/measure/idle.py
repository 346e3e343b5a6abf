"""What a cluster costs while it does nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from commbench.model import IdleCost, Launch

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

"""CPU time of other processes, with the kernel's nanosecond accounting."""

from __future__ import annotations

import time
from collections.abc import Iterable

# CPUCLOCK_SCHED of linux/posix-timers.h; clock_getcpuclockid(3) builds the same number.
_SCHEDULER_CLOCK = 2


def seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that the processes `pids` have used, user and system, all threads.

    A process that is gone counts nothing: whoever compares two readings must know that all
    lived through both.
    """
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)
        except OSError:
            continue
    return total

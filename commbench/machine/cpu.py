"""CPU time of processes and threads, with the kernel's nanosecond accounting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

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


def thread_seconds(pid: int | str = "self") -> dict[int, tuple[float, float]]:
    """Return by thread id the time that each thread of a process had a core, and waited for one.

    From ``/proc/PID/task/TID/schedstat``. The time on a core of a thread that is running at this
    moment may be a scheduler's tick (1 to 10 ms) old. A kernel without such accounting gives
    no threads.
    """
    found = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end while its number is read.
        with contextlib.suppress(OSError, ValueError):
            ran, waited, _ = (folder / "schedstat").read_text().split()
            found[int(folder.name)] = int(ran) / 1e9, int(waited) / 1e9
    return found

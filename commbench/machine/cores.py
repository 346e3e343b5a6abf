"""The cores that processes may use, and the CPU time that processes and threads have of them.

CPU time comes from the kernel's accounting in nanoseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from commbench.errors import UsageError

MAX_OTHERS = 0.1
"""The share of the cores' time above which other processes are reported.

A desktop or a monitoring agent uses a tenth of a core. A benchmark that leaves no core idle loses
the time that others use.
"""


class Times(NamedTuple):
    """CPU seconds since boot, summed over cores: used by any process, and stolen."""

    busy_s: float
    stolen_s: float


def parse(text: str) -> frozenset[int]:
    """Return the numbers in a list as the kernel writes it; see cpuset(7), "List format".

    Another text is a UsageError.

    Examples
    --------
    >>> sorted(parse("0-2,8")), sorted(parse(""))
    ([0, 1, 2, 8], [])
    """
    numbers: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", item.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"{text!r} is no list of CPUs; write for example 0-19,40-59")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def format_list(numbers: Iterable[int]) -> str:
    """Return numbers as a list in the kernel's format.

    Examples
    --------
    >>> format_list({0, 1, 2, 8}), format_list(())
    ('0-2,8', '')
    """
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)


def times(numbers: Collection[int], proc: Path = Path("/proc")) -> Times | None:
    """Return the CPU times of the cores `numbers`, None if the kernel doesn't report them.

    Waiting for a disk is not busy. Stolen is the time that a hypervisor gave to other guests while
    a process here was ready to run; see proc_stat(5).
    """
    try:
        text = (proc / "stat").read_text()
    except OSError:
        return None
    rows = {int(core): counts.split() for core, counts in re.findall(r"(?m)^cpu(\d+) (.*)$", text)}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy = stolen = 0
    for number in numbers:
        if len(rows.get(number, ())) < 8:
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, rows[number][:8])
        busy += user + nice + system + irq + softirq
        stolen += steal
    return Times(busy * tick_s, stolen * tick_s)


def usable(cpu: Mapping[str, Any]) -> float | None:
    """Return how many cores processes may use according to ``environment.cpu``, with quota."""
    limits = (cpu.get("usable_cores"), cpu.get("cgroup_quota_cores"))
    return min((limit for limit in limits if isinstance(limit, int | float)), default=None)


def is_loaded(load_average: float, n_cores: float) -> bool:
    """Return whether a load average means that others use the cores; 0.5 is normal."""
    return load_average > max(0.5, MAX_OTHERS * n_cores)


# CPUCLOCK_SCHED of linux/posix-timers.h; clock_getcpuclockid(3) builds the same number.
_SCHEDULER_CLOCK = 2


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds, user and system, of all threads of the processes `pids`.

    A process that has ended counts as 0, so a difference of two results is only valid if no process
    ended in between.
    """
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)
        except OSError:
            continue
    return total


def child_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of the ended children of processes, as ``RUSAGE_CHILDREN`` has them.

    A process that has ended counts as 0.
    """
    import psutil

    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.children_user + times.children_system
    return total


def thread_seconds(pid: int | str = "self") -> dict[int, tuple[float, float]]:
    """Return per thread id the seconds on a core and the seconds spent waiting for one.

    From ``/proc/PID/task/TID/schedstat``. The time on a core of a running thread may be a
    scheduler's tick (1 to 10 ms) old. Without this accounting in the kernel, or if the process has
    ended, the result is empty.
    """
    threads = {}
    with contextlib.suppress(FileNotFoundError):
        for folder in Path(f"/proc/{pid}/task").iterdir():
            # A thread may end meanwhile.
            with contextlib.suppress(OSError, ValueError):
                ran, waited, _ = (folder / "schedstat").read_text().split()
                threads[int(folder.name)] = int(ran) / 1e9, int(waited) / 1e9
    return threads


class WaitClock:
    """A clock of the time that the calling thread has waited for a core.

    A thread's file stays open as long as the thread and the clock exist, because opening it takes
    ten times as long as reading it.
    """

    def __init__(self) -> None:
        self._files = threading.local()

    def seconds(self) -> float:
        """Return the seconds that the calling thread has waited, in all.

        Raises
        ------
        OSError, IndexError, ValueError
            If the kernel doesn't count them.
        """
        if not hasattr(self._files, "mine"):
            self._files.mine = _ThreadFile()
        return int(os.pread(self._files.mine.descriptor, 64, 0).split()[1]) / 1e9


class _ThreadFile:
    def __init__(self) -> None:
        self.descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

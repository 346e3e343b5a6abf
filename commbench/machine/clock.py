"""The clock that times everything: how finely it divides time."""

from __future__ import annotations

import time
from itertools import pairwise

_N_READINGS = 2000


def step_s() -> float:
    """Return the seconds between two readings of ``time.perf_counter`` that follow each other.

    The resolution that the clock claims is one nanosecond on any Linux; what two readings differ
    by, at the least, is what a duration can be off by: the cost of a reading, or the tick of a
    coarse clock source.
    """
    clock = time.perf_counter
    readings = [clock() for _ in range(_N_READINGS)]
    steps = sorted(later - earlier for earlier, later in pairwise(readings) if later > earlier)
    claimed = time.get_clock_info("perf_counter").resolution
    return max(claimed, steps[len(steps) // 2]) if steps else claimed

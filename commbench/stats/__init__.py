"""From records to summaries: pure functions of a run's frames."""

from __future__ import annotations

from commbench.stats.layers import additions, mode_of, shown_sizes
from commbench.stats.pairs import coverage, pairs
from commbench.stats.selection import tasks
from commbench.stats.summary import (
    CONFIDENCE,
    comparisons,
    idle_cores,
    launch_medians,
    median_interval,
    summaries,
)
from commbench.stats.times import worker_times

__all__ = [
    "CONFIDENCE",
    "additions",
    "comparisons",
    "coverage",
    "idle_cores",
    "launch_medians",
    "median_interval",
    "mode_of",
    "pairs",
    "shown_sizes",
    "summaries",
    "tasks",
    "worker_times",
]

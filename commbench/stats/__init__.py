"""From records to summaries: pure functions of a run's frames."""

from __future__ import annotations

from commbench.stats.pairs import coverage, pairs
from commbench.stats.selection import counted, tasks
from commbench.stats.stability import drifts, spreads
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
    "comparisons",
    "counted",
    "coverage",
    "drifts",
    "idle_cores",
    "launch_medians",
    "median_interval",
    "pairs",
    "spreads",
    "summaries",
    "tasks",
    "worker_times",
]

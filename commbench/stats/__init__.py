"""From records to summaries: pure functions of a run's frames."""

from __future__ import annotations

from commbench.stats.comparison import (
    CONFIDENCE,
    MIN_EFFECT,
    MIN_LAUNCHES,
    between,
    comparisons,
    least_launches,
    regressions,
)
from commbench.stats.pairs import coverage, pairs
from commbench.stats.selection import tasks
from commbench.stats.stopping import ended_by, widest
from commbench.stats.summary import idle_cores, launch_medians, median_interval, summaries
from commbench.stats.times import worker_times

__all__ = [
    "CONFIDENCE",
    "MIN_EFFECT",
    "MIN_LAUNCHES",
    "between",
    "comparisons",
    "coverage",
    "ended_by",
    "idle_cores",
    "launch_medians",
    "least_launches",
    "median_interval",
    "pairs",
    "regressions",
    "summaries",
    "tasks",
    "widest",
    "worker_times",
]

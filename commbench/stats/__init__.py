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
from commbench.stats.worker_profile import profile_shares, worker_profiles

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
    "profile_shares",
    "spreads",
    "summaries",
    "tasks",
    "worker_profiles",
    "worker_times",
]

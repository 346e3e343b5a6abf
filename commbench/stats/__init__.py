"""From records to summaries: pure functions of a run's frames."""

from __future__ import annotations

from commbench.stats.link_model import link_models
from commbench.stats.pairs import coverage, pairs
from commbench.stats.selection import tasks
from commbench.stats.slow_pairs import slow_pairs
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
    "coverage",
    "idle_cores",
    "launch_medians",
    "link_models",
    "median_interval",
    "pairs",
    "slow_pairs",
    "summaries",
    "tasks",
    "worker_times",
]

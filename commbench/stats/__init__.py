"""The statistics of a run: pure functions of its frames."""

from __future__ import annotations

from commbench.stats.comparison import (
    MIN_EFFECT,
    MIN_LAUNCHES,
    between,
    comparisons,
    least_launches,
    regressions,
)
from commbench.stats.layers import (
    LATENCY_MODES,
    additions,
    load_bandwidths,
    pingpong_mode,
    shown_sizes,
)
from commbench.stats.link_model import link_models
from commbench.stats.pairs import (
    PairBandwidths,
    coverage,
    link_bandwidths,
    pair_bandwidths,
    pairs,
)
from commbench.stats.published import (
    PublishedComparison,
    machine,
    measured_quantities,
    published_comparisons,
    ratios,
    reproduced,
)
from commbench.stats.selection import case_labels, counted
from commbench.stats.sequential import CONFIDENCE, ended_by, imprecise, undecided
from commbench.stats.slow_pairs import slow_pairs
from commbench.stats.stability import drifts, spreads
from commbench.stats.summary import (
    costs,
    idle_cores,
    launch_medians,
    median_interval,
    summaries,
)
from commbench.stats.worker_profile import profile_shares, worker_profiles, worker_times

__all__ = [
    "CONFIDENCE",
    "LATENCY_MODES",
    "MIN_EFFECT",
    "MIN_LAUNCHES",
    "PairBandwidths",
    "PublishedComparison",
    "additions",
    "between",
    "case_labels",
    "comparisons",
    "costs",
    "counted",
    "coverage",
    "drifts",
    "ended_by",
    "idle_cores",
    "imprecise",
    "launch_medians",
    "least_launches",
    "link_bandwidths",
    "link_models",
    "load_bandwidths",
    "machine",
    "measured_quantities",
    "median_interval",
    "pair_bandwidths",
    "pairs",
    "pingpong_mode",
    "profile_shares",
    "published_comparisons",
    "ratios",
    "regressions",
    "reproduced",
    "shown_sizes",
    "slow_pairs",
    "spreads",
    "summaries",
    "undecided",
    "worker_profiles",
    "worker_times",
]

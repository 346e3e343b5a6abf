# The public names and where they are defined; `lazy_loader` imports each when it is first used.

from .comparison import MIN_EFFECT, MIN_SESSIONS, between, comparisons, least_launches
from .efficiency import scaling
from .graphs import lines, statements, tasks_per_iteration
from .inference import CONFIDENCE, MIN_LAUNCHES, median_interval
from .layer_costs import LATENCY_MODES, additions, load_bandwidths, pingpong_mode, shown_sizes
from .link_model import link_models
from .published_figures import (
    PublishedComparison,
    machine,
    measured_quantities,
    published_comparisons,
    ratios,
    reproduced,
)
from .selection import (
    case_labels,
    counted,
    iteration_rows,
    measured,
    outer_regions,
    timed,
    typical_sample,
)
from .sequential import (
    N_LOOKS,
    ended_by,
    imprecise,
    look,
    n_missing_launches,
    next_block,
    undecided,
    unknown,
)
from .stability import drifts, spreads
from .stragglers import slow_latencies, slow_pairs
from .summary import costs, idle_cores, launch_medians, summaries
from .worker_pairs import (
    counting,
    coverage,
    link_bandwidths,
    moved_bytes,
    pair_bandwidths,
    seconds_per_byte,
    shuffles,
)
from .worker_profile import profile_shares, worker_profiles, worker_times

__all__ = [
    "CONFIDENCE", "LATENCY_MODES", "MIN_EFFECT", "MIN_LAUNCHES", "MIN_SESSIONS", "N_LOOKS",
    "PublishedComparison", "additions", "between", "case_labels", "comparisons", "costs", "counted",
    "counting", "coverage", "drifts", "ended_by", "idle_cores", "imprecise", "iteration_rows",
    "launch_medians", "least_launches", "lines", "link_bandwidths", "link_models",
    "load_bandwidths", "look", "machine", "measured", "measured_quantities", "median_interval",
    "moved_bytes", "n_missing_launches", "next_block", "outer_regions", "pair_bandwidths",
    "pingpong_mode", "profile_shares", "published_comparisons", "ratios", "reproduced", "scaling",
    "seconds_per_byte", "shown_sizes", "shuffles", "slow_latencies", "slow_pairs", "spreads",
    "statements", "summaries", "tasks_per_iteration", "timed", "typical_sample", "undecided",
    "unknown", "worker_profiles", "worker_times",
]  # fmt: skip

"""A run's cases as benchmarks of asv's, and its launches as their samples."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commbench.stats.selection import GROUP, good_launches, settings_of

if TYPE_CHECKING:
    from commbench.analysis.run import Run

PARAM_NAMES = ("backend", "layer", "payload_bytes", "settings")
UNIT = "seconds"
"""Lower is always better to asv, so it is times that are tracked, never bandwidths."""
VERSION = "1"
"""Of every benchmark: asv drops results of another one, and takes a hash of the code without."""

Key = tuple[str, str, int | None, str]
"""The values of a benchmark's parameters."""
Medians = dict[str, dict[Key, list[float]]]
"""By benchmark and parameters the medians of the launches, in seconds."""


def benchmark(workload: str) -> str:
    """Return the name that asv knows a workload by.

    Examples
    --------
    >>> benchmark("transpose-sum")
    'workloads.track_transpose_sum'
    """
    return "workloads.track_" + re.sub(r"\W", "_", workload)


def medians(run: Run) -> Medians:
    """Return the medians of the launches of `run` that ended well."""
    cases, good = {case.id: case for case in run.suite.cases}, good_launches(run)
    table = run.launch_medians
    table = table[table["case_id"].isin(list(good))]
    found: Medians = {}
    for (case_id, layer, size), group in table.groupby(GROUP, sort=False):
        case = cases[str(case_id)]
        # On a cluster the size follows from the settings, and nobody knows it beforehand.
        size = None if layer == "workload" else int(size)
        key = (case.backend, str(layer), size, settings_of(case))
        launches = found.setdefault(benchmark(case.workload), {}).setdefault(key, [])
        launches += group["median_s"].tolist()
    return found

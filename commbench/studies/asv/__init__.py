"""asv's own files: what a run adds to the history that ``asv publish`` shows.

In asv's terms a workload is a benchmark, ``workloads.track_<workload>``, with four parameters:
``backend``, ``layer``, ``payload_bytes`` (None where it follows from the settings) and
``settings``. Its samples are the medians of the launches, in seconds; its value is their median.
The benchmarks in ``suites/asv`` have the same names and parameters.

The files are those of asv 0.6: version 2 of results and benchmarks, version 1 of machines.
"""

from __future__ import annotations

from commbench.stats.selection import settings_of
from commbench.studies.asv.benchmarks import PARAM_NAMES, UNIT, VERSION, benchmark, medians
from commbench.studies.asv.files import write
from commbench.studies.asv.origin import Commit, commit_of, machine_of

__all__ = [
    "PARAM_NAMES",
    "UNIT",
    "VERSION",
    "Commit",
    "benchmark",
    "commit_of",
    "machine_of",
    "medians",
    "settings_of",
    "write",
]

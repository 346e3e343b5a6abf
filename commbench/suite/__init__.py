"""From a TOML file or command line options to cases, and from cases to a plan of launches.

A suite file::

    name = "smoke"            # every key below is optional
    backends = ["tcp", "ucx:shm"]
    launches = 6              # fresh clusters per case
    iterations = 3            # timed calls per launch
    warmups = 1
    seed = 0
    timeout_s = 300.0         # of one launch

    [cluster]
    n_workers = 2
    threads_per_worker = 1
    device = "cpu"

    [[case]]                  # at least one; it may override every key above but the name
    workload = "merge"
    params = { rows = 1000 }
"""

from __future__ import annotations

from commbench.suite.cases import cases_for, suite_of
from commbench.suite.files import CaseEntry, SuiteFile, read_suite
from commbench.suite.planning import plan, shift
from commbench.suite.strict import structure

__all__ = [
    "CaseEntry",
    "SuiteFile",
    "cases_for",
    "plan",
    "read_suite",
    "shift",
    "structure",
    "suite_of",
]

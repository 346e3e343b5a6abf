"""Tasks of one process that wait for each other because of the GIL."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import MIN_EFFECT, WAITS, CaseRecords, Rule
from commbench.launchers.launcher import memory_limit
from commbench.model import Finding

_BUSY = 0.7
"""The time that threads of one process, together, are on a core if the GIL limits them."""
_ONE_CORE = 1.3
"""Libraries release the GIL for a part of the time."""
_CONTENDED = 0.1
"""The least share of the time in which a request for the GIL has to wait."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if threads sleep in tasks while their process uses about one core.

    In processes with one thread each, the same tasks would run side by side, as far as there are
    cores.
    """
    n_threads = case.case.cluster.threads_per_worker
    # If gilknocker is installed, it is known how often the GIL is busy.
    if n_threads < 2 or case.share("gil_s").median() < _CONTENDED:
        return
    # Where libraries compute in other threads, it is not the GIL.
    on_cores = case.share("compute_s", "other_cpu_s") * n_threads + case.share("other_threads_s")
    blocked = case.share("blocked_s")
    wanted = on_cores.median() + n_threads * case.share("queue_s").median()
    if not (wanted >= _BUSY and on_cores.median() < _ONE_CORE and blocked.median() >= MIN_EFFECT):
        return
    n_workers = case.n_workers
    side_by_side = np.fmin.reduce([n_threads, case.n_cores / n_workers, *map(len, case.cpus)])
    # What one thread after the other computes takes a part of the time on several cores. While the
    # GIL is free, nobody waits for it.
    serial = np.fmin(case.share("compute_s", "other_cpu_s") * n_threads, case.share("gil_s"))
    waits = case.share(*WAITS)
    saved = np.minimum(serial * max(0.0, 1 - 1 / side_by_side), waits)
    is_known = case.share("gil_s").notna().any()
    limit = memory_limit(case.case.cluster, 0.0)
    less = f"{limit // n_threads}B" if isinstance(limit, int) else f"{limit / n_threads:g}"
    memory = {"memory_limit": less} if limit else {}
    yield Finding(
        statement=f"the {n_threads} threads of a worker use {on_cores.median():.1f} cores "
        f"together; each sleeps in tasks {blocked.median():.0%} of the time, as for the GIL",
        evidence="profile: blocked, compute",
        effect=case.effect(saved) if is_known else case.effect(saved, 0 * saved),
        remedy="use processes instead of threads: "
        f"n_workers={n_workers * n_threads}, threads_per_worker=1 "
        f"(dask worker: {n_threads} times as many --nworkers, --nthreads 1)",
        doubt=f"each process has 1/{n_threads} of the memory, and what threads shared is sent; a "
        "lock in the tasks, a blocking read or a P2P shuffle's wait for the loop looks the same"
        + "; install gilknocker on the workers to tell"
        * bool(case.share("gil_s").isna().all()),
        trials=({"workers": str(n_workers * n_threads), "threads": "1", **memory},),
    )


RULE = Rule(
    title="tasks wait for the GIL",
    limit="5 % of the threads' time, of processes that use about one core",
    find=find,
)

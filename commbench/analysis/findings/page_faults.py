"""Memory that the allocator gives back to the system, which then has to be mapped again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from commbench.analysis.findings import CaseRecords, Rule, memory_pauses, spilling
from commbench.model import USER_CODE, Finding

_KEEP_FREED = {"MALLOC_TRIM_THRESHOLD_": "67108864", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""The largest values that glibc chooses if neither is set, as mallopt(3) describes.

Dask's nannies set the first to 64 KiB, so that glibc maps each piece of 128 KiB or more anew.
"""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if workers spend much time on page faults.

    The threads of a worker share its page faults; on full cores all processes gain. Full memory is
    another cause: spilled values are read into new memory, and the remedy would fill it further.
    """
    faults = case.activity("page-faults", contexts=("memory",))
    if not faults.any() or any(map(case.findings, (spilling.RULE, memory_pauses.RULE))):
        return
    cluster = case.case.cluster
    # Threads of libraries and event loops have some of the page faults.
    spent = np.fmin(faults / cluster.threads_per_worker, case.share("compute_s", "other_cpu_s"))
    n_threads = case.n_workers * cluster.threads_per_worker
    saved = spent * n_threads / case.n_cores if case.has_full_cores else spent
    present = {**(case.run.manifest.environment.get("variables") or {}), **cluster.env}
    is_kept = all(
        present.get(name, "").isdecimal() and int(present[name]) >= int(value)
        for name, value in _KEEP_FREED.items()
    )
    others_started = bool(cluster.scheduler) or cluster.launcher == USER_CODE
    kept = " ".join(f"{name}={value}" for name, value in _KEEP_FREED.items())
    yield Finding(
        statement=f"page faults take {spent.median():.0%} of the time of the workers' threads: "
        "memory is used for the first time, or again after it was given back",
        evidence="activities: page-faults",
        effect=case.effect(spent, saved),
        remedy="make pieces of 32 MiB or less, which are not given back"
        + f" if the workers were started with {kept}, as this process was" * others_started
        if is_kept
        else f"let workers keep what they free: {kept}, exported before they start or in Dask's "
        "distributed.nanny.pre-spawn-environ (env=… of LocalCluster is too late)",
        doubt="glibc always gives back what is larger than 32 MiB; other allocators have other "
        "settings. Memory that is kept counts as unmanaged",
        trials=() if is_kept else (_KEEP_FREED,),
    )


RULE = Rule(title="workers give memory back too early", limit="5 % of the time", find=find)

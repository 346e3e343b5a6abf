"""Fewer cores than busy threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench.analysis.findings import MIN_EFFECT, CaseRecords, Rule, polling
from commbench.machine import cores
from commbench.model import Finding

_SPARE = 0.5
"""The share of the cores in use below which threads that are ready wait for the GIL."""
_FULL = 0.9
"""The share of the cores in use from which no other program is needed to explain waits."""


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if threads wait for a core, and ``polling`` is not the reason.

    Without other programs, the case would still take its CPU time on all cores.
    """
    waits, used, others = case.without_waits, case.cores_used, case.others
    has_spare = used < _SPARE and not case.are_apart
    if case.findings(polling.RULE) or (has_spare and not math.isnan(others)):
        return
    if (has_spare or math.isnan(used)) and case.may_wait_for_the_gil:
        return
    n_threads = case.n_workers * case.case.cluster.threads_per_worker
    n = case.n_cores
    where = "the cores" if math.isnan(n) else f"{n:g} core{'s' * (n != 1)}"
    remedy = "use more cores"
    if n_threads > n:
        remedy += f", or no more task threads than these {n:g}, and OMP_NUM_THREADS=1"
    libraries = case.share("other_threads_s").median() * case.n_workers
    without_others, is_external = waits, False
    if not math.isnan(used):
        used_alone = used - (0.0 if math.isnan(others) or case.are_bound else others)
        without_others = waits.clip(upper=max(0.0, 1.0 - used_alone))
    is_unknown = math.isnan(others) and not (case.has_quota or case.are_apart or case.are_bound)
    if libraries > n_threads:
        where += f" with threads of libraries, which use {libraries:.1f} of them"
        remedy = "limit the threads of libraries: POLARS_MAX_THREADS, NUMBA_NUM_THREADS; "
        remedy += "OMP_NUM_THREADS, which a nanny sets to 1 unless it is set"
    elif is_unknown and used < _FULL:
        waits = without_others
        where += f" and use {used:.0%} of them: other programs may use the rest"
        remedy = "use more cores, or end other programs if there are any, and measure again"
    elif case.are_bound:
        where += ", to which the workers are bound"
        remedy = "bind the workers to more cores (--cpus-per-worker, --placement; taskset), or "
        remedy += "give them fewer threads"
    elif others > cores.MAX_OTHERS and without_others.median() >= MIN_EFFECT:
        waits, is_external = without_others, True
        where += f" with other programs, which use {others:.0%} of them"
        remedy = "end the other programs and measure again"
    yield Finding(
        statement=f"{n_threads} task threads and the event loops share {where}"
        if len(case.tasks)
        else f"the event loops share {where}",
        evidence=f"profile: no core, {case.share('queue_s').median():.0%} of a task thread's time, "
        f"{case.share('loop_queue_s').median():.0%} of the workers' event loops'",
        effect=case.effect(waits),
        remedy=remedy,
        doubt="no run has tested this; other programs may use these cores (see top). Fewer "
        "workers would wait less, but each would do more: --workers measures it",
        is_external=is_external,
    )


RULE = Rule(
    title="too few cores",
    limit="waits for a core that are 5 % of the time",
    find=find,
)

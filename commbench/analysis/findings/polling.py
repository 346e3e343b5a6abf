"""Event loops that poll, and take the cores from tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.backends import parse
from commbench.errors import CommbenchError
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if idle event loops are busy, and threads wait for a core.

    Without polling, threads would wait less by the share of the cores' time that it takes, or not
    at all; on full cores, all of that share is saved.
    """
    polled = case.polled
    if not case.polling or polled.isna().all():
        return
    waits = case.without_waits
    estimates = [waits * polled, waits]
    if waits.median() > 0.2:
        estimates.append(polled)
    try:
        best = parse(case.case.backend).best
    except CommbenchError:
        best = case.case.backend
    other = best != case.case.backend
    yield Finding(
        statement=f"{len(case.polling)} event loops poll"
        + f" on {case.n_cores:g} cores" * (not math.isnan(case.n_cores)),
        evidence=f"profile: poll, which is {polled.median():.0%} of the processes' time on cores; "
        f"no core, {case.share('queue_s').median():.0%}",
        effect=case.effect(*estimates),
        remedy=f"if you need {best.partition(':')[0]}, use {best}, whose loops sleep"
        if other
        else "take more cores than processes",
        doubt="with a core for each process, polling shortens latency",
        trials=({"backend": best},) if other else (),
    )  # fmt: skip


RULE = Rule(
    title="event loops poll",
    limit="loops that want a core in more than half of an idle period",
    find=find,
)

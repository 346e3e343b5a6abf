"""Event loops that poll, and take the cores from tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if idle event loops are busy, cores are few, and threads wait for one.

    Without polling, threads would wait less by the share of the cores' time that it takes, or not
    at all; on full cores, all of that share is saved.
    """
    polled = case.polled
    if not case.polling_takes_cores or polled.isna().all():
        return
    waits = case.without_waits
    estimates = [waits * polled, waits]
    if waits.median() > 0.2:
        estimates.append(polled)
    yield Finding(
        statement=f"{len(case.polling)} event loops poll"
        + f" on {case.n_cores:g} cores" * (not math.isnan(case.n_cores)),
        evidence=f"profile: poll, which is {polled.median():.0%} of the processes' time on cores; "
        f"no core, {case.share('queue_s').median():.0%}",
        effect=case.effect(*estimates),
        remedy=f"if you need {case.better.partition(':')[0]}, use {case.better}, whose loops sleep"
        if case.better
        else "take more cores than processes",
        doubt="with a core for each process, polling shortens latency",
        trials=({"backend": case.better},) if case.better else (),
    )  # fmt: skip


RULE = Rule(
    title="event loops poll",
    limit="loops that want a core in more than half of an idle period, unless these loops and the "
    "task threads have a core each",
    find=find,
)

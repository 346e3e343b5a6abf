"""Event loops that poll, and take the cores from tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench.analysis.findings import CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if idle event loops are busy, cores are few, and threads wait for one.

    On full cores, what polling takes of them is saved, less what waking the loops and receiving
    in another thread cost instead: in the trials with which the rule was tuned, a third of it.
    """
    polled = case.polled
    if not case.polling_takes_cores or polled.isna().all():
        return
    is_full = case.has_full_cores
    saved = polled if is_full else case.without_waits
    yield Finding(
        statement=f"{len(case.polling)} event loops poll"
        + f" on {case.n_cores:g} cores" * (not math.isnan(case.n_cores)),
        evidence=f"profile: poll, which is {polled.median():.0%} of the processes' time on cores; "
        f"no core, {case.share('queue_s').median():.0%}",
        effect=case.gain(case.better) or case.effect(saved, saved / 3 if is_full else 0 * saved),
        remedy=f"if you need {case.better.partition(':')[0]}, use {case.better}, whose loops sleep"
        if case.better
        else "take a core for each event loop and each task thread, or settings with which loops "
        "sleep",
        doubt="with a core for each loop and task thread, polling shortens latency"
        + f"; the gain is that of all settings of {case.better}" * bool(case.gain(case.better)),
        trials=({"backend": case.better},) if case.better else (),
    )  # fmt: skip


RULE = Rule(
    title="event loops poll",
    limit="loops that want a core in more than half of an idle period, unless these loops and the "
    "task threads have a core each",
    find=find,
)

"""Nothing wrong with communication."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.findings import MIN_EFFECT, CaseRecords, Rule
from commbench.model import Finding


def find(case: CaseRecords) -> Iterator[Finding]:
    """Yield a finding if task threads hardly ever await data."""
    awaited = case.effect(case.share("data_s"))
    if awaited.share < MIN_EFFECT:
        yield Finding(
            statement=f"task threads await data {awaited.share:.1%} of the time: communication "
            "is not what takes long",
            evidence="profile: await data",
            effect=awaited,
            remedy="keep the backend; the time goes into the tasks",
            doubt="tasks that wait for others look idle, not as if they awaited data",
            is_fine=True,
        )


RULE = Rule(
    title="little communication",
    limit="less than 5 % of the time",
    find=find,
)

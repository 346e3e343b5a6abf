"""What slows a case down, and what helps: one rule per module, each an entry point.

A rule reads the records of one case, and yields findings. Its thresholds are those of
docs/diagnosis.md, which has the rates of its hits and false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commbench.analysis.findings.case_records import CaseRecords
from commbench.errors import ResultsError
from commbench.model import Case, Finding, registry

if TYPE_CHECKING:
    from commbench.analysis.run import Run

__all__ = ["MIN_EFFECT", "CaseRecords", "Rule", "applies", "find"]

MIN_EFFECT = 0.05
"""The smallest effect that is worth a finding, as a share of the wall time."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A cause that the records of a case can show: an entry point in ``commbench.rules``.

    Parameters
    ----------
    title
        The cause, in a few words.
    limit
        The smallest magnitude that the rule detects.
    find
        Yields the findings about a case. Those with a known effect below ``MIN_EFFECT`` are
        dropped.
    """

    title: str
    limit: str
    find: Callable[[CaseRecords], Iterable[Finding]]
    needs_profile: bool = True
    """Whether it needs ``CaseRecords.has_profile``."""
    concerns_links: bool = False
    """Whether its findings are faults of links, which ``commbench links`` names."""


def find(run: Run) -> tuple[list[Finding], list[str]]:
    """Return the findings about a run, and the problems of rules that could not be applied.

    Findings are in the order of the suite's cases, the largest effect of a case first. That nothing
    is wrong is only said of cases without other findings.
    """
    findings, problems = list[Finding](), list[str]()
    # Rules share what was computed for a case.
    cases = [CaseRecords(run, case) for case in run.suite.cases]
    for name in registry.names("rule"):
        for records in cases:
            try:
                findings += _apply(name, registry.load("rule", name), records)
            except ResultsError:
                raise
            except Exception as error:  # noqa: BLE001 - it may be a third party's
                problems.append(f"the rule {name} could not be applied: {error!r}")
    wrong = {finding.case_id for finding in findings if not finding.is_fine}
    order = {case.id: number for number, case in enumerate(run.suite.cases)}
    kept = (each for each in findings if not (each.is_fine and each.case_id in wrong))
    ranked = sorted(kept, key=lambda each: (order[each.case_id], each.effect.rank))
    return ranked, [*dict.fromkeys(problems)]


def without_profile(run: Run) -> list[Case]:
    """Return the computations to which rules that need a profile were not applied."""
    records = (CaseRecords(run, case) for case in run.suite.cases)
    return [each.case for each in records if len(each.wall_s) and not each.has_profile]


def applies(rule: Rule, records: CaseRecords) -> bool:
    """Return whether a rule has a finding about a case."""
    return any(True for _ in _apply("", rule, records))


def _apply(name: str, rule: Rule, records: CaseRecords) -> Iterator[Finding]:
    if rule.needs_profile and not records.has_profile:
        return
    for finding in rule.find(records):
        if finding.is_fine or not finding.effect.share < MIN_EFFECT:
            yield replace(finding, rule=name, case_id=records.case.id)

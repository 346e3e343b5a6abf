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
from commbench.model import Finding, registry

if TYPE_CHECKING:
    from commbench.analysis.run import Run

__all__ = ["MIN_EFFECT", "CaseRecords", "Rule", "find", "rules"]

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
    """Whether it is applied to cases with a profile of their threads only."""


def rules() -> dict[str, Rule]:
    """Return the installed rules by name."""
    return {name: registry.load("rule", name) for name in registry.names("rule")}


def find(run: Run) -> Iterator[Finding]:
    """Yield the findings about a run: case by case, the largest effect first.

    A rule that fails, maybe one of a plug-in, yields a finding that says so.
    """
    installed = rules()
    for case in run.suite.cases:
        records, found = CaseRecords(run, case), list[Finding]()
        for name, rule in installed.items():
            if rule.needs_profile and records.profiles.empty:
                continue
            found += (
                replace(finding, rule=name, case_id=case.id)
                for finding in _guarded(rule, records)
                if finding.is_fine or not finding.effect.share < MIN_EFFECT
            )
        yield from sorted(found, key=_rank)


def _rank(finding: Finding) -> tuple[bool, float]:
    return finding.is_fine, finding.effect.rank


def _guarded(rule: Rule, records: CaseRecords) -> list[Finding]:
    try:
        return list(rule.find(records))
    except ResultsError:
        raise
    except Exception as error:  # noqa: BLE001 - it may be a third party's
        return [
            Finding(
                statement=f"the rule {rule.title!r} could not be applied: {error!r}",
                evidence="", remedy="report it to the authors of the rule", doubt="",
            )
        ]  # fmt: skip

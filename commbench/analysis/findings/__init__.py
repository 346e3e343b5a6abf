"""What slows a case down, and what helps: one rule per module, each an entry point.

A rule reads the records of one case, and yields findings. Its thresholds are those of
docs/diagnosis.md, which has the rates of its hits and false alarms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from commbench.analysis.findings.case_records import SMALL_BYTES, WAITS, CaseRecords
from commbench.analysis.findings.rule import MIN_EFFECT, Rule
from commbench.errors import ResultsError
from commbench.model import Finding, registry
from commbench.stats import outer_regions

if TYPE_CHECKING:
    from commbench.analysis.run import Run

__all__ = ["MIN_EFFECT", "SMALL_BYTES", "WAITS", "CaseRecords", "Rule", "find", "untested"]


def find(run: Run) -> tuple[list[Finding], list[str]]:
    """Return the findings about a run, and the problems of rules that could not be applied.

    Findings are in the order of the suite's cases, the largest effect of a case first. That nothing
    is wrong is only said of cases without other findings.
    """
    findings, problems = list[Finding](), list[str]()
    for case in run.suite.cases:
        # Rules share what was computed for a case.
        records = CaseRecords(run, case)
        for name in registry.names("rule"):
            try:
                rule = registry.load("rule", name)
                findings += (replace(each, rule=name) for each in records.findings(rule))
            except ResultsError:
                raise
            except Exception as error:  # noqa: BLE001 - it may be a third party's
                problems.append(f"the rule {name} could not be applied: {error!r}")
    wrong = {finding.case_id for finding in findings if not finding.is_fine}
    order = {case.id: number for number, case in enumerate(run.suite.cases)}
    kept = (each for each in findings if not (each.is_fine and each.case_id in wrong))
    ranked = sorted(kept, key=lambda each: (order[each.case_id], each.effect.rank))
    return ranked, [*dict.fromkeys(problems)]


def untested(run: Run) -> list[tuple[Finding, Mapping[str, str]]]:
    """Return the remedies of computations that the run has not measured, with their findings."""
    records = {case_id: CaseRecords(run, case) for case_id, case in run.cases.items()}
    return [
        (finding, settings)
        for finding in run.findings if run.kinds[finding.case_id] == "cluster"
        for settings in finding.trials
        if {*settings} != {"backend"} or not records[finding.case_id].gain(settings["backend"])
    ]  # fmt: skip


def without_profile(run: Run) -> dict[str, str]:
    """Return the computations to which rules that need a profile were not applied, and why.

    Returns
    -------
    dict
        The id of the case, and the reason with a remedy.
    """
    outer = {*outer_regions(run)["case_id"]}
    reasons = dict[str, str]()
    for each in (CaseRecords(run, case) for case in run.suite.cases):
        if not len(each.wall_s) or each.has_profile:
            continue
        if each.case.id in outer:
            why = "they are applied to the regions inside"
        elif not run.is_user_code or each.rows(run.threads).empty:
            why = (
                "the times of threads are unknown. They are known of workers that are "
                "processes on Linux: Client(processes=True) has these"
            )
        else:
            why = (
                "over a tenth of the workers joined, left or were restarted. If they were lost, "
                "mend that first; else wait for them, by client.wait_for_workers"
            )
        reasons[each.case.id] = why
    return reasons


def unapplied(run: Run, names: Iterable[str] = ()) -> list[str]:
    """Return the rules, of those with `names` or all, that could be applied to no case.

    Without names, the rules for computations are left out of other runs.
    """
    rules = registry.loadable("rule")
    if run.measured.empty:
        return [*(names or rules)]
    if any(CaseRecords(run, case).has_profile for case in run.suite.cases):
        return []
    concerned = names or (rules if "cluster" in run.kinds.values() else ())
    return [name for name in concerned if rules[name].needs_profile]

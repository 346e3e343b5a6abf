"""Findings as sentences: what slows a case down, by how much, and what helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from commbench.analysis.run import Run
from commbench.model import Finding
from commbench.reports.sections import Quantity, Section, Table, some

_MAX_NAMES = 3


def sentences(run: Run, most: int, only: Collection[str] = ()) -> list[str]:
    """Return a sentence for each rule with a finding, the largest effect first.

    Parameters
    ----------
    most
        The maximum number of sentences.
    only
        The ids of the cases; without any, all.

    Notes
    -----
    Of a rule with findings about several cases, that with the largest effect is shown, with the
    names of all. If nothing is wrong, that is said.
    """
    shown = [finding for finding in run.findings if not only or finding.case_id in only]
    wrong = [finding for finding in shown if not finding.is_fine]
    by_rule: dict[tuple[str, str], list[Finding]] = {}
    several = Counter((finding.case_id, finding.rule) for finding in wrong)
    for finding in sorted(wrong, key=lambda each: each.effect.rank):
        # A case may have several slow links.
        is_alone = several[finding.case_id, finding.rule] == 1
        key = (finding.rule, "" if is_alone else finding.statement)
        by_rule.setdefault(key, []).append(finding)
    lines = [_sentence(run, group) for group in [*by_rule.values()][:most]]
    if not wrong:
        fine = [finding for finding in shown if finding.is_fine]
        lines += [_sentence(run, fine)] if fine else []
    return lines


def _sentence(run: Run, findings: Sequence[Finding]) -> str:
    first = findings[0]
    cases = {case.id: case for case in run.suite.cases}
    alone = run.is_user_code or len({*run.case_labels.values()}) > 1
    names = [
        run.case_names[each.case_id] if alone else cases[each.case_id].variant for each in findings
    ]
    who = some([*dict.fromkeys(names)], _MAX_NAMES) + ": "
    if len(cases) == 1:
        who = ""
    if first.is_fine:
        return f"{who}{first.statement}. {_capitalized(first.remedy)}."
    if not first.effect.is_known:
        return f"{first.statement}. {_capitalized(first.remedy)}."
    remedy = _capitalized(first.remedy)
    return f"{who}{first.effect} of the time is lost: {first.statement}. {remedy}."


def tables(run: Run) -> Iterator[Table]:
    """Yield a table of all findings, case by case."""
    if run.findings:
        shown = [(run.case_names[each.case_id], each) for each in run.findings]
        yield Table.from_columns(
            "What slows the cases down, and what helps",
            {
                "case": [name for name, _ in shown],
                "time lost": [
                    Quantity(str(each.effect) if each.effect.is_known else "?", each.effect.share)
                    for _, each in shown
                ],
                "finding": [each.statement for _, each in shown],
                "remedy": [each.remedy for _, each in shown],
            },
            "time lost: the share of the time that the case would save without the cause. Effects "
            "overlap, and don't add up. commbench diagnose has evidence and doubts.",
            text_columns={"finding", "remedy"},
        )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def details(run: Run) -> Iterator[str]:
    """Yield a paragraph for each finding, with its evidence and what else could explain it."""
    for finding in run.findings:
        lines = [_sentence(run, [finding])]
        lines += [f"  evidence: {finding.evidence}"] * bool(finding.evidence)
        lines += [f"  but: {finding.doubt}"] * bool(finding.doubt)
        yield "\n".join(lines)


SECTION = Section(
    title="Findings",
    position=5,
    tables=tables,
    to_read="What takes longer than it has to, by how much of the time, and what to change; the "
    "largest effect of a case comes first.",
    not_to_conclude="That several effects add up. Nor that a remedy helps before it was measured: "
    "commbench prove does that.",
)

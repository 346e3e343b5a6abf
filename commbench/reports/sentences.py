"""Findings as sentences: what slows a case down, by how much, and what helps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from commbench.analysis.findings import CaseRecords
from commbench.analysis.run import Run
from commbench.backends import parse_or_none
from commbench.model import Finding
from commbench.model.units import format_seconds
from commbench.reports.sections import Quantity, Section, Table, some
from commbench.reports.sections.differences import slowdowns
from commbench.stats.graphs import line
from commbench.stats.inference import MIN_LAUNCHES
from commbench.stats.worker_profile import FAILED

MAX_NAMES = 3
_LEAST_ACTORS = 0.1
"""The cores of a worker from which methods of actors are mentioned."""
_LEAST_LINE = 0.1
"""The share of the time of all tasks, or of the region, from which a line is mentioned."""
_LEAST_FAILED = 0.05
"""The share of the time of all attempts from which failed ones are mentioned."""


def largest(run: Run, most: int, only: Collection[str] = ()) -> list[list[Finding]]:
    """Return the findings with the largest effects; those of a cause together.

    Parameters
    ----------
    most
        The maximum number of causes: of rules or, if the effect is unknown, of statements.
    only
        The ids of the cases; without any, all. Of each the largest effect counts, and those that
        are unknown if something else cures them.
    """
    # Code that raised has another problem.
    ended_well = run.regions[run.regions["error"] == ""]
    raised = {*run.regions["case_id"]} - {*ended_well["case_id"]}
    shown = [
        each for each in run.findings
        if (not only or each.case_id in only) and each.case_id not in raised
    ]  # fmt: skip
    # That nothing is wrong is news only if it holds for all.
    wrong = [each for each in shown if not each.is_fine] or shown
    by_cause: dict[tuple[str, str], list[Finding]] = {}
    main: dict[str, Finding] = {}
    # The regions of a user's code follow one another.
    seconds = run.measured.groupby("case_id")["seconds"].sum() if run.is_user_code else {}

    def order(each: Finding) -> tuple[bool, float]:
        # What is outside of the run comes last: it is not the user's code, or the backend.
        return each.is_external, each.effect.rank * seconds.get(each.case_id, 1.0)

    for each in sorted(wrong, key=order):
        first = main.setdefault(each.case_id, each)
        is_cured = each.effect.is_known or (each.trials and each.trials == first.trials)
        if only and each.rule != first.rule and is_cured:
            continue
        by_cause.setdefault(_cause(run, each), []).append(each)
    return [*by_cause.values()][:most]


def _cause(run: Run, finding: Finding) -> tuple[str, str]:
    """Return the key that findings with one cause share."""
    several = sum(
        (each.case_id, each.rule) == (finding.case_id, finding.rule) for each in run.findings
    )
    # A case may have several slow links, and those of other cases differ.
    is_apart = several > 1 or not (finding.effect.is_known or finding.is_fine)
    return finding.rule, finding.statement if is_apart else ""


def sentence(run: Run, findings: Sequence[Finding]) -> str:
    """Return a sentence about findings of a rule, which has the words of the first one.

    It names all cases with the same cause, so that this doesn't seem to be the backend's.
    """
    first, names = findings[0], _names(run)
    who = names[first.case_id]
    shared = [
        each for each in run.findings
        if (
            _cause(run, each) == _cause(run, first)
            or (each.rule, each.statement) == (first.rule, first.statement)
        )
        and each.effect.is_known and each not in findings
    ]  # fmt: skip
    shared.sort(key=lambda each: each.effect.rank)
    others = [
        f"{names[each.case_id]} {str(each.effect).partition(' (')[0]}" if each.effect.is_known
        else names[each.case_id]
        for each in (*findings[1:], *shared)
    ]  # fmt: skip
    alike = all(each.statement == first.statement for each in (*findings, *shared))
    also = some(others, MAX_NAMES)
    if first.is_fine:
        text = f"{some([*dict.fromkeys(names[each.case_id] for each in findings)], MAX_NAMES)}: "
        text = text * (len(names) > 1) + first.statement
    elif not first.effect.is_known:
        whose = [*dict.fromkeys(names[each.case_id] for each in findings)]
        is_named = len(names) == 1 or {*whose} <= {*first.statement.split()}
        text = f"{some(whose, MAX_NAMES)}: " * (not is_named) + first.statement
    else:
        text = f"{who if len(names) > 1 else 'it'} could take {first.effect} less time"
        text += f", {also}" * (alike and bool(others)) + f": {first.statement}"
        text += f" (for the same reason, {also})" * (not alike)
    # Those of several cases begin with a name.
    is_named = len(names) > 1 or text.startswith(who)
    text = text if is_named else _capitalized(text)
    return f"{text}. {_capitalized(_remedy(run, first, only_worse=True))}."


def _remedy(run: Run, finding: Finding, *, only_worse: bool = False) -> str:
    """Return a remedy; if it is a backend that was measured, too, also how that one did.

    If `only_worse`, this is left out of a backend that was faster than the finding's.
    """
    label = run.case_labels[finding.case_id]
    peers = {case.id: case for case in run.suite.cases if run.case_labels[case.id] == label}
    named = [
        case_id for case_id, case in peers.items()
        if {"backend": case.variant} in finding.trials and case.variant in finding.remedy
    ]  # fmt: skip
    compared = [
        c for c in run.comparisons
        if {c.baseline_id, c.candidate_id} <= {*peers} and c.layer == "workload"
        and c.n_launches >= MIN_LAUNCHES and c.verdict != "unequal"
    ]  # fmt: skip
    if len(named) != 1 or not compared:
        return finding.remedy
    (it,) = named
    ratios = slowdowns(compared)
    if only_worse and (it, finding.case_id) in ratios:
        return finding.remedy
    beaten = {slow for _, slow in ratios}
    partners = {c.baseline_id for c in compared if c.candidate_id == it}
    partners |= {c.candidate_id for c in compared if c.baseline_id == it}
    # The verdict recommends one of these, or `it`.
    good = [case_id for case_id in peers if case_id in partners - beaten]
    faster = [case_id for case_id in good if (case_id, it) in ratios]
    if faster:
        how = f"it takes {ratios[faster[0], it]} as long as {peers[faster[0]].variant}"
    elif good:
        how = f"no difference to {peers[good[0]].variant} is shown"
    elif {case_id for case_id, case in peers.items() if not case.original} - {it} <= partners:
        how = "it is the fastest"
    else:
        slower = (case.variant for case_id, case in peers.items() if case_id in partners)
        how = f"it is faster than {' and '.join(slower)}"
    return f"{finding.remedy} (in this run, {how})"


def _settings(backend: str, device: str) -> str:
    """Return how a program of Dask uses a backend; "" if its plug-in is not installed."""
    parsed = parse_or_none(backend)
    if parsed is None:
        return ""
    variables = parsed.settings(device)
    is_set = all("=" in word for word in variables.split())
    return f"protocol={parsed.protocol!r}" + f" and {variables} in every process" * is_set


def _names(run: Run) -> dict[str, str]:
    """Return a name for each case: its backend, and its task if there are several."""
    if run.is_user_code or len({*run.case_labels.values()}) > 1:
        return run.case_names
    return {case.id: case.variant for case in run.suite.cases}


def conclusion(finding: Finding) -> str:
    """Return the rule, the effect and the statement of a finding."""
    could = f"could take {finding.effect} less time: " * finding.effect.is_known
    return f"[{finding.rule}] {could * (not finding.is_fine)}{finding.statement}"


def details(run: Run) -> Iterator[str]:
    """Yield a paragraph for each finding, with its rule, evidence and what else may explain it.

    The last one of a case says where the time of its task threads goes.
    """
    for case_id, group in groupby(run.findings, lambda each: each.case_id):
        yield f"{run.case_names[case_id]}:"
        for each in sorted(group, key=lambda each: each.is_external):
            lines = [f"{conclusion(each)}. {_capitalized(_remedy(run, each))}."]
            lines += [f"  evidence: {each.evidence}"] * bool(each.evidence)
            lines += [f"  but: {each.doubt}"] * bool(each.doubt)
            backends = dict.fromkeys(t["backend"] for t in each.trials if "backend" in t)
            device = run.cases[case_id].cluster.device
            settings = ((name, _settings(name, device)) for name in backends)
            lines += [f"  {name}: {how}" for name, how in settings if how]
            yield "\n".join(lines)
        yield from _where_time_goes(run, case_id)
    diagnosed = {each.case_id for each in run.findings}
    for case_id in run.cases:
        for text in _where_time_goes(run, case_id) if case_id not in diagnosed else ():
            yield f"{run.case_names[case_id]}: no rule has a finding. {text}"


def _where_time_goes(run: Run, case_id: str) -> Iterator[str]:
    """Yield what task threads of a case do, and the tasks that take the most time, if known."""
    shares = run.profile_shares[run.profile_shares["process"] == "workers"]
    for row in shares[shares["case_id"] == case_id].itertuples():
        text = (
            f"Task threads compute {row.compute + row.other_cpu:.0%} of the time, wait "
            f"{row.queue:.0%} for a core, sleep in tasks {row.blocked:.0%}, await data "
            f"{row.data:.0%} and have no task {row.idle:.0%}."
        )
        records = CaseRecords(run, run.cases[case_id])
        # What a task returns has a size; the time of those that failed is in the activities.
        tasks = records.tasks[records.tasks["nbytes"] > 0]
        spent_s = tasks.groupby("name", observed=True)["seconds"].sum()
        if spent_s.sum() > 0:
            parts = (spent_s / spent_s.sum()).nlargest(MAX_NAMES)
            listed = ", ".join(f"{name} {part:.0%}" for name, part in parts.items())
            text += f" Most of the tasks' time: {listed}."
        statements = run.statements[run.statements["case_id"] == case_id]
        # A single one says nothing about where.
        if len(statements) > 1:
            longest = statements[statements["code"] != ""].head(MAX_NAMES)
            listed = ", ".join(
                f"{line(code)} {format_seconds(seconds)}"
                for code, seconds in zip(longest["code"], longest["seconds"], strict=True)
            )
            text += f" The cluster is busy longest for {listed}." * bool(listed)
        lines = run.lines[(run.lines["case_id"] == case_id) & (run.lines["share"] >= _LEAST_LINE)]
        for what, rows in (
            ("Most of the tasks' time, by line", lines[lines["role"] == "task"]),
            ("Most of the script's", lines[lines["role"].isin(["script", "graph", "blocked"])]),
            ("It waits for the cluster at", lines[lines["role"] == "wait"]),
        ):
            listed = ", ".join(
                f"{line(row.code) or f'compiled code of {row.name}'} {row.share:.0%}"
                for row in rows.itertuples()
            )
            text += f" {what}: {listed}." * bool(listed)
        rows = records.measured_rows("activities")
        is_failed = (rows["context"] == "execute") & rows["label"].isin(FAILED)
        failed_s = rows["seconds"][is_failed].sum()
        if failed_s > _LEAST_FAILED * (spent_s.sum() + failed_s):
            text += (
                f" Attempts that failed, were rescheduled or cancelled take "
                f"{failed_s / (spent_s.sum() + failed_s):.0%} of the time of all: see the workers' "
                "logs."
            )
        threads = records.measured_rows("threads")
        threads = threads[threads["role"] == "actors"]
        used = (threads["cpu_seconds"] / threads["seconds"]).groupby(threads["worker"]).mean().max()
        if used >= _LEAST_ACTORS:
            text += (
                f" Methods of actors are no tasks; those of one worker use {used:.1f} cores, one "
                "method at a time."
            )
        yield text


def tables(run: Run) -> Iterator[Table]:
    """Yield a table of all findings, case by case."""
    if run.findings:
        shown = [(run.case_names[each.case_id], each) for each in run.findings]
        yield Table.from_columns(
            "What slows the cases down, and what helps",
            {
                "case": [name for name, _ in shown],
                "could save": [
                    Quantity(str(each.effect) if each.effect.is_known else "?", each.effect.share)
                    for _, each in shown
                ],
                "finding": [
                    each.statement + f"\nevidence: {each.evidence}" * bool(each.evidence)
                    for _, each in shown
                ],
                "remedy": [
                    _remedy(run, each) + f"\nbut: {each.doubt}" * bool(each.doubt)
                    for _, each in shown
                ],
            },
            "could save: how much less time the case would take without the cause: an estimate, "
            "and the range of estimates and launches, which is no confidence interval; or what "
            "the run has measured, with its 95% interval. They overlap, and don't add up.",
            text_columns={"finding", "remedy"},
        )


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


SECTION = Section(
    title="Findings",
    position=5,
    tables=tables,
    to_read="What takes longer than it has to, by how much of the time, and what to change; the "
    "largest effect of a case comes first.",
    not_to_conclude="That several effects add up. Nor that a remedy helps before it was measured: "
    "commbench prove does that.",
)

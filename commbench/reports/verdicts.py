"""The output of ``compare``, ``ab`` and ``check``: is a run slower, or out of its limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from commbench import stats
from commbench.analysis import warnings
from commbench.analysis.comparability import Match
from commbench.analysis.references import Check
from commbench.analysis.run import Run
from commbench.model import Comparison, Manifest
from commbench.model.units import format_message_size, format_seconds
from commbench.reports import json, junit, terminal
from commbench.reports.sections import Table, started_at
from commbench.reports.sections.differences import VERDICT_COLUMNS, note, verdict_cells
from commbench.stats import regressions


def comparison_text(
    baseline: Run, candidate: Run, match: Match, comparisons: Sequence[Comparison],
    control: str = "",
) -> str:  # fmt: skip
    """Return the comparison of two runs for a terminal.

    The compared values are multiples of the times of the backend `control`, if there is one.
    """
    tasks = baseline.case_labels
    form = "{:.3g}×".format if control else format_seconds
    table = Table(
        f"The second run against the first{f', as multiples of {control}' * bool(control)}",
        ("case", "first", "second", *VERDICT_COLUMNS),
        tuple(
            (
                _case(c, tasks[c.baseline_id]), form(c.baseline_s), form(c.candidate_s),
                *verdict_cells(c),
            )
            for c in comparisons
        ),
        note(comparisons, f"{len(comparisons)} cases" if len(comparisons) > 1 else "")
        + f" Slower: {len(regressions(comparisons))} of {len(comparisons)}."
        + f" first, second: medians over launches of the time over that of {control} in the same "
        "block, so that a change of the machine, which affects both, cancels." * bool(control),
        text_columns=frozenset({"verdict"}),
    )  # fmt: skip
    differences = [f"not the same: {difference}" for difference in match.differences]
    warnings = [*differences, *match.alone, *_warnings(baseline, candidate, comparisons)]
    heading = f"{_name(baseline.manifest)}\nagainst {_name(candidate.manifest)}"
    return terminal.page(heading, warnings, [table])


def comparison_json(
    baseline: Run, candidate: Run, match: Match, comparisons: Sequence[Comparison],
    control: str = "",
) -> str:  # fmt: skip
    """Return the comparison as one JSON object; unknown numbers are null.

    With a `control`, ``baseline_s`` and ``candidate_s`` are multiples of its times.
    """
    return json.dumps(
        {
            "baseline": baseline.manifest.id,
            "candidate": candidate.manifest.id,
            "differences": [asdict(difference) for difference in match.differences],
            "alone": list(match.alone),
            "control": control or None,
            "warnings": _warnings(baseline, candidate, comparisons),
            "comparisons": [asdict(comparison) for comparison in comparisons],
        }
    )


def _name(run: Manifest) -> str:
    commit = ((run.environment.get("git") or {}).get("commbench") or {}).get("commit")
    return f"{run.id} · {started_at(run)}" + (f" · commit {commit[:12]}" if commit else "")


def _case(comparison: Comparison, task: str) -> str:
    over = f"{task} {comparison.candidate}"
    if comparison.layer == "workload":
        return over
    return f"{over} {comparison.layer} {format_message_size(comparison.payload_bytes)}"


def _warnings(baseline: Run, candidate: Run, comparisons: Sequence[Comparison]) -> list[str]:
    least = stats.least_launches(len(comparisons))
    n_launches = min(comparison.n_launches for comparison in comparisons)
    too_few = (
        f"{n_launches} launches can't tell {len(comparisons)} cases apart at 5 %, whatever their "
        f"times: it takes {least} of each in both runs"
    )
    # A difference may be that of what disturbed either run.
    first, second = (warnings.disturbances(run) for run in (baseline, candidate))
    return [
        *[too_few] * (n_launches < least),
        *(f"{'both runs' if text in second else 'the first run'}: {text}" for text in first),
        *(f"the second run: {text}" for text in second if text not in first),
    ]


def check_text(run: Manifest, checks: Sequence[Check]) -> str:
    """Return the checks of a run against its references for a terminal."""
    n_failed = sum(not check.ok for check in checks)
    n_named = Counter(check.reference.short_name for check in checks)
    references = [check.reference for check in checks]
    table = Table.from_columns(
        f"{run.id} against its references",
        {
            "what": [r.short_name if n_named[r.short_name] == 1 else r.name for r in references],
            "measured": [_quantity(check, check.value) for check in checks],
            "reference": [_quantity(check, check.reference.value) for check in checks],
            "allowed": map(_limits, checks),
            "result": map(_result, checks),
        },
        f"{len(checks)} checked, {n_failed} failed. Measured: the median over launches of each "
        "launch's median, or the workload's bytes over it. MISSING: no launch ended well.",
        {"result"},
    )
    return terminal.page(f"{run.suite.name} · {started_at(run)}", [], [table])


def check_junit(run: Manifest, checks: Sequence[Check]) -> str:
    """Return the checks as a JUnit test suite with one test case per check."""
    cases = []
    for check in checks:
        reference = check.reference
        case = junit.case(reference.name, reference.workload)
        result = f"{_quantity(check, check.value)}, allowed {_limits(check)}"
        if check.ok:
            junit.add_element(case, "system-out", result)
        else:
            why = f"{reference.name} in {run.id}: {result}"
            junit.add_element(case, "failure", why, message=result, type="reference")
        cases.append(case)
    return junit.document(run, cases)


def _result(check: Check) -> str:
    return "ok" if check.ok else "MISSING" if math.isnan(check.value) else "FAILED"


def _quantity(check: Check, value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.4g} {check.reference.unit}"


def _limits(check: Check) -> str:
    low, high = check.reference.limits
    if math.isinf(low) and math.isinf(high):
        return "any"
    if math.isinf(low):
        return f"≤ {high:.4g}"
    return f"≥ {low:.4g}" if math.isinf(high) else f"{low:.4g}…{high:.4g}"

"""What ``commbench compare`` says: the same cases in two runs, as text or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from commbench import stats
from commbench.analysis import warnings
from commbench.analysis.comparability import Match
from commbench.analysis.run import Run
from commbench.model import Comparison, Manifest
from commbench.model.units import format_message_size, format_seconds
from commbench.reports import json, terminal
from commbench.reports.sections.cells import Table
from commbench.reports.sections.comparison import limits, note, probability, signed, times
from commbench.stats import regressions


def text(baseline: Run, candidate: Run, match: Match, found: Sequence[Comparison]) -> str:
    """Return the comparison for a terminal."""
    tasks = baseline.case_labels
    rows = [
        (
            _label(c, tasks[c.baseline_id]), format_seconds(c.baseline_s),
            format_seconds(c.candidate_s), times(c), limits(c), probability(c), signed(c.delta),
            c.verdict,
        )
        for c in found
    ]  # fmt: skip
    warnings = [f"not the same: {difference}" for difference in match.differences]
    warnings += [*match.alone, *_too_few(found), *_disturbances(baseline, candidate)]
    table = Table(
        "The second run against the first",
        ("case", "first", "second", "time", "95%\ninterval", "p", "δ", "verdict"),
        tuple(rows),
        note(found, f"{len(found)} cases" if len(found) > 1 else "")
        + f" Slower: {len(regressions(found))} of {len(found)}.",
        text_columns=frozenset({"verdict"}),
    )
    heading = f"{_name(baseline.manifest)}\nagainst {_name(candidate.manifest)}"
    return terminal.page(heading, warnings, [table])


def as_json(baseline: Run, candidate: Run, match: Match, found: Sequence[Comparison]) -> str:
    """Return the comparison as one JSON object; a number that is unknown is null."""
    return json.dumps(
        {
            "baseline": baseline.manifest.id,
            "candidate": candidate.manifest.id,
            "differences": [asdict(difference) for difference in match.differences],
            "alone": list(match.alone),
            "warnings": [*_too_few(found), *_disturbances(baseline, candidate)],
            "comparisons": [asdict(comparison) for comparison in found],
        }
    )


def _name(run: Manifest) -> str:
    commit = ((run.environment.get("git") or {}).get("commbench") or {}).get("commit")
    when = f"{run.started_at[:16].replace('T', ' ')} UTC"
    return f"{run.id} · {when}" + (f" · commit {commit[:12]}" if commit else "")


def _label(comparison: Comparison, task: str) -> str:
    over = f"{task} {comparison.candidate}"
    if comparison.layer == "workload":
        return over
    return f"{over} {comparison.layer} {format_message_size(comparison.payload_bytes)}"


def _disturbances(baseline: Run, candidate: Run) -> Iterator[str]:
    """Yield what disturbed either run: a difference may be that of the company they had."""
    first, second = (list(warnings.find(run)) for run in (baseline, candidate))
    for text in dict.fromkeys([*first, *second]):
        both = text in first and text in second
        whose = "both runs" if both else "the first run" if text in first else "the second run"
        yield f"{whose}: {text}"


def _too_few(found: Sequence[Comparison]) -> list[str]:
    least, n_launches = stats.least_launches(len(found)), min(c.n_launches for c in found)
    if n_launches >= least:
        return []
    return [
        f"{n_launches} launches can't tell {len(found)} cases apart at 5 %, whatever their times: "
        f"it takes {least} of each in both runs"
    ]

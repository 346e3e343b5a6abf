"""The output of ``compare``, ``ab`` and ``check``: is a run slower, or out of its limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from commbench import stats
from commbench.analysis import warnings
from commbench.analysis.comparability import Match
from commbench.analysis.references import MIN_SLOWDOWN, Check
from commbench.analysis.run import Run
from commbench.model import Comparison, Manifest
from commbench.model.units import format_bytes, format_message_size, format_seconds
from commbench.reports import json, junit, markdown, terminal
from commbench.reports.sections import Table, plural, range_ends, some, started_at
from commbench.reports.sections.differences import (
    VERDICT_COLUMNS,
    at_most,
    note,
    times,
    verdict_cells,
)
from commbench.stats.comparison import EQUAL_WORK, FEW_BYTES, relative_to, side_key
from commbench.stats.comparison import sides as measured_sides
from commbench.stats.selection import good_launches
from commbench.stats.stability import modes

_MOST_NAMED = 4
_MAX_ITERATIONS_RATIO = 2.0
_PASSES = "This passes, except with --undecided fail"
_OTHER_WORK = (
    "Times of other work have no verdict; this fails unless it is faster, or not slower with "
    "--undecided pass"
)


@dataclass(frozen=True, kw_only=True)
class ComparedRuns:
    """Two runs and the comparisons of their cases.

    With a ``control``, these are of multiples of the times of that backend. ``on_undecided`` is
    ``pass``, ``fail``, or None: pass, but fail if the launches can't show any slower case.
    ``disturbed`` has the notes on disturbed launches of both runs; ``failed`` says whether a launch
    failed that no other has replaced.
    """

    baseline: Run
    candidate: Run
    match: Match
    comparisons: Sequence[Comparison]
    control: str = ""
    interleaved: bool = False
    on_undecided: str | None = None
    sides: tuple[str, str] = ("first", "second")
    disturbed: tuple[Sequence[str], Sequence[str]] = ((), ())
    failed: bool = False

    def with_verdict(self, *verdicts: str) -> list[Comparison]:
        """Return the comparisons with one of these verdicts."""
        return [c for c in self.comparisons if c.verdict in verdicts]

    @property
    def outcome(self) -> str:
        """``slower`` if any case is slower, else ``undecided`` if any is, else ``not slower``."""
        if self.with_verdict("slower"):
            return "slower"
        unequal = filter(self.fails, self.with_verdict("unequal"))
        is_open = self.with_verdict("inconclusive") or any(unequal) or self.without_control
        if is_open or not self.comparisons:
            return "undecided"
        return "not slower"

    @property
    def undecided_fail(self) -> bool:
        """Whether undecided cases of these runs are failures."""
        is_blind = all(math.isinf(each.detectable) for each in self.comparisons)
        return self.on_undecided == "fail" or (is_blind and self.on_undecided is None)

    @property
    def has_failure(self) -> bool:
        """Whether a case of these runs is a failure, or undecided ones are."""
        is_lax = self.outcome != "undecided" or not self.undecided_fail
        return not is_lax or any(map(self.fails, self.comparisons))

    def fails(self, comparison: Comparison) -> bool:
        """Return whether a case of these runs is a failure."""
        if comparison.verdict == "inconclusive":
            return self.undecided_fail
        if comparison.verdict == "unequal":
            # More bytes may be a part of a slowdown, so that it doesn't pass unseen.
            is_faster = comparison.ci_high < 1
            least = 1 + comparison.min_effect
            is_slower = comparison.ci_low > 1 and comparison.ratio > least
            return is_slower or not (is_faster or self.on_undecided == "pass")
        return comparison.verdict == "slower"

    @cached_property
    def without_control(self) -> dict[str, str]:
        """The workload of each case that has no comparison, because a run lacks its control."""
        if not self.control:
            return {}
        compared = {side_key(c.baseline_id, c.layer, c.payload_bytes) for c in self.comparisons}
        theirs = {side.key for side in measured_sides(self.candidate)}
        return {
            self._case(side.case.id, side.case.variant, *side.key[1:]): side.case.workload
            for side in measured_sides(self.baseline)
            if side_key(self.match.same.get(side.case.id, ""), *side.key[1:]) in theirs
            and side.key not in compared
            and self.control not in (side.case.backend, side.case.variant)
        }

    @cached_property
    def lost(self) -> list[str]:
        """The ids of the cases with launches that ended well in the baseline alone."""
        first, second = map(good_launches, (self.baseline, self.candidate))
        lost = [old for old, new in self.match.same.items() if old in first and new not in second]
        # Both sides of an A/B were to measure the same cases.
        alone = [old for old in first if self.interleaved and old not in self.match.same]
        return [*lost, *alone]

    @property
    def lost_names(self) -> list[str]:
        """The names of the lost cases."""
        return [self.baseline.case_names[case_id] for case_id in self.lost]

    @property
    def lost_workloads(self) -> dict[str, str]:
        """The workload of each layer and size of the lost cases, as comparisons are called."""
        return {
            self._case(side.case.id, side.case.variant, *side.key[1:]): side.case.workload
            for side in measured_sides(self.baseline)
            if side.case.id in self.lost
        }

    @property
    def failed_launches(self) -> list[str]:
        """How many launches of each run failed."""
        runs = self.baseline, self.candidate
        n_failed = [int((~run.ends["ok"].astype(bool)).sum()) for run in runs]
        return [
            f"the {side} run: {n} of {len(run.ends)} launches failed"
            for side, n, run in zip(self.sides, n_failed, runs, strict=True)
            if n
        ]

    @property
    def _count(self) -> str:
        return plural(len(self.comparisons), "case")

    @property
    def headline(self) -> list[str]:
        """The verdicts in a line each, with their cases: the worst first; then other bytes."""
        groups = (
            ("Slower", ("slower",), ""),
            ("Not comparable", ("unequal",), f". {_OTHER_WORK}"),
            ("Undecided", ("inconclusive",), f". {self._remedy()}"),
            ("Faster", ("faster",), ""), ("Same", ("same",), ""),
        )  # fmt: skip
        lines = []
        n_cases = len(self.comparisons) + len(self.without_control)
        for title, verdicts, end in groups:
            if cases := self.with_verdict(*verdicts):
                if title in ("Slower", "Faster"):
                    cases.sort(key=lambda c: -abs(math.log(c.ratio)))
                named = some([self._named(c) for c in cases], _MOST_NAMED)
                every = len(cases) == n_cases > 1
                which = "" if every and title in ("Undecided", "Same") else f": {named}"
                lines.append(f"{title}: {len(cases)} of {plural(n_cases, 'case')}{which}{end}.")
        if rest := [*self.without_control]:
            count = f"{len(rest)} of {plural(n_cases, 'case')}"
            line = f"Not compared: {count}: {some(rest, _MOST_NAMED)}."
            line += f" A run has no time of {self.control} in their blocks."
            lines.append(line + f" {_PASSES}." * (not self.undecided_fail))
        if self.lost:
            named = some(self.lost_names, _MOST_NAMED)
            lines.append(f"Lost: {named}: no good launch in the {self.sides[1]} run.")
        return [*lines, *self._other_bytes()]

    def _remedy(self) -> str:
        """Return the ways to decide the undecided cases, and whether these pass."""
        undecided = self.with_verdict("inconclusive")
        least = stats.least_launches(len(self.comparisons))
        few = [c.n_launches for c in undecided if c.n_launches < least]
        sentences = []
        if few:
            which = self._count if len(few) == len(self.comparisons) else f"{len(few)} of them"
            sentences.append(
                f"{plural(min(few), 'launch')} can't decide {which}, however much their "
                f"times differ; {least} can"
            )
        by_days = [c.sessions_ratio for c in undecided if c.sessions_ratio > 1 + c.min_effect]
        if by_days:
            sentences.append(
                f"Days of the history differ by up to {times(max(by_days))}, which launches can't "
                "decide; --control can, or commbench ab"
            )
        elif len(few) < len(undecided):
            ratios = [c.detectable for c in undecided if math.isfinite(c.detectable)]
            missed = f"Slowdowns below {at_most(max(ratios))} can be missed. " if ratios else ""
            sentences.append(f"{missed}More --launches can decide, or a quieter machine")
        if undecided and not any(map(self.fails, undecided)):
            sentences.append(_PASSES)
        return ". ".join(sentences)

    def _other_bytes(self) -> Iterator[str]:
        """Yield the amounts if cases moved other bytes, and what that can come from."""
        others = [
            c for c in self.comparisons
            if abs(c.candidate_moved_bytes - c.baseline_moved_bytes)
            > max(EQUAL_WORK * min(c.baseline_moved_bytes, c.candidate_moved_bytes), FEW_BYTES)
        ]  # fmt: skip
        if not others:
            return
        amounts = [
            f"{self.case(c)} {format_bytes(round(c.candidate_moved_bytes))} instead of "
            f"{format_bytes(round(c.baseline_moved_bytes))}"
            for c in others
        ]
        by_dask = any(
            self.baseline.cases[c.baseline_id].cluster.task_placement != "pinned" for c in others
        )
        yield (
            f"Bytes between workers in an iteration differ: {some(amounts, _MOST_NAMED)}."
            + " Dask may have placed the tasks differently, as it does from launch to launch; "
            "--task-placement pinned excludes that." * by_dask
        )

    def _named(self, comparison: Comparison) -> str:
        if comparison.verdict in ("slower", "faster"):
            return f"{self.case(comparison)} {times(comparison.ratio)}"
        return self.case(comparison)

    def case(self, comparison: Comparison) -> str:
        """Return the task, the backend, the layer and the size of a comparison."""
        c = comparison
        return self._case(c.baseline_id, c.candidate, c.layer, c.payload_bytes)

    def _case(self, case_id: str, variant: str, layer: str, payload_bytes: int) -> str:
        over = f"{self.baseline.case_labels[case_id]} {variant}"
        if layer == "workload":
            return over
        size = self.baseline.message_bytes(case_id, layer, payload_bytes)
        return f"{over} {layer} {format_message_size(size)}"

    @property
    def names(self) -> str:
        """The ids, times and commits of both runs."""
        return f"{_name(self.candidate.manifest)}\nagainst {_name(self.baseline.manifest)}"

    @property
    def table(self) -> Table:
        """The comparisons, with both times."""
        first, second = self.sides
        medians = [_medians(run, self.control) for run in (self.baseline, self.candidate)]
        has_history = any(not math.isnan(c.sessions_ratio) for c in self.comparisons)
        days = ("other\ndays",) * has_history
        return Table(
            f"{second} against {first}{f', as multiples of {self.control}' * bool(self.control)}",
            ("case", first, second, *days, *VERDICT_COLUMNS),
            tuple(
                (
                    self.case(c),
                    *(
                        cells[side_key(case_id, c.layer, c.payload_bytes)]
                        for cells, case_id in zip(
                            medians, (c.baseline_id, c.candidate_id), strict=True
                        )
                    ),
                    *(times(c.sessions_ratio) for _ in days), *verdict_cells(c),
                )
                for c in self.comparisons
            ),
            note(self.comparisons, self._count if len(self.comparisons) > 1 else "")
            + " a or b: launches split into two modes."
            * any(" or " in text for cells in medians for text in cells.values())
            + f" {first}, {second}: medians over launches of the time over that of {self.control} "
            "in the same block, so that a change of the machine, which affects both, cancels."
            * bool(self.control)
            + " other days: two days of the history rarely differ by more; a ratio within it is "
            "inconclusive." * has_history,
            text_columns=frozenset({"verdict"}),
        )  # fmt: skip

    @property
    def _may_be_the_day(self) -> bool:
        """Whether a difference may be that of two sessions."""
        is_one = self.interleaved or self.control
        differ = self.with_verdict("slower", "faster")
        return not is_one and any(math.isnan(c.sessions_ratio) for c in differ)

    def _other_iterations(self, one: str, two: str) -> Iterator[str]:
        """Yield the cases whose launches have more than twice the iterations in one run."""
        first, second = (
            run.measured[run.measured["layer"] == "workload"].groupby(["case_id", "launch"]).size()
            .groupby("case_id").median() for run in (self.baseline, self.candidate)
        )  # fmt: skip
        for old, new in self.match.same.items():
            if old not in first or new not in second:
                continue
            few, many = sorted(counts := (first[old], second[new]))
            if many > _MAX_ITERATIONS_RATIO * few:
                yield (
                    f"{self.baseline.case_names[old]}: launches have {counts[0]:.0f} iterations in "
                    f"{one} and {counts[1]:.0f} in {two}, but a cluster's first may be slower"
                )

    def _other_hosts(self, one: str, two: str) -> Iterator[str]:
        """Yield the hosts of the workers in both runs if they differ, as a queue's may."""
        same = self.match.same
        first, second = (
            sorted({*run.places["host"][run.places["case_id"].isin(ids)]})
            for run, ids in ((self.baseline, [*same]), (self.candidate, [*same.values()]))
        )
        if first and second and first != second:
            yield (
                f"workers were on {some(first, _MOST_NAMED)} in {one} and on "
                f"{some(second, _MOST_NAMED)} in {two}: other hosts may have other times"
            )

    @property
    def warnings(self) -> list[str]:
        """Differences between the runs, and disturbances of either."""
        # A difference may be that of what disturbed either run.
        runs = self.baseline, self.candidate
        first, second = map(warnings.disturbances, runs)
        one, two = (f"the {side} run" for side in self.sides)
        return [
            *self.failed_launches,
            *(f"not the same: {difference}" for difference in self.match.differences),
            *self.match.alone,
            *self._other_hosts(one, two),
            *self._other_iterations(one, two),
            *["two sessions of the same software may differ, too: --control or --history"]
            * self._may_be_the_day,
            *(
                f"{side}: {text}"
                for side, notes in zip((one, two), self.disturbed, strict=True)
                for text in notes
            ),
            *(f"{'both runs' if text in second else one}: {text}" for text in first),
            *(f"{two}: {text}" for text in second if text not in first),
        ]


def _medians(run: Run, control: str) -> dict[tuple[str, str, int], str]:
    """Return the median of each side, or both modes if its launches split into two."""
    cells = {}
    for side in relative_to(control, measured_sides(run)) if control else measured_sides(run):
        each = modes(side.medians)
        numbers = (side.median_s,) if each is None else each[:2]
        if control:
            text = " or ".join(map(times, numbers))
        else:
            text = " or ".join(range_ends(*numbers)) if each else format_seconds(side.median_s)
        cells[side.key] = text
    return cells


def _terminal(runs: ComparedRuns) -> str:
    tables = [runs.table] if runs.comparisons else []
    return terminal.page("\n".join(runs.headline), runs.warnings, [runs.names, *tables])


def _markdown(runs: ComparedRuns) -> str:
    title, *rest = runs.headline
    opening: list[str | Table] = ["\n".join(rest), runs.names]
    if runs.comparisons:
        opening.append(runs.table)
    return markdown.page(title, filter(None, opening), runs.warnings, [])


def _junit(runs: ComparedRuns) -> str:
    cases = []
    for comparison in runs.comparisons:
        case = junit.case(runs.case(comparison), comparison.workload)
        time, interval, *_, verdict = verdict_cells(comparison)
        text = f"{verdict}: {time} as long, 95 % interval {interval}"
        if runs.fails(comparison):
            junit.add_element(case, "failure", text, type=verdict, message=text)
        elif verdict in ("inconclusive", "unequal"):
            junit.add_element(case, "skipped", "", message=text)
        else:
            junit.add_element(case, "system-out", text)
        cases.append(case)
    for name, workload in runs.without_control.items():
        case = junit.case(name, workload)
        text = f"not compared: a run has no time of {runs.control} in its blocks"
        kind = "failure" if runs.undecided_fail else "skipped"
        junit.add_element(case, kind, "", type="control", message=text)
        cases.append(case)
    for name, workload in runs.lost_workloads.items():
        case = junit.case(name, workload)
        junit.add_element(case, "error", "", type="launch", message="no launch ended well")
        cases.append(case)
    if runs.failed and not runs.lost:
        case = junit.case("all launches", "launches")
        message = "; ".join(runs.failed_launches) or "a run ended before its launches did"
        junit.add_element(case, "error", "", type="launch", message=message)
        cases.append(case)
    return junit.document(runs.candidate.manifest, cases)


def _json(runs: ComparedRuns) -> str:
    # With a control they are multiples.
    no_times = dict.fromkeys(("baseline_s", "candidate_s")) if runs.control else {}
    return json.dumps(
        {
            "outcome": runs.outcome,
            "baseline": runs.baseline.manifest.id,
            "candidate": runs.candidate.manifest.id,
            "differences": [asdict(difference) for difference in runs.match.differences],
            "alone": list(runs.match.alone),
            "lost": runs.lost_names,
            "control": runs.control or None,
            "without_control": [*runs.without_control],
            "warnings": runs.warnings,
            "comparisons": [asdict(comparison) | no_times for comparison in runs.comparisons],
        }
    )


COMPARISON_FORMATS = {
    "terminal": _terminal, "markdown": _markdown, "junit": _junit, "json": _json,
}  # fmt: skip
"""The functions that return the text of compared runs. In JSON, unknown numbers are null."""


def _name(run: Manifest) -> str:
    git = run.environment.get("git") or {}
    commit = (git.get("working_directory") or git.get("commbench") or {}).get("commit")
    return f"{run.id} · {started_at(run)}" + (f" · commit {commit[:12]}" if commit else "")


def undecided(checks: Sequence[Check]) -> str:
    """Return which values may be much slower and pass, or an empty string."""
    few = sorted((each for each in checks if each.is_undecided), key=lambda each: -each.slowdown)
    if not few:
        return ""
    named = [f"{each.reference.short_name} {at_most(each.slowdown)}" for each in few]
    return (
        f"{len(few)} of {plural(len(checks), 'value')} can't show a slowdown of "
        f"{MIN_SLOWDOWN:g}×, because launches differ too much, or are few; this passes: "
        f"{some(named, _MOST_NAMED)}. More --launches of the reference, or a quieter machine can"
    )


def check_text(run: Manifest, checks: Sequence[Check]) -> str:
    """Return the checks of a run against its references for a terminal."""
    n_failed = sum(not check.ok for check in checks)
    n_named = Counter(check.reference.short_name for check in checks)
    references = [check.reference for check in checks]
    table = Table.from_columns(
        f"{run.id} against its references",
        {
            "what": [r.short_name if n_named[r.short_name] == 1 else r.name for r in references],
            "measured": [_quantity(check, check.values) for check in checks],
            "reference": [_quantity(check, [check.reference.value]) for check in checks],
            "allowed": map(_limits, checks),
            "result": map(_result, checks),
        },
        "Measured: the median over launches of each launch's median, or the workload's bytes over "
        "it; a or b: of launches that split into two modes, both must be allowed. MISSING: no such "
        "layer or size, or no launch ended well.",
        {"result"},
    )
    counts = f"{len(checks)} checked, {n_failed} failed"
    if n_undecided := sum(check.is_undecided for check in checks):
        counts += f", {n_undecided} undecided"
    title = f"{counts}: {run.suite.name} · {started_at(run)}"
    return terminal.page(title, filter(None, [undecided(checks)]), [table])


def undecided_fail(checks: Sequence[Check], on_undecided: str | None) -> bool:
    """Return whether undecided values are failures; by default, if no other is checked."""
    are_undecided = [check.is_undecided for check in checks]
    is_failure = {"pass": False, "fail": any(are_undecided)}
    return is_failure.get(on_undecided or "", all(are_undecided))


def check_junit(run: Manifest, checks: Sequence[Check], on_undecided: str | None = None) -> str:
    """Return the checks as a JUnit test suite with one test case per check."""
    is_strict = undecided_fail(checks, on_undecided)
    cases = []
    for check in checks:
        reference = check.reference
        case = junit.case(reference.name, reference.workload)
        result = f"{_quantity(check, check.values)}, allowed {_limits(check)}"
        if check.is_undecided and not is_strict:
            junit.add_element(case, "skipped", "", message=undecided([check]))
        elif check.is_undecided:
            junit.add_element(case, "failure", "", message=undecided([check]), type="undecided")
        elif check.ok:
            junit.add_element(case, "system-out", result)
        else:
            why = f"{reference.name} in {run.id}: {result}"
            junit.add_element(case, "failure", why, message=result, type="reference")
        cases.append(case)
    return junit.document(run, cases)


def _result(check: Check) -> str:
    if check.is_undecided:
        return "undecided"
    return "ok" if check.ok else "FAILED" if check.values else "MISSING"


def _quantity(check: Check, values: Sequence[float]) -> str:
    shown = " or ".join(f"{value:.4g}" for value in values)
    return f"{shown} {check.reference.unit}" if shown else "none"


def _limits(check: Check) -> str:
    low, high = check.limits
    return f"≥ {low:.4g}" if math.isinf(high) else f"{low:.4g}…{high:.4g}"

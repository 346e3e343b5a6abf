"""Tables of the differences between backends, with their intervals, tests and verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from commbench.analysis.run import Run
from commbench.model import FETCHES, Case, Comparison
from commbench.model.units import format_message_size
from commbench.reports.sections import (
    CHANNELS,
    Quantity,
    Section,
    Table,
    by_size,
    number,
    plural,
    variants_title,
)
from commbench.stats.comparison import EQUAL_WORK, least_launches
from commbench.stats.inference import CONFIDENCE
from commbench.stats.sequential import N_LOOKS, look_level

_LOOK = " (and the interval of that level), because a run with a budget is looked at several times"
LARGE = 10
"""The ratio beyond which a limit of differences is none."""
_BUDGET_FACTOR = 1.5
"""How many times the budget is suggested that was too short for a verdict."""


def tables(run: Run) -> Iterator[Table]:
    """Yield a table per task: all pairs of backends, or each backend and the first by size."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for c in run.comparisons:
        groups.setdefault((run.case_labels[c.baseline_id], c.layer), []).append(c)
    for (task, layer), group in groups.items():
        if layer == "workload":
            yield Table(
                f"{task}: differences between backends",
                ("backends", *VERDICT_COLUMNS),
                tuple((f"{c.candidate} vs {c.baseline}", *verdict_cells(c)) for c in group),
                note(group, f"{len(group)} pairs" if len(group) > 1 else ""),
                text_columns=frozenset({"verdict"}),
            )
        else:
            first = group[0]
            shown = [c for c in group if c.baseline_id == first.baseline_id]
            what, size = f", {layer} layer: time of a message", "size"
            if layer in CHANNELS:
                what, size = f"{CHANNELS[layer][0]}: time", "block"
            yield by_size(
                f"{task}{what} as a multiple of {first.baseline}'s",
                {(_message_bytes(run, c), c.candidate): ratio(c) for c in shown},
                "The cells are ratios by Hodges and Lehmann, with their verdicts "
                "(docs/measurements.md); the format json has intervals and p, too.",
                size,
            )


def resolution(run: Run) -> str:
    """Return the smallest differences that the run can show, and whether its problem is small."""
    rule = run.manifest.stopping
    small = "Its problem is small (--quick): at full size, another backend may be the fastest."
    is_small = bool(rule and rule.quick and run.comparisons)
    return " ".join(filter(None, [_resolution(run), small * is_small]))


def _resolution(run: Run) -> str:
    if not run.comparisons:
        return ""
    # Medians of 0 have no ratio, however many launches there are.
    known = [c for c in run.comparisons if min(c.baseline_s, c.candidate_s) > 0]
    if not known:
        return "This run can't tell any backends apart: the clock is too coarse for their times."
    able = sorted(
        (c for c in known if c.detectable < math.inf), key=lambda comparison: comparison.detectable
    )
    what = "backends" if variants_title(run) == "backend" else "settings"
    if not able:
        n_launches, design = design_for_verdict(run)
        is_planned = n_launches <= max(case.launches for case in run.suite.cases)
        return (
            f"This run can't tell any {what} apart: it has {plural(known[0].n_launches, 'launch')} "
            f"per case, and needs {n_launches}{f' ({design})' * (not is_planned)}."
        )
    open_ = [c for c in able if c.verdict == "inconclusive" and c.detectable <= LARGE]
    unable = [c for c in known if c.verdict == "inconclusive" and c.detectable > LARGE]
    if not open_ and not unable:
        return ""
    missed = []
    if open_:
        least, most = open_[0], open_[-1]
        worst = f"up to {most.detectable:.3g}×"
        if most.detectable > (1 + most.min_effect) * least.detectable:
            worst += f" ({least.detectable:.3g}× in its best comparison)"
        missed.append(worst)
    if unable:
        c, more = unable[0], f" and {len(unable) - 1} more" * (len(unable) > 1)
        pair = f"{c.candidate} vs {c.baseline}"
        pair = subject(run, pair, c.baseline_id, c.layer, c.payload_bytes)
        missed.append(f"any of {pair}{more}")
    margin = max(c.margin if c.margin >= 0 else math.inf for c in (*open_, *unable))
    # Rounded down, it would not hold.
    within = math.ceil(100 + 100 * margin) / 100 if margin < math.inf else margin
    holds = f"; same within {within:.2f}×" if within <= LARGE else ""
    return f"Where no difference is shown, {' and '.join(missed)} can be missed{holds}."


def design_for_verdict(run: Run) -> tuple[int, str]:
    """Return the least launches of each case that allow a verdict, and the option for them.

    If the run had a budget, that is the time that as many of its launches would take. It is more
    than a budget that was too short.
    """
    together = Counter(
        (run.case_labels[c.baseline_id], c.layer, c.payload_bytes)
        for c in run.comparisons
        if min(c.baseline_s, c.candidate_s) > 0
    )
    alpha = look_level(N_LOOKS) if run.manifest.stopping else 1 - CONFIDENCE
    n_launches = least_launches(max(together.values(), default=1), alpha)
    if not run.manifest.stopping:
        return n_launches, f"--launches {n_launches}"
    block_s = run.ends.groupby("case_id")["seconds"].median().sum()
    needed_s = n_launches * block_s
    if run.ended_by == "time":
        spent_s = max(run.manifest.stopping.budget_s, run.ends["seconds"].sum())
        needed_s = max(needed_s, _BUDGET_FACTOR * spent_s)
    return n_launches, f"--budget {math.ceil(needed_s / 60)}m"


def subject(run: Run, what: str, case_id: str, layer: str, payload_bytes: int) -> str:
    """Return `what`; of messages also their layer and size."""
    if layer == "workload":
        return what
    size = format_message_size(run.message_bytes(case_id, layer, payload_bytes))
    return f"{what}, {FETCHES.get(layer, f'{layer} layer')}, {size}"


def task(run: Run, case_id: str) -> str:
    """Return the label of a case; if each number of workers has several cases, also that."""
    case = run.cases[case_id]
    workers = f", {plural(case.cluster.n_workers, 'worker')}"
    return run.case_labels[case_id] + workers * ({*case.varied} > {"workers"})


def name(case: Case) -> str:
    """Return the variant of a case among those of its ``task``."""
    others = tuple(setting for setting in case.varied if setting != "workers")
    return replace(case, varied=others).variant or case.variant


def _message_bytes(run: Run, c: Comparison) -> int:
    return run.message_bytes(c.baseline_id, c.layer, c.payload_bytes)


def note(group: Sequence[Comparison], pairs: str) -> str:
    """Return the meaning of the verdicts of `group`; `pairs` describes those tested together."""
    adjusted = f", adjusted for {pairs} (Holm)" if pairs else ""
    limit, tests = 1 + group[0].min_effect, " or ".join(sorted({c.test for c in group}))
    pairing = " or, without the same blocks, ".join(
        words
        for words, paired in (
            ("of the launches in each block, which took turns", True),
            ("of each launch of one with each of the other", False),
        )
        if any(c.paired == paired for c in group)
    )
    return (
        f"Ratio by Hodges and Lehmann, {pairing}, with its interval; p: exact {tests} test of "
        f"the launches' medians{adjusted}; finds from: a true ratio this large gets a verdict in "
        f"9 of 10 such runs; same within: the {same_level(group[0])} interval, which must lie "
        f"within {limit:.4g} for same. "
        f"faster, slower: beyond 1/{limit:.4g} or {limit:.4g}, the interval without 1, "
        f"p ≤ {group[0].alpha:.3g}{_LOOK * (group[0].alpha < 1 - CONFIDENCE)}; "
        "inconclusive: none of these."
        + " unequal: the bytes moved or the numbers of tasks differ by more than "
        f"{EQUAL_WORK:.0%}, which may take time." * any(c.verdict == "unequal" for c in group)
    )


class Slowdown(NamedTuple):
    """The ratio of the time of a slower case to that of a faster one, and its interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{multiple(self.ratio)}×"

    @property
    def with_interval(self) -> str:
        """Return the ratio and its interval, for sentences without a table of intervals."""
        return f"{self} ({multiple(self.low)} to {multiple(self.high)})"


def same_level(comparison: Comparison) -> str:
    """Return the level of the interval on which the verdict same rests."""
    return f"{100 * (1 - 2 * comparison.alpha):.3g} %"


def slowdowns(comparisons: Iterable[Comparison]) -> dict[tuple[str, str], Slowdown]:
    """Return the ratios that are significant, by the ids of the faster and the slower case."""
    ratios = {}
    for c in comparisons:
        if c.verdict == "slower":
            ratios[c.baseline_id, c.candidate_id] = Slowdown(c.ratio, c.ci_low, c.ci_high)
        elif c.verdict == "faster":
            inverse = Slowdown(1 / c.ratio, 1 / c.ci_high, 1 / c.ci_low)
            ratios[c.candidate_id, c.baseline_id] = inverse
    return ratios


def ranked(
    cases: Iterable[str], ratios: Mapping[tuple[str, str], Slowdown]
) -> tuple[list[str], list[str], list[str]]:
    """Return the fastest of the `cases`, the slower ones, and those that are not distinguished.

    The fastest are slower than no other, and each slower case is slower than all of them.
    """
    cases = list(cases)
    beaten = {slow for _, slow in ratios}
    best = [
        case
        for case in cases
        if case not in beaten and all((case, slow) in ratios for slow in beaten)
    ]
    left = [case for case in cases if case not in beaten and case not in best]
    return best, [case for case in cases if case in beaten], left


def ratio(comparison: Comparison) -> str:
    """Return for example ``1.23×, slower``."""
    return Quantity(f"{times(comparison.ratio)}, {comparison.verdict}", comparison.ratio)


VERDICT_COLUMNS = ("time", "95%\ninterval", "p", "finds\nfrom", "same\nwithin", "verdict")


def verdict_cells(comparison: Comparison) -> tuple[str, ...]:
    """Return the cells of ``VERDICT_COLUMNS``; intervals are sorted by their lower end."""
    c = comparison
    return (
        times(c.ratio),
        _interval(c.ci_low, c.ci_high),
        Quantity("<0.001", c.p_value) if c.p_value < 0.001 else number(c.p_value),
        times(c.detectable) if c.detectable < math.inf else "—",
        _interval(c.same_low, c.same_high),
        c.verdict,
    )


def _interval(low: float, high: float) -> Quantity:
    return Quantity("none" if math.isnan(low) else f"{multiple(low)}…{multiple(high)}", low)


def times(ratio: float) -> Quantity:
    """Return a ratio of times, or a dash if it is nan."""
    return Quantity("—" if math.isnan(ratio) else f"{multiple(ratio)}×", ratio)


def at_most(ratio: float) -> str:
    """Return a limit of ratios, whose digits say nothing if it is large.

    Examples
    --------
    >>> at_most(1.25), at_most(51.5)
    ('1.25×', '10× and more')
    """
    return f"{LARGE:g}× and more" if ratio > LARGE else f"{multiple(ratio)}×"


def multiple(ratio: float) -> str:
    """Return a ratio with two decimals, and more if these would make it 0 or 1.

    Examples
    --------
    >>> multiple(1.25), multiple(1.0), multiple(1.0041), multiple(0.9996), multiple(0.0149)
    ('1.25', '1.00', '1.004', '0.9996', '0.015')
    """
    if ratio < 0.1:
        return f"{ratio:.2g}"
    texts = (f"{ratio:.{digits}f}" for digits in range(2, 7))
    return next((text for text in texts if float(text) != 1), "1.00")


SECTION = Section(
    title="Differences between backends",
    position=70,
    tables=tables,
    to_read="A ratio below 1 says that the first one took less time. Faster and slower are said "
    "only where the interval, an exact rank test and a least effect agree.",
    not_to_conclude="That inconclusive means equal: the run can't tell, and --rigorous goes on "
    "until it can. Where backends are equal, the verdict is same.",
)

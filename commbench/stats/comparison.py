"""Compare sets of launches: ratio, confidence interval, test and verdict.

The ratio and its interval are those that belong to a rank test of the launches' medians (Hodges
and Lehmann). The verdict is

- ``unequal`` if the bytes moved per iteration differ by more than 5 % between cases with as many
  workers, and the difference may take time that matters, because then the times don't compare the
  backends;
- ``faster`` or ``slower`` if the ratio is further from 1 than ``min_effect``, its interval excludes
  1, the test is significant (with Holm's correction for the pairs tested together), and for more
  than two backends, so is the test that all are alike;
- ``same`` if two one-sided tests say that the ratio is above 1/(1 + ``min_effect``) and below 1 +
  ``min_effect``, that is, if its 90 % interval is between them (D. J. Schuirmann, J. Pharmacokinet.
  Biopharm. 15 (1987));
- ``inconclusive`` otherwise.

A run with a budget has stricter levels at its earlier looks (``commbench.stats.sequential``).

Backends that ran in the same blocks are paired by them, so that a disturbance of a whole block
counts for neither side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from commbench.model import Case, Comparison
from commbench.stats import inference
from commbench.stats.inference import CONFIDENCE, MIN_LAUNCHES
from commbench.stats.selection import GROUP, good_launches
from commbench.stats.sequential import significance

if TYPE_CHECKING:
    from commbench.analysis.run import Run

MIN_EFFECT = 0.05
"""The smallest relative difference that matters: changes of other settings cause more."""
COMPRESSION = "distributed.comm.compression"
EQUAL_WORK = 0.05
"""The largest relative difference of the bytes moved per iteration with which times compare."""
LITTLE_TIME = 0.2
"""A difference of bytes may explain this share of the smallest difference that matters."""
FEW_BYTES = 10_000
"""The difference of the bytes moved that means nothing, as of longer addresses in messages."""
MIN_SESSIONS = 3
"""The fewest sessions of a history that show how much sessions differ."""


def side_key(case_id: str, layer: str, payload_bytes: int) -> tuple[str, str, int]:
    """Return the key of the measurements of a case at one layer and size, in any run.

    A computation has one payload, which may differ between parameters or versions.
    """
    return case_id, layer, 0 if layer == "workload" else payload_bytes


@dataclass(frozen=True)
class Side:
    """The launches of one case at one layer and size, in the order of their ``blocks``.

    ``medians`` has shape (n_launches,), and so have the blocks. ``moved_bytes`` are those of an
    iteration, nan where they are not counted.
    """

    case: Case
    layer: str
    payload_bytes: int
    blocks: tuple[int, ...]
    medians: np.ndarray[Any, Any]
    moved_bytes: float = math.nan

    @property
    def key(self) -> tuple[str, str, int]:
        """The case's id, the layer and the size."""
        return side_key(self.case.id, self.layer, self.payload_bytes)

    @property
    def median_s(self) -> float:
        """The median over launches of each launch's median."""
        return float(np.median(self.medians))


def sides(run: Run) -> list[Side]:
    """Return every case, layer and size with a successful launch, in the suite's order."""
    ends = run.ends.drop_duplicates(["case_id", "launch"], keep="last")
    numbers = ends.set_index(["case_id", "launch"])["block"].to_dict()
    moved = run.moved_bytes
    table = run.launch_medians
    table = table[table["case_id"].isin(list(good_launches(run)))]
    every = []
    for (case_id, layer, size), group in table.groupby(GROUP, sort=False):
        launches = zip(group["launch"], group["median_s"], strict=True)
        medians = {int(numbers[case_id, launch]): median_s for launch, median_s in launches}
        blocks = tuple(sorted(medians))
        values = np.array([medians[block] for block in blocks])
        nbytes = float(moved.get(case_id, math.nan)) if layer == "workload" else math.nan
        case = run.cases[str(case_id)]
        every.append(Side(case, str(layer), int(size), blocks, values, nbytes))
    return every


def comparisons(run: Run, min_effect: float | None = None) -> list[Comparison]:
    """Compare the backends of every task, layer and size with each other.

    The baseline of a pair is the backend that comes first in the suite. A twin is compared with
    its original only. If they differ, other differences of the task, layer and size that are no
    larger are ``inconclusive``, as are those of messages that are no larger than that of memory
    copies of their size. ``min_effect`` is 5 % or the budget's ``detect`` by default.
    """
    rule, alpha = run.manifest.stopping, significance(run)
    if min_effect is None:
        min_effect = MIN_EFFECT if rule is None else rule.detect
    groups: dict[Any, list[Side]] = {}
    for side in sides(run):
        # All pairs at once have the same payload with other blocks between more workers.
        nbytes = run.message_bytes(side.case.id, side.layer, side.payload_bytes)
        key = _task(side.case), side.layer, side.payload_bytes, nbytes
        groups.setdefault(key, []).append(side)
    measured, are_twins, tasks = [], [], []
    for task, group in groups.items():
        complete = len({side.blocks for side in group}) == 1
        medians = [side.medians for side in group]
        alike = inference.all_alike(medians, paired=complete) if len(group) > 2 else 0.0
        pairs = [pair for pair in combinations(group, 2) if _are_compared(*pair)]
        unequal = [_is_unequal((run, run), *pair, min_effect) for pair in pairs]
        measured += compare_pairs(
            pairs, min_effect, alike=alike, paired=True, alpha=alpha, unequal=unequal
        )
        are_twins += [bool(one.case.original or two.case.original) for one, two in pairs]
        tasks += [task] * len(pairs)
    return _without_contradicted(measured, are_twins, tasks)


def _is_unequal(runs: tuple[Run, Run], one: Side, two: Side, min_effect: float) -> bool:
    """Return whether two sides moved other bytes or, in one run, ran more tasks: other work."""
    clusters = [each.case.cluster for each in (one, two)]
    if len({each.n_workers for each in clusters}) > 1:
        return False
    # A commit or a setting may need fewer tasks for the same result.
    is_one = runs[0] is runs[1] and one.case.settings == two.case.settings
    # Comparisons with nan are false.
    if is_one and len({each.threads_per_worker for each in clusters}) == 1:
        n_tasks = [runs[0].tasks_per_iteration.get(each.case.id, math.nan) for each in (one, two)]
        if one.layer == "workload" and max(n_tasks) - min(n_tasks) > EQUAL_WORK * min(n_tasks):
            return True
    less, more = sorted((one.moved_bytes, two.moved_bytes))
    if not more - less > max(EQUAL_WORK * less, FEW_BYTES):
        return False
    # Compression is to change the bytes on the wire.
    codings = [side.case.settings.get(COMPRESSION, "as it is") for side in (one, two)]
    if codings[0] != codings[1]:
        return False
    # Without overlap, transfers cost the most.
    slowest = max(
        run.seconds_per_byte.get(side.case.id, math.inf)
        for run, side in zip(runs, (one, two), strict=True)
        if side.moved_bytes
    )
    fastest_s = min(side.median_s for side in (one, two))
    return not slowest * (more - less) < LITTLE_TIME * min_effect * fastest_s


def _are_compared(one: Side, two: Side) -> bool:
    cases = [side.case for side in (one, two)]
    originals = {replace(case, backend=case.plain_backend).variant for case in cases}
    return len(originals) == 1 or not any(case.original for case in cases)


def _without_contradicted(
    comparisons: Sequence[Comparison], are_twins: Sequence[bool], tasks: Sequence[object]
) -> list[Comparison]:
    """Return the comparisons; none has a smaller difference than one of its controls.

    Its controls are the twins of its task, and the memory copies of its cases and size.
    """

    def size(comparison: Comparison) -> float:
        differs = comparison.verdict in ("faster", "slower")
        return abs(math.log(comparison.ratio)) if differs else 0.0

    pairs = [(each.baseline_id, each.candidate_id, each.payload_bytes) for each in comparisons]
    limits: dict[object, float] = defaultdict(float)
    rows = [*zip(comparisons, are_twins, tasks, pairs, strict=True)]
    for each, is_twin, task, pair in rows:
        if is_twin:
            limits[task] = max(limits[task], size(each))
        if each.layer == "memcpy":
            limits[pair] = max(limits[pair], size(each))
    kept = []
    # What one control contradicts remains a control for others.
    for each, is_twin, task, pair in rows:
        by_copies = 0.0 if each.layer == "memcpy" else limits[pair]
        limit = 0.0 if is_twin else max(limits[task], by_copies)
        within = 0 < size(each) <= limit
        kept.append(replace(each, verdict="inconclusive") if within else each)
    return kept


def _task(case: Case) -> tuple[str, str, str]:
    """Return the properties that cases must share to be compared."""
    return case.workload, repr(sorted(case.params.items())), repr(case.common_cluster.measured())


def controls(control: str, cases: Iterable[Case]) -> dict[str, Case]:
    """Return the case of the backend `control` with which each other case is compared, by its id.

    Where other settings vary, too, it has the same ones, but variables that it does not read,
    unless `control` names a variant, such as ``tcp workers=2``.
    """
    cases = list(cases)
    variants = {(_task(case), case.variant): case for case in cases}
    read = {name for case in cases if case.backend == control for name in case.cluster.env}
    by_id = {}
    for case in cases:
        varied = tuple(name for name in case.varied if name in read or name not in case.cluster.env)
        alike = replace(case, backend=control, varied=varied).variant
        other = variants.get((_task(case), control)) or variants.get((_task(case), alike))
        if other is not None and other.id != case.id:
            by_id[case.id] = other
    return by_id


def relative_to(control: str, every: Iterable[Side]) -> list[Side]:
    """Return the sides of the other backends with multiples of the backend `control`'s medians.

    A launch's median is divided by that of the control's launch in the same block. Blocks without
    one are left out, and so are sides whose control has a median of 0.
    """
    relative = []
    for side, *others in _with_controls(control, every).values():
        if not others or not others[0].medians.min() > 0:
            continue
        (other,) = others
        blocks = tuple(sorted({*side.blocks} & {*other.blocks}))
        one, two = (
            np.array([each.medians[each.blocks.index(block)] for block in blocks])
            for each in (side, other)
        )
        if blocks:
            relative.append(replace(side, blocks=blocks, medians=one / two))
    return relative


def between(
    baseline: Run, candidate: Run, same: Mapping[str, str],
    min_effect: float = MIN_EFFECT, *, interleaved: bool = False, control: str = "",
    history: Sequence[Run] = (),
) -> list[Comparison]:  # fmt: skip
    """Compare two runs, case by case; all pairs are tested together.

    Differences of messages that are no larger than that of memory copies are ``inconclusive``.
    Unless they are `interleaved`, cases that moved other bytes are ``unequal``.

    Parameters
    ----------
    same
        The id of the case in `candidate` to compare, by the id of the case in `baseline`.
    interleaved
        Whether blocks of the same number ran in turns, as in ``commbench ab``, and are paired.
    control
        A backend that did not change between the runs. If it is given, multiples of its times are
        compared, so that a change of the whole machine cancels.
    history
        Runs of other days. A difference that two of them may have is ``inconclusive``.
    """
    every = [sides(run) for run in (baseline, candidate)]
    olds, news = (relative_to(control, each) if control else each for each in every)
    candidates = {side.key: side for side in news}
    pairs = [
        (side, candidates[key])
        for side in olds
        if (key := side_key(same.get(side.case.id, ""), side.layer, side.payload_bytes))
        in candidates
    ]
    # What a commit moves more, in turns, is part of its change.
    in_seconds = [_with_controls(control, each) for each in every]
    unequal = [
        not interleaved
        and any(
            _is_unequal((baseline, candidate), *both, min_effect=min_effect)
            for both in zip(in_seconds[0][one.key], in_seconds[1][two.key], strict=True)
        )
        for one, two in pairs
    ]
    compared = compare_pairs(pairs, min_effect, paired=interleaved, unequal=unequal)
    compared = _without_contradicted(compared, [False] * len(pairs), [None] * len(pairs))
    usual = _session_ratios(history, control, len({one.case.id for one, _ in pairs}))
    return [
        _after_sessions(each, usual.get(one.key, math.nan))
        for each, (one, _) in zip(compared, pairs, strict=True)
    ]


def _with_controls(control: str, every: Iterable[Side]) -> dict[tuple[str, str, int], list[Side]]:
    """Return each side, followed by that of its control if there is one, by key."""
    by_key = {side.key: side for side in every}
    known = {side.case.id: side.case for side in by_key.values()}
    cases = controls(control, known.values()) if control else {}
    with_controls = {key: [side] for key, side in by_key.items()}
    for (case_id, layer, nbytes), each in with_controls.items():
        other = by_key.get((cases[case_id].id, layer, nbytes)) if case_id in cases else None
        if other is not None:
            each.append(other)
    return with_controls


def _session_ratios(
    history: Sequence[Run], control: str, n_cases: int
) -> dict[tuple[str, str, int], float]:
    """Return the ratio between the medians of two days that is usual, by case, layer and size.

    The limit is that of Student's t for the standard deviation of the days' log medians, times √2
    for a difference of two. In 5 % of comparisons, one of `n_cases`, whose sizes vary together,
    exceeds it (Bonferroni). The last run of a day counts. Fewer than ``MIN_SESSIONS`` days give no
    limit.
    """
    level = 1 - (1 - CONFIDENCE) / 2 / max(1, n_cases)
    logs: dict[tuple[str, str, int], dict[str, float]] = {}
    for run in sorted(history, key=lambda run: run.manifest.started_at):
        for side in relative_to(control, sides(run)) if control else sides(run):
            if side.median_s > 0:
                day = run.manifest.started_at[:10]
                logs.setdefault(side.key, {})[day] = math.log(side.median_s)
    return {
        key: math.exp(
            scipy.special.stdtrit(len(values) - 1, level)
            * math.sqrt(2) * float(np.std([*values.values()], ddof=1))
        )
        for key, values in logs.items()
        if len(values) >= MIN_SESSIONS
    }  # fmt: skip


def _after_sessions(comparison: Comparison, usual: float) -> Comparison:
    """Return the comparison, ``inconclusive`` if `usual` between sessions contradicts it."""
    differs = comparison.verdict in ("faster", "slower")
    within = differs and 1 / usual <= comparison.ratio <= usual
    unlike = comparison.verdict == "same" and usual > 1 + comparison.min_effect
    verdict = "inconclusive" if within or unlike else comparison.verdict
    # Comparisons with nan are false.
    detectable = usual if usual > comparison.detectable else comparison.detectable
    return replace(comparison, sessions_ratio=usual, detectable=detectable, verdict=verdict)


def compare_pairs(
    pairs: Sequence[tuple[Side, Side]], min_effect: float, *, alike: float = 0.0,
    paired: bool = False, alpha: float = 1 - CONFIDENCE, unequal: Sequence[bool] = (),
) -> list[Comparison]:  # fmt: skip
    """Compare the second of each pair with the first.

    Parameters
    ----------
    alike
        The p-value of the test that all sides are alike, a lower limit of each pair's.
    paired
        Whether the launches of two sides with the same blocks are paired by them. Ratios and
        intervals are then of pairs, and so is the test if its smallest p-value for this number of
        blocks and pairs is significant.
    alpha
        The two-sided level of the tests, and the level of each one-sided test for ``same``.
    unequal
        Of each pair, whether it has the verdict ``unequal``; by default, none has.
    """
    interval_tests = [
        inference.SIGNED_RANK
        if paired and one.blocks == two.blocks and min(one.medians.min(), two.medians.min()) > 0
        else inference.MANN_WHITNEY
        for one, two in pairs
    ]
    tests = [
        # Equal medians have no sign, so that fewer outcomes are possible.
        inference.MANN_WHITNEY
        if interval_test == inference.SIGNED_RANK
        and len(pairs) * 2 / 2.0 ** np.count_nonzero(one.medians != two.medians) > alpha
        else interval_test
        for interval_test, (one, two) in zip(interval_tests, pairs, strict=True)
    ]
    level = alpha / max(1, len(pairs))
    adjusted = inference.holm(
        [
            inference.p_value(test, one.medians, two.medians)
            for test, (one, two) in zip(tests, pairs, strict=True)
        ]
    )
    return [
        _comparison(
            one, two, min_effect, max(p_value, alike), test, interval_test, level, alpha, is_unequal
        )
        for (one, two), p_value, test, interval_test, is_unequal in zip(
            pairs, adjusted, tests, interval_tests, unequal or [False] * len(pairs), strict=True
        )
    ]


def _detectable(one: Side, two: Side, min_effect: float, test: str, level: float) -> float:
    """Return the ratio that would have had a verdict with probability ``POWER``.

    Launches are taken to be log-normal with the standard deviations of these. The ratio has to be
    significant at Holm's first `level`, and the measured one beyond ``1 + min_effect``.
    """
    sizes = [len(side.medians) for side in (one, two)]
    if min(sizes) < MIN_LAUNCHES or min(one.medians.min(), two.medians.min()) <= 0:
        return math.inf
    logs = [np.log(side.medians) for side in (one, two)]
    if test == inference.SIGNED_RANK:
        deviation = float(np.std(logs[1] - logs[0], ddof=1))
    else:
        deviation = math.sqrt(sum(np.var(log, ddof=1) for log in logs) / 2)
    # The standard deviation of few values is too small on average.
    deviation *= 1 + 1 / (4 * (min(sizes) - 1))
    shift = inference.detectable_shift(test, *sizes, level)
    if math.isinf(shift):
        return math.inf
    error = inference.standard_error(test, *sizes) * deviation
    return math.exp(max(shift * deviation, math.log(1 + min_effect) + 1.28 * error))


def _comparison(
    one: Side, two: Side, min_effect: float, p_value: float, test: str, interval_test: str,
    level: float, alpha: float, is_unequal: bool,
) -> Comparison:  # fmt: skip
    """Return the comparison of two sides.

    The ratio and its interval are those of `interval_test`, `p_value` and the verdict those of
    `test`.
    """
    n_one, n_two = len(one.medians), len(two.medians)
    n_launches = min(n_one, n_two)
    ratio = low = high = above = below = same_low = same_high = margin = math.nan
    # Medians of 0, below the resolution of a clock, have no ratio.
    if min(one.medians.min(), two.medians.min()) > 0:
        logs = {
            kind: inference.log_ratios(kind, one.medians, two.medians)
            for kind in (interval_test, test)
        }
        ratio = math.exp(np.median(logs[interval_test]))
        if n_launches >= MIN_LAUNCHES:
            # Of few launches, pairs have no interval at the strict level of an early look.
            intervals = [
                inference.interval(kind, logs[kind], n_one, n_two, two_sided)
                for kind, two_sided in (
                    (interval_test, 1 - CONFIDENCE), (test, alpha), (interval_test, 2 * alpha)
                )
            ]  # fmt: skip
            (low, high), (below, above), (same_low, same_high) = np.exp(intervals).tolist()
            margin = float(np.exp(np.abs(intervals[-1]).max())) - 1
    significant = p_value <= alpha and n_launches >= MIN_LAUNCHES
    limit = 1 + min_effect
    if is_unequal:
        verdict = "unequal"
    elif significant and ratio > limit and min(below, low) > 1:
        verdict = "slower"
    elif significant and ratio < 1 / limit and max(above, high) < 1:
        verdict = "faster"
    else:
        verdict = "same" if margin <= min_effect else "inconclusive"
    return Comparison(
        workload=two.case.workload,
        layer=two.layer,
        payload_bytes=two.payload_bytes,
        baseline=one.case.variant,
        candidate=two.case.variant,
        baseline_id=one.case.id,
        candidate_id=two.case.id,
        baseline_s=one.median_s,
        candidate_s=two.median_s,
        n_launches=n_launches,
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        p_value=p_value,
        test=test,
        min_effect=min_effect,
        detectable=_detectable(one, two, min_effect, test, level),
        same_low=same_low,
        same_high=same_high,
        margin=margin,
        baseline_moved_bytes=one.moved_bytes,
        candidate_moved_bytes=two.moved_bytes,
        verdict=verdict,
        paired=interval_test == inference.SIGNED_RANK,
        alpha=alpha,
    )


def least_launches(n_pairs: int, alpha: float = 1 - CONFIDENCE) -> int:
    """Return the fewest launches per case with which one of `n_pairs` pairs can be significant.

    The exact test's smallest p-value for n launches on each side is 2 / (2n over n), and the
    first step of Holm's correction multiplies it by the number of pairs.

    Examples
    --------
    >>> [least_launches(n_pairs) for n_pairs in (1, 6, 23, 80)]
    [6, 6, 6, 7]
    """
    n = MIN_LAUNCHES
    while 2 * n_pairs / math.comb(2 * n, n) > alpha:
        n += 1
    return n

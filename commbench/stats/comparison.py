"""Compare sets of launches: ratio, confidence interval, test and verdict.

The verdict is ``faster`` or ``slower`` if the ratio of the medians is further from 1 than
``min_effect``, its interval excludes 1, the rank test of the launches' medians (with Holm's
correction for the pairs tested together) is significant, and so is, for more than two backends,
the test that all are alike. It is ``same`` if the whole interval is between 1/(1 + ``min_effect``)
and 1 + ``min_effect``, and ``inconclusive`` otherwise. It is ``unequal`` if the bytes moved per
iteration differ by more than 5 %, because then the times don't compare the backends.

Backends that ran in the same blocks are paired by them, so that a disturbance of a whole block
counts for neither side.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from commbench.model import Case, Comparison
from commbench.stats.pairs import moved_bytes
from commbench.stats.selection import GROUP, good_launches, in_suite_order, measured

if TYPE_CHECKING:
    import numpy as np

    from commbench.analysis.run import Run

CONFIDENCE = 0.95
MIN_EFFECT = 0.05
"""The smallest relative difference that matters: changes of other settings cause more."""
EQUAL_WORK = 0.05
"""The largest relative difference of the bytes moved per iteration with which times compare."""
MIN_LAUNCHES = 6
"""The fewest values that have a distribution-free 95 % interval of the median."""


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
    resampled: np.ndarray[Any, Any]
    moved_bytes: float = math.nan

    @property
    def median_s(self) -> float:
        """The median over launches of each launch's median."""
        import numpy as np

        return float(np.median(self.medians))


def sides(run: Run, name: str = "", blocks: str = "") -> list[Side]:
    """Return every case, layer and size with a successful launch, in the suite's order.

    `name` and `blocks` seed the resampling. Two runs need different values of `name` for
    independent resamples, and different values of `blocks` unless their blocks are paired.
    """
    cases, good = {case.id: case for case in run.suite.cases}, good_launches(run)
    samples = in_suite_order(measured(run), run)
    ends = run.ends.drop_duplicates(["case_id", "launch"], keep="last")
    numbers = ends.set_index(["case_id", "launch"])["block"].to_dict()
    moved = moved_bytes(run)
    every = []
    for (case_id, layer, size), group in samples.groupby(GROUP, sort=False):
        if case_id not in good:
            continue
        launches = {
            int(numbers[case_id, launch]): part.to_numpy()
            for launch, part in group.groupby("launch")["seconds"]
        }
        side = make_side(cases[str(case_id)], str(layer), int(size), launches, name, blocks)
        if layer == "workload":
            side = replace(side, moved_bytes=float(moved.get(case_id, math.nan)))
        every.append(side)
    return every


def make_side(
    case: Case, layer: str, size: int, launches: Mapping[int, np.ndarray[Any, Any]],
    name: str = "", blocks: str = "",
) -> Side:  # fmt: skip
    """Return the side of a comparison with these samples, given by the block of their launch."""
    import numpy as np

    from commbench.stats.inference import resampled_medians

    numbers = tuple(sorted(launches))
    samples = [launches[number] for number in numbers]
    # Seeds depend on the names only, so that reports are reproducible. All sides draw the same
    # blocks, so that effects of a block cancel in their ratio.
    seeds = (f"{blocks} {layer} {size}", f"{name} {layer} {size} {case.id}")
    return Side(
        case=case,
        layer=layer,
        payload_bytes=size,
        blocks=numbers,
        medians=np.array([np.median(seconds) for seconds in samples]),
        resampled=resampled_medians(
            samples, *(np.random.default_rng(zlib.crc32(seed.encode())) for seed in seeds)
        ),
    )


def comparisons(run: Run) -> list[Comparison]:
    """Compare the backends of every task, layer and size with each other.

    The baseline of a pair is the backend that comes first in the suite.
    """
    from commbench.stats import inference

    groups: dict[Any, list[Side]] = {}
    for side in sides(run):
        # Cases are compared if they differ in the backend only.
        case = side.case
        task = case.workload, repr(sorted(case.params.items())), repr(case.cluster)
        groups.setdefault((*task, side.layer, side.payload_bytes), []).append(side)
    results = []
    for group in groups.values():
        paired = len({side.blocks for side in group}) == 1
        medians = [side.medians for side in group]
        alike = inference.all_alike(medians, paired=paired) if len(group) > 2 else 0.0
        results += compare_pairs(
            list(combinations(group, 2)), MIN_EFFECT, alike=alike, paired=paired
        )
    return results


def between(
    baseline: Run, candidate: Run, same: Mapping[str, str],
    min_effect: float = MIN_EFFECT, *, interleaved: bool = False,
) -> list[Comparison]:  # fmt: skip
    """Compare two runs, case by case; all pairs are tested together.

    Parameters
    ----------
    same
        The id of the case in `candidate` to compare, by the id of the case in `baseline`.
    interleaved
        Whether blocks of the same number ran in turns, as in ``commbench ab``, and are paired.
    """
    old, new = ("", "") if interleaved else ("old", "new")
    candidates = {
        (side.case.id, side.layer, side.payload_bytes): side
        for side in sides(candidate, "new", new)
    }
    pairs = [
        (side, candidates[key])
        for side in sides(baseline, "old", old)
        if (key := (same.get(side.case.id, ""), side.layer, side.payload_bytes)) in candidates
    ]
    paired = interleaved and all(one.blocks == two.blocks for one, two in pairs)
    return compare_pairs(pairs, min_effect, paired=paired)


def compare_pairs(
    pairs: Sequence[tuple[Side, Side]], min_effect: float, *, alike: float = 0.0,
    paired: bool = False,
) -> list[Comparison]:  # fmt: skip
    """Compare the second of each pair with the first.

    Parameters
    ----------
    alike
        The p-value of the test that all sides are alike, a lower limit of each pair's.
    paired
        Whether the launches of both sides are paired by block. The paired test is used only if
        its smallest p-value for this number of blocks and pairs is significant.
    """
    from commbench.stats import inference

    n_launches = min((len(side.medians) for pair in pairs for side in pair), default=0)
    known = all(side.medians.min() > 0 for pair in pairs for side in pair)
    test = inference.MANN_WHITNEY
    if paired and known and len(pairs) * 2 / 2**n_launches <= 1 - CONFIDENCE:
        test = inference.SIGNED_RANK
    level = (1 - CONFIDENCE) / max(1, len(pairs))
    adjusted = inference.holm(
        [inference.p_value(test, one.medians, two.medians) for one, two in pairs]
    )
    return [
        _comparison(one, two, min_effect, max(p_value, alike), test, level)
        for (one, two), p_value in zip(pairs, adjusted, strict=True)
    ]


def _detectable(one: Side, two: Side, min_effect: float, test: str, level: float) -> float:
    """Return the ratio of medians that would have had a verdict with probability ``POWER``.

    Launches are taken to be log-normal with the standard deviations of these. The ratio has to be
    significant at Holm's first `level`, the measured one beyond ``1 + min_effect``, and its
    interval above 1.
    """
    import numpy as np

    from commbench.stats import inference

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
    shift = inference.detectable_shift(test, *sizes, level) * deviation
    if math.isinf(shift):
        return math.inf
    # The interval's lower limit, and the ratio, are two and no standard errors below the ratio.
    error = float(np.std(np.log(two.resampled / one.resampled)))
    beyond = max(math.log(1 + min_effect), 1.96 * error) + 1.28 * error
    return math.exp(max(shift, beyond))


def _comparison(
    one: Side, two: Side, min_effect: float, p_value: float, test: str, level: float
) -> Comparison:
    from commbench.stats.inference import cliffs_delta, interval

    n_launches = min(len(one.medians), len(two.medians))
    ratio = low = high = math.nan
    # Medians of 0, below the resolution of a clock, have no ratio.
    if one.median_s > 0 and two.median_s > 0:
        ratio = two.median_s / one.median_s
    if n_launches >= MIN_LAUNCHES and min(one.resampled.min(), two.resampled.min()) > 0:
        low, high = interval(two.resampled / one.resampled, CONFIDENCE)
    less, more = sorted((one.moved_bytes, two.moved_bytes))
    # Comparisons with nan are false.
    unequal = more > less * (1 + EQUAL_WORK)
    verdict = _verdict(ratio, low, high, p_value, min_effect, n_launches)
    return Comparison(
        workload=two.case.workload,
        layer=two.layer,
        payload_bytes=two.payload_bytes,
        baseline=one.case.backend,
        candidate=two.case.backend,
        baseline_id=one.case.id,
        candidate_id=two.case.id,
        baseline_s=one.median_s,
        candidate_s=two.median_s,
        n_launches=n_launches,
        ratio=ratio,
        effect=ratio - 1,
        ci_low=low,
        ci_high=high,
        p_value=p_value,
        test=test,
        delta=cliffs_delta(one.medians, two.medians),
        min_effect=min_effect,
        detectable=_detectable(one, two, min_effect, test, level),
        baseline_moved_bytes=one.moved_bytes,
        candidate_moved_bytes=two.moved_bytes,
        verdict="unequal" if unequal else verdict,
    )


def _verdict(
    ratio: float, low: float, high: float, p_value: float, min_effect: float, n_launches: int
) -> str:
    # Comparisons with nan are false.
    if n_launches < MIN_LAUNCHES:
        return "inconclusive"
    limit = 1 + min_effect
    if p_value <= 1 - CONFIDENCE:
        if ratio > limit and low > 1:
            return "slower"
        if ratio < 1 / limit and high < 1:
            return "faster"
    return "same" if low >= 1 / limit and high <= limit else "inconclusive"


def least_launches(n_pairs: int) -> int:
    """Return the fewest launches per case with which one of `n_pairs` pairs can be significant.

    The exact test's smallest p-value for n launches on each side is 2 / (2n over n), and the
    first step of Holm's correction multiplies it by the number of pairs.

    Examples
    --------
    >>> [least_launches(n_pairs) for n_pairs in (1, 6, 23, 80)]
    [6, 6, 6, 7]
    """
    n = MIN_LAUNCHES
    while 2 * n_pairs / math.comb(2 * n, n) > 1 - CONFIDENCE:
        n += 1
    return n


def regressions(results: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons in which the candidate is slower."""
    return [comparison for comparison in results if comparison.verdict == "slower"]

"""Two or more sets of launches side by side: how much apart, how surely, and what to call it.

The verdict is ``faster`` or ``slower`` where all of these agree: the ratio of the medians is
further from 1 than ``min_effect``, its interval excludes 1, the rank test of the launches' medians
(Holm's correction for the pairs tested together) rejects that both are alike, and, of more than
two backends, the Kruskal–Wallis test that all are. It is ``same`` where the whole interval lies
within 1/(1 + ``min_effect``) and 1 + ``min_effect``. All else is ``inconclusive``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from commbench.model import Case, Comparison
from commbench.stats.selection import GROUP, good_launches, in_suite_order, measured

if TYPE_CHECKING:
    import numpy as np

    from commbench.store import RunData

CONFIDENCE = 0.95
MIN_EFFECT = 0.05
"""Below this a difference is not called one, however sure: other settings move more."""
MIN_LAUNCHES = 6
"""Fewer allow no 95 % interval of a median, whatever the distribution."""


@dataclass(frozen=True)
class Side:
    """The launches of one case at one layer and size; ``medians`` has shape (n_launches,)."""

    case: Case
    layer: str
    payload_bytes: int
    medians: np.ndarray[Any, Any]
    resampled: np.ndarray[Any, Any]

    @property
    def median_s(self) -> float:
        """The median over launches of each launch's median."""
        import numpy as np

        return float(np.median(self.medians))


def sides(run: RunData, name: str = "") -> list[Side]:
    """Return every case, layer and size of which a launch ended well, in the suite's order.

    Two runs of one case need a `name` of their own, or their resamples' luck would be the same.
    """
    cases, good = {case.id: case for case in run.run.suite.cases}, good_launches(run)
    samples = in_suite_order(measured(run), run)
    return [
        side_of(
            cases[str(case_id)],
            str(layer),
            int(size),
            [part.to_numpy() for _, part in group.groupby("launch")["seconds"]],
            name,
        )
        for (case_id, layer, size), group in samples.groupby(GROUP, sort=False)
        if case_id in good
    ]


def side_of(
    case: Case, layer: str, size: int, launches: Sequence[np.ndarray[Any, Any]], name: str = ""
) -> Side:
    """Return what the samples of some `launches` make; the seed follows from the names."""
    import numpy as np

    from commbench.stats.bootstrap import resampled_medians

    # So that a report can be made again, whatever else the run has measured.
    seed = zlib.crc32(f"{name} {case.id} {layer} {size}".encode())
    return Side(
        case=case,
        layer=layer,
        payload_bytes=size,
        medians=np.array([np.median(seconds) for seconds in launches]),
        resampled=resampled_medians(launches, np.random.default_rng(seed)),
    )


def comparisons(run: RunData, min_effect: float = MIN_EFFECT) -> list[Comparison]:
    """Compare the backends of every task, layer and size with each other.

    In every pair the baseline is the one that comes first in the suite.
    """
    from commbench.stats import ranks

    groups: dict[Any, list[Side]] = {}
    for side in sides(run):
        groups.setdefault((_task(side.case), side.layer, side.payload_bytes), []).append(side)
    found = []
    for group in groups.values():
        alike = ranks.kruskal_wallis([side.medians for side in group]) if len(group) > 2 else 0.0
        found += judge(list(combinations(group, 2)), min_effect, alike)
    return found


def between(
    baseline: RunData, candidate: RunData, same: Mapping[str, str], min_effect: float = MIN_EFFECT
) -> list[Comparison]:
    """Compare two runs, case by case; all pairs are tested together.

    Parameters
    ----------
    same
        By the id of a case in `baseline` the id of the case in `candidate` to set against it.
    """
    found = {
        (side.case.id, side.layer, side.payload_bytes): side for side in sides(candidate, "new")
    }
    pairs = [
        (side, found[key])
        for side in sides(baseline, "old")
        if (key := (same.get(side.case.id, ""), side.layer, side.payload_bytes)) in found
    ]
    return judge(pairs, min_effect)


def judge(
    pairs: Sequence[tuple[Side, Side]], min_effect: float, alike: float = 0.0
) -> list[Comparison]:
    """Compare the second of each pair with the first.

    Parameters
    ----------
    alike
        The p-value of the test that all of them are alike: no pair is surer than that.
    """
    from commbench.stats import ranks

    tests = [ranks.mann_whitney(one.medians, two.medians) for one, two in pairs]
    adjusted = ranks.holm([p for p, _ in tests])
    return [
        _comparison(one, two, min_effect, max(p_value, alike), delta)
        for (one, two), p_value, (_, delta) in zip(pairs, adjusted, tests, strict=True)
    ]


def _comparison(
    one: Side, two: Side, min_effect: float, p_value: float, delta: float
) -> Comparison:
    import numpy as np

    from commbench.stats.bootstrap import interval

    n_launches = min(len(one.medians), len(two.medians))
    low, high = math.nan, math.nan
    if min(one.resampled) > 0 and min(two.resampled) > 0:
        logs = np.log(two.resampled) - np.log(one.resampled)
        low, high = (math.exp(end) for end in interval(logs, n_launches, CONFIDENCE))
    ratio = two.median_s / one.median_s if one.median_s > 0 else math.nan
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
        delta=delta,
        min_effect=min_effect,
        verdict=_verdict(ratio, low, high, p_value, min_effect, n_launches),
    )


def _verdict(
    ratio: float, low: float, high: float, p_value: float, min_effect: float, n_launches: int
) -> str:
    # An unknown number is neither above nor below anything.
    if n_launches < MIN_LAUNCHES:
        return "inconclusive"
    limit = 1 + min_effect
    if p_value <= 1 - CONFIDENCE:
        if ratio > limit and low > 1:
            return "slower"
        if ratio < 1 / limit and high < 1:
            return "faster"
    return "same" if low >= 1 / limit and high <= limit else "inconclusive"


def _task(case: Case) -> Any:
    # What two cases must share to be compared: everything but the backend.
    return (case.workload, repr(sorted(case.params.items())), repr(case.cluster))


def least_launches(n_pairs: int) -> int:
    """Return how many launches of each case it takes to tell any of `n_pairs` pairs apart.

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


def regressions(found: Iterable[Comparison]) -> list[Comparison]:
    """Return those in which the candidate is slower."""
    return [comparison for comparison in found if comparison.verdict == "slower"]

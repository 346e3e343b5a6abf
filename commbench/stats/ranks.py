"""Rank tests on the launches' medians; all of them are scipy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

Array = np.ndarray[Any, Any]


def mann_whitney(baseline: Array, candidate: Array) -> tuple[float, float]:
    """Return the p-value of the exact two-sided Mann–Whitney test, and Cliff's delta.

    Delta is the share of pairs of launches in which the candidate took longer, less the share in
    which it took less time: from −1, always faster, to 1, always slower.

    Notes
    -----
    Exact, because launches are few: at six on each side p can't fall below 2/924. Brunner and
    Munzel's test leans on a t distribution that is too optimistic for so few, and has no variance
    to divide by where two backends don't overlap at all. Equal values are counted by halves, and
    the distribution for distinct ones then errs on the safe side. H. B. Mann and D. R. Whitney,
    Ann. Math. Statist. 18 (1947); N. Cliff, Psychological Bulletin 114 (1993).

    Examples
    --------
    >>> p, delta = mann_whitney(np.arange(6.0), np.arange(6.0) + 10)
    >>> round(p * 924), delta
    (2, 1.0)
    """
    test = stats.mannwhitneyu(candidate, baseline, method="exact")
    delta = 2 * float(test.statistic) / (len(baseline) * len(candidate)) - 1
    return float(test.pvalue), delta


def kruskal_wallis(groups: Sequence[Array]) -> float:
    """Return the p-value of the Kruskal–Wallis test that all groups are alike.

    Where every value is the same, they are: 1.
    """
    if len(np.unique(np.concatenate(groups))) == 1:
        return 1.0
    return float(stats.kruskal(*groups).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number: S. Holm, Scand. J. Statist. 6 (1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    n, least = len(p_values), 0.0
    adjusted = [0.0] * n
    for rank, place in enumerate(sorted(range(n), key=lambda place: p_values[place])):
        least = max(least, min(1.0, (n - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted

"""Resampled medians of launches, and rank tests of their medians, which are SciPy's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import scipy

Array = np.ndarray[Any, Any]

N_RESAMPLES = 5000
N_SIMULATED = 4000
_MOST_SIMULATED = 20
POWER = 0.9
"""The probability with which a detectable difference gets a verdict."""


def resampled_medians(
    launches: Sequence[Array], between: np.random.Generator, within: np.random.Generator
) -> Array:
    """Return the medians of ``N_RESAMPLES`` resamples of a case, shape (N_RESAMPLES,).

    Each resample draws as many launches as there are, with replacement, and for each of them as
    many of its samples as it has; its value is the median over launches of their medians.

    Parameters
    ----------
    launches
        For each launch, the seconds of its samples, at least one.
    between, within
        The generators that draw the launches, and the samples within them.

    Notes
    -----
    The k-th smallest of n values drawn from a sorted sample x is x[⌊nU⌋], where U is the k-th
    smallest of n uniform numbers, which is Beta(k, n − k + 1); so the cost does not depend on the
    number of samples. The two-level bootstrap is that of A. C. Davison and D. V. Hinkley,
    Bootstrap Methods and their Application, section 3.8.
    """
    n = len(launches)
    chosen = between.integers(n, size=(N_RESAMPLES, n))
    medians = np.empty(chosen.shape)
    for number, seconds in enumerate(launches):
        here = chosen == number
        medians[here] = _medians_within(np.sort(seconds), int(here.sum()), within)
    return np.asarray(np.median(medians, axis=1))


def _medians_within(values: Array, size: int, rng: np.random.Generator) -> Array:
    n = len(values)
    k = (n + 1) // 2
    low = high = rng.beta(k, n - k + 1, size)
    if n % 2 == 0:
        # The smallest of the n - k uniform numbers above the k-th.
        high = low + (1 - low) * (1 - rng.random(size) ** (1 / (n - k)))
    return (_at(values, low) + _at(values, high)) / 2


def _at(values: Array, share: Array) -> Array:
    index = np.minimum((share * len(values)).astype(int), len(values) - 1)
    return np.asarray(values[index])


def interval(resampled: Array, confidence: float) -> tuple[float, float]:
    """Return the percentile interval of a resampled statistic.

    Notes
    -----
    For ratios of medians of at least six launches its coverage is at least `confidence`, because
    resampled medians, with iterations resampled as well, vary more than the medians.
    ``tests/stats/test_comparison_rates.py`` measures the coverage.

    Examples
    --------
    >>> low, high = interval(np.linspace(0, 1, 10001), 0.95)
    >>> f"{low:.3f} {high:.3f}"
    '0.025 0.975'
    """
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return low, high


MANN_WHITNEY = "Mann-Whitney"
SIGNED_RANK = "Wilcoxon signed-rank"


def p_value(test: str, baseline: Array, candidate: Array) -> float:
    """Return the p-value of an exact two-sided test that two sets of medians are alike.

    Parameters
    ----------
    test
        ``MANN_WHITNEY``, or for paired medians ``SIGNED_RANK`` of the logarithms of their ratios.

    Notes
    -----
    Exact, because launches are few: the smallest p-value of six on each side is 2/924, of six pairs
    2/64. Brunner and Munzel's test relies on a t distribution that is too optimistic for so few,
    and its variance is 0 if two backends don't overlap. Equal values count half, for which the
    distribution for distinct values is conservative. H. B. Mann and D. R. Whitney, Ann. Math.
    Statist. 18 (1947); F. Wilcoxon, Biometrics Bulletin 1 (1945).

    Examples
    --------
    >>> one, two = np.arange(1.0, 7), np.arange(11.0, 17)
    >>> round(p_value(MANN_WHITNEY, one, two) * 924), round(p_value(SIGNED_RANK, one, two) * 64)
    (2, 2)
    """
    if test == MANN_WHITNEY:
        return float(scipy.stats.mannwhitneyu(candidate, baseline, method="exact").pvalue)
    ratios = np.log(candidate / baseline)
    if not ratios.any():
        return 1.0
    return float(scipy.stats.wilcoxon(ratios, zero_method="zsplit", method="exact").pvalue)


def cliffs_delta(baseline: Array, candidate: Array) -> float:
    """Return Cliff's delta: the share of pairs with a slower candidate minus that of faster ones.

    Every launch of the candidate is compared with every launch of the baseline. The result is
    between -1 (always faster) and 1. N. Cliff, Psychological Bulletin 114 (1993).
    """
    above = scipy.stats.mannwhitneyu(candidate, baseline, method="asymptotic").statistic
    return 2 * float(above) / (len(baseline) * len(candidate)) - 1


def all_alike(groups: Sequence[Array], *, paired: bool) -> float:
    """Return the p-value of the Kruskal–Wallis test, or of Friedman's if groups are paired.

    It is 1 if all values, or all values of each paired block, are equal.
    """
    if len(np.unique(np.concatenate(groups))) == 1:
        return 1.0
    if paired and len(groups[0]) > 1:
        if not np.ptp(np.stack(groups), axis=0).any():
            return 1.0
        return float(scipy.stats.friedmanchisquare(*groups).pvalue)
    return float(scipy.stats.kruskal(*groups).pvalue)


@cache
def detectable_shift(
    test: str, n_one: int, n_two: int, level: float, power: float = POWER
) -> float:
    """Return the shift between two normal samples that `test` detects with probability `power`.

    Parameters
    ----------
    n_one, n_two
        The numbers of values; of pairs, both, for the signed-rank test.
    level
        The largest p-value that counts as significant.

    Returns
    -------
    float
        In standard deviations: of a value, or for the signed-rank test of a pair's difference. It
        is infinite if no values of that number are significant.

    Notes
    -----
    Mann and Whitney's U counts the positive ones among the differences between values of one side
    and of the other; Wilcoxon's W those among the Walsh averages of the pairs' differences. So a
    shift is detected in a simulated sample if it is above one order statistic of these, and the
    result is the quantile of that for ``N_SIMULATED`` samples. For more than ``_MOST_SIMULATED``
    values it is that of normal tests with their asymptotic relative efficiency, 3/π.

    Examples
    --------
    >>> detectable_shift(MANN_WHITNEY, 3, 3, 0.05)
    inf
    >>> [round(detectable_shift(MANN_WHITNEY, n, n, 0.05), 1) for n in (6, 20, 21)]
    [2.2, 1.1, 1.0]
    """
    if min(n_one, n_two) > _MOST_SIMULATED:
        variance = 1 / n_one + (1 / n_two if test == MANN_WHITNEY else 0)
        quantiles = scipy.stats.norm.ppf([1 - level / 2, power])
        return float(quantiles.sum() * np.sqrt(variance * np.pi / 3))
    rng = np.random.default_rng(0)
    one, two = (rng.standard_normal((N_SIMULATED, n)) for n in (n_one, n_two))
    if test == MANN_WHITNEY:
        ways = np.ones(1)
        for number in range(1, n_two + 1):
            # The Gaussian binomial coefficient: the ways to have each value of U.
            above, below = np.zeros(n_one + number + 1), np.zeros(number + 1)
            above[[0, -1]] = below[[0, -1]] = 1, -1
            ways = np.rint(np.polydiv(np.convolve(ways, above), below)[0])
        statistics = (one[:, :, None] - two[:, None, :]).reshape(N_SIMULATED, -1)
    else:
        ways = np.ones(1)
        for rank in range(1, n_one + 1):
            ways = np.convolve(ways, np.eye(1, rank + 1)[0] + np.eye(1, rank + 1, rank)[0])
        first, second = np.triu_indices(n_one)
        statistics = (one[:, first] + one[:, second]) / 2
    p_values = 2 * np.cumsum(ways / ways.sum())
    n_most = int((p_values <= level).sum())
    if n_most == 0:
        return float("inf")
    needed = np.partition(statistics, statistics.shape[1] - n_most, axis=1)
    return float(np.quantile(needed[:, statistics.shape[1] - n_most], power))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values with Holm's correction: S. Holm, Scand. J. Statist. 6 (1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    n, least = len(p_values), 0.0
    adjusted = [0.0] * n
    for rank, index in enumerate(sorted(range(n), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (n - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted

"""Rank tests and intervals of the launches' medians and of their ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
import pandas as pd
import scipy

from commbench.stats.grouping import Array

CONFIDENCE = 0.95
N_SIMULATED = 4000
_MOST_EXACT = 20
POWER = 0.9
"""The probability with which a detectable difference gets a verdict."""
MIN_LAUNCHES = 6
"""The fewest values that have a distribution-free 95 % interval of the median."""

MANN_WHITNEY = "Mann-Whitney"
SIGNED_RANK = "Wilcoxon signed-rank"


@cache
def median_interval(n: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """Return the order statistics that are a confidence interval of the median of `n` values.

    Returns
    -------
    (k, level)
        The interval from the k-th smallest to the k-th largest value (k from 1) contains the
        median of any distribution with probability `level`. It is the narrowest that reaches
        `confidence`, or else the widest.

    Notes
    -----
    ``level = 1 - 2 P(B < k)`` with B binomial (n, 1/2); see H. A. David and H. N. Nagaraja,
    Order Statistics, 3rd ed., section 7.1.

    Examples
    --------
    >>> median_interval(6), median_interval(3)
    ((1, 0.96875), (1, 0.75))
    """
    # The sum of the binomial coefficients of n and 0 to k - 1, and the last of them.
    k, ways, newest = 1, 1, 1
    while k + 1 <= n // 2:
        newest = newest * (n - k + 1) // k
        if 1 - 2 * (ways + newest) / 2**n < confidence:
            break
        k, ways = k + 1, ways + newest
    return k, max(0.0, 1 - 2 * ways / 2**n)


def launches_interval(
    medians: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the limits and the level of ``median_interval`` for the launches' medians.

    The limits are nan if the level is 0.
    """
    values = sorted(medians)
    k, level = median_interval(len(values), confidence)
    return (values[k - 1], values[-k], level) if level else (math.nan, math.nan, 0.0)


def p_value(test: str, baseline: Array, candidate: Array) -> float:
    """Return the p-value of a two-sided rank test that two sets of medians are alike.

    Parameters
    ----------
    test
        ``MANN_WHITNEY``, or for paired medians ``SIGNED_RANK`` of the logarithms of their ratios.

    Notes
    -----
    Exact, because launches are few: the smallest p-value of six on each side is 2/924, of six pairs
    2/64. Above ``_MOST_EXACT`` launches on a side that is not paired, the rank sum is taken to be
    normal. Brunner and Munzel's test relies on a t distribution that is too optimistic for so few,
    and its variance is 0 if two backends don't overlap. Of pairs, equal ratios share their ranks,
    and those of 1 have a rank but no sign. Of sides that are not paired, the distribution is that
    of distinct values, and approximate if some are equal. H. B. Mann and D. R. Whitney, Ann. Math.
    Statist. 18 (1947); F. Wilcoxon, Biometrics Bulletin 1 (1945); J. W. Pratt, J. Am. Statist.
    Assoc. 54 (1959) 655-667.

    Examples
    --------
    >>> one, two = np.arange(1.0, 7), np.arange(11.0, 17)
    >>> round(p_value(MANN_WHITNEY, one, two) * 924), round(p_value(SIGNED_RANK, one, two) * 64)
    (2, 2)
    """
    if test == MANN_WHITNEY:
        n_one, n_two = len(baseline), len(candidate)
        if max(n_one, n_two) > _MOST_EXACT:
            sides = (baseline, candidate)
            return min(1.0, 2 * min(larger(*sides), larger(*sides[::-1])))
        signs = np.sign(np.subtract.outer(candidate, baseline))
        statistic = int((n_one * n_two + abs(signs.sum())) / 2)
        return min(1.0, 2 * float(_exact(test, n_one, n_two)[statistic:].sum()))
    # Rounded, so that a ratio and its inverse share a rank.
    ratios = np.log(candidate / baseline).round(12)
    # Twice the ranks are whole numbers. SciPy's distribution is that of distinct values.
    ranks = (2 * pd.Series(np.abs(ratios)).rank() * np.sign(ratios)).to_numpy(int)
    chances = _rank_sums(abs(ranks))
    total = ranks[ranks > 0].sum()
    return min(1.0, 2 * float(min(chances[: total + 1].sum(), chances[total:].sum())))


def all_alike(groups: Sequence[Array], *, paired: bool) -> float:
    """Return the p-value of the Kruskal–Wallis test, or of Friedman's if groups are paired.

    It is 1 if all values, or all values of each paired block, are equal.

    Notes
    -----
    With the variance of the ranks, both statistics take equal values into account; they have a χ²
    distribution (``scipy.stats`` has the same tests, but takes half a second to import). W. H.
    Kruskal and W. A. Wallis, J. Am. Statist. Assoc. 47 (1952); M. Friedman, ibid. 32 (1937).

    Examples
    --------
    >>> groups = [np.arange(1.0, 7), np.arange(2.0, 8), np.arange(11.0, 17)]
    >>> [round(all_alike(groups, paired=paired), 4) for paired in (False, True)]
    [0.0028, 0.0025]
    """
    if paired and len(groups[0]) > 1:
        ranks = list(pd.DataFrame(np.stack(groups)).rank().to_numpy())
        freedom = len(ranks[0]) * (len(groups) - 1)
    else:
        together = pd.Series(np.concatenate(groups)).rank().to_numpy()
        ranks = np.split(together, np.cumsum([len(group) for group in groups])[:-1])
        freedom = len(together) - 1
    every = np.concatenate(ranks)
    variance = float(((every - every.mean()) ** 2).sum()) / freedom
    if not variance:
        return 1.0
    between = sum(len(group) * (group.mean() - every.mean()) ** 2 for group in ranks)
    return float(scipy.special.chdtrc(len(groups) - 1, between / variance))


def trend(values: Array) -> float:
    """Return the p-value of a two-sided test that the order of values is random.

    Notes
    -----
    It is that of Kendall's τ of distinct values against their order, exact or, for many, that of a
    normal distribution: H. B. Mann, Econometrica 13 (1945).

    Examples
    --------
    >>> round(trend(np.arange(6.0)) * 720), trend(np.array([1.0, 3, 0, 2]))
    (2, 1.0)
    """
    first, second = np.triu_indices(len(values), 1)
    n, total = len(values), abs(int(np.sign(values[second] - values[first]).sum()))
    if n > _MOST_EXACT:
        variance = n * (n - 1) * (2 * n + 5) / 18
        return min(1.0, 2 * NormalDist().cdf((1 - total) / math.sqrt(variance)))
    chances = np.ones(1)
    for number in range(2, n + 1):
        # This value is above 0 to number - 1 of those before it.
        chances = np.convolve(chances, np.full(number, 1 / number))
    # Of equal values, half count as larger.
    n_least = (len(first) - total + 1) // 2
    return min(1.0, 2 * float(chances[: n_least + 1].sum()))


def larger(one: Array, two: Array) -> float:
    """Return the p-value of Mann and Whitney's one-sided test that values of `one` are larger.

    Notes
    -----
    The rank sum of many values is taken to be normal, with correction for continuity, as by
    ``scipy.stats.mannwhitneyu(…, method="asymptotic")``.

    Examples
    --------
    >>> round(larger(np.arange(5.0, 25), np.arange(20.0)), 4)
    0.0093
    """
    n_one, n = len(one), len(one) + len(two)
    ranks = pd.Series(np.concatenate([one, two])).rank().to_numpy()
    variance = n_one * len(two) / n * float(ranks.var(ddof=1))
    above = float(ranks[:n_one].sum()) - n_one * (n + 1) / 2 - 0.5
    return NormalDist().cdf(-above / np.sqrt(variance)) if variance else 1.0


def log_ratios(test: str, baseline: Array, candidate: Array) -> Array:
    """Return the sorted log ratios whose signs `test` counts.

    Returns
    -------
    ndarray
        For the signed-rank test the Walsh averages, the means of any two of the pairs' log ratios;
        for Mann and Whitney's the log ratios of each candidate to each baseline. The median is the
        estimate of Hodges and Lehmann, Ann. Math. Statist. 34 (1963).
    """
    return np.sort(_differences(test, np.log(baseline), np.log(candidate)))


def _differences(test: str, baseline: Array, candidate: Array) -> Array:
    """Return the differences whose signs `test` counts, along the last axis of both samples."""
    if test == MANN_WHITNEY:
        differences = candidate[..., :, None] - baseline[..., None, :]
        return np.asarray(differences.reshape(*differences.shape[:-2], -1))
    first, second = np.triu_indices(candidate.shape[-1])
    pairs = candidate - baseline
    return np.asarray((pairs[..., first] + pairs[..., second]) / 2)


def interval(test: str, logs: Array, n_one: int, n_two: int, level: float) -> tuple[float, float]:
    """Return the limits of the log ratios that `test` does not reject at the two-sided `level`.

    `logs` is the result of ``log_ratios`` for these numbers of launches. The limits are infinite
    if the test can't reject any. See E. L. Lehmann, Nonparametrics, sections 2.6 and 4.5.

    Examples
    --------
    >>> logs = log_ratios(SIGNED_RANK, np.ones(6), np.exp([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    >>> low, high = interval(SIGNED_RANK, logs, 6, 6, 0.05)
    >>> f"{low:.1f} {high:.1f}"
    '0.1 0.6'
    """
    n_most = _n_significant(test, n_one, n_two, level)
    if n_most == 0:
        return -np.inf, np.inf
    return float(logs[n_most - 1]), float(logs[-n_most])


@cache
def _n_significant(test: str, n_one: int, n_two: int, level: float) -> int:
    """Return the number of values, from 0, at which the statistic of `test` is significant.

    Above ``_MOST_EXACT`` launches the statistic is taken to be normal.
    """
    if max(n_one, n_two) > _MOST_EXACT:
        if test == MANN_WHITNEY:
            mean, variance = n_one * n_two / 2, n_one * n_two * (n_one + n_two + 1) / 12
        else:
            mean, variance = n_one * (n_one + 1) / 4, n_one * (n_one + 1) * (2 * n_one + 1) / 24
        return max(0, int(mean + NormalDist().inv_cdf(level / 2) * np.sqrt(variance)))
    return int((2 * np.cumsum(_exact(test, n_one, n_two)) <= level).sum())


@cache
def _exact(test: str, n_one: int, n_two: int) -> Array:
    """Return the probability of each value, from 0, of the statistic of `test` of equal samples."""
    if test == SIGNED_RANK:
        return _rank_sums(range(1, n_one + 1))
    ways = np.ones(1)
    for number in range(1, n_two + 1):
        # The Gaussian binomial coefficient: the ways to have each value of U.
        above, below = np.zeros(n_one + number + 1), np.zeros(number + 1)
        above[[0, -1]] = below[[0, -1]] = 1, -1
        ways = np.rint(np.polydiv(np.convolve(ways, above), below)[0])
    return np.asarray(ways / ways.sum())


def _rank_sums(ranks: Iterable[int]) -> Array:
    """Return the probability of each sum, from 0, if each rank counts with probability 1/2."""
    chances = np.ones(1)
    for rank in ranks:
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    return chances


@cache
def detectable_shift(test: str, n_one: int, n_two: int, level: float) -> float:
    """Return the shift between two normal samples that `test` detects with probability ``POWER``.

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
    A shift is detected in a sample if it is above one order statistic of ``log_ratios``, so the
    result is the quantile of that for ``N_SIMULATED`` samples. For more than ``_MOST_EXACT`` values
    it is that of normal tests with their asymptotic relative efficiency, 3/π.

    Examples
    --------
    >>> detectable_shift(MANN_WHITNEY, 3, 3, 0.05)
    inf
    >>> [round(detectable_shift(MANN_WHITNEY, n, n, 0.05), 1) for n in (6, 20, 21)]
    [2.2, 1.1, 1.0]
    """
    if max(n_one, n_two) > _MOST_EXACT:
        quantiles = map(NormalDist().inv_cdf, (1 - level / 2, POWER))
        return sum(quantiles) * standard_error(test, n_one, n_two)
    n_most = _n_significant(test, n_one, n_two, level)
    if n_most == 0:
        return float("inf")
    rng = np.random.default_rng(0)
    one, two = (rng.standard_normal((N_SIMULATED, n)) for n in (n_one, n_two))
    # The unit of the signed-rank test is the standard deviation of a difference.
    statistics = _differences(test, two if test == MANN_WHITNEY else np.zeros_like(one), one)
    needed = np.partition(statistics, statistics.shape[1] - n_most, axis=1)
    return float(np.quantile(needed[:, statistics.shape[1] - n_most], POWER))


def standard_error(test: str, n_one: int, n_two: int) -> float:
    """Return the asymptotic standard error of Hodges and Lehmann's estimate of a normal shift.

    The unit is that of ``detectable_shift``.
    """
    variance = 1 / n_one + (1 / n_two if test == MANN_WHITNEY else 0)
    return float(np.sqrt(variance * np.pi / 3))


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

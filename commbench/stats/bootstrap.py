"""What a case's median might have been as well: launches drawn anew, then their iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, t

Array = np.ndarray[Any, Any]

N_RESAMPLES = 5000


def resampled_medians(launches: Sequence[Array], rng: np.random.Generator) -> Array:
    """Return the medians of ``N_RESAMPLES`` resamples of a case, shape (N_RESAMPLES,).

    Each resample draws as many launches as there are, with replacement, and for each of them as
    many of its samples as it has; its value is the median over launches of their medians.

    Parameters
    ----------
    launches
        For each launch the seconds of its samples, at least one.

    Notes
    -----
    The k-th smallest of n values drawn from a sorted sample x is x[⌊nU⌋], where U is the k-th
    smallest of n uniform numbers, which is Beta(k, n − k + 1): so a launch of a thousand samples
    costs as little as one of three. The bootstrap in two levels is that of A. C. Davison and
    D. V. Hinkley, Bootstrap Methods and their Application, section 3.8.
    """
    n = len(launches)
    chosen = rng.integers(n, size=(N_RESAMPLES, n))
    medians = np.empty(chosen.shape)
    for number, seconds in enumerate(launches):
        here = chosen == number
        medians[here] = _medians_within(np.sort(seconds), int(here.sum()), rng)
    return np.asarray(np.median(medians, axis=1))


def _medians_within(values: Array, size: int, rng: np.random.Generator) -> Array:
    n = len(values)
    k = (n + 1) // 2
    low = high = rng.beta(k, n - k + 1, size)
    if n % 2 == 0:
        # The next larger of the n - k uniform numbers that are left above the k-th.
        high = low + (1 - low) * (1 - rng.random(size) ** (1 / (n - k)))
    return (_at(values, low) + _at(values, high)) / 2


def _at(values: Array, share: Array) -> Array:
    index = np.minimum((share * len(values)).astype(int), len(values) - 1)
    return np.asarray(values[index])


def interval(resampled: Array, n_launches: int, confidence: float) -> tuple[float, float]:
    """Return the expanded percentile interval of a resampled statistic.

    Parameters
    ----------
    n_launches
        How many launches stand behind it; of two cases the fewer.

    Notes
    -----
    The plain percentiles of a few values are too close to each other, by the factor
    √((n − 1)/n) and by Student's t over the normal quantile: the shares that are cut off at both
    ends are Φ(−√(n/(n − 1)) · t(1 − α/2; n − 1)) instead of α/2. T. C. Hesterberg, What Teachers
    Should Know About the Bootstrap, The American Statistician 69 (2015), section 3.3.

    Examples
    --------
    >>> interval(np.linspace(0, 1, 10001), 1000, 0.95)
    (0.0249..., 0.975...)
    """
    if n_launches < 2:
        return math.nan, math.nan
    quantile = t.ppf((1 + confidence) / 2, n_launches - 1)
    share = norm.cdf(-math.sqrt(n_launches / (n_launches - 1)) * quantile)
    low, high = np.quantile(resampled, [share, 1 - share]).tolist()
    return low, high

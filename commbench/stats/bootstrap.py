"""What a case's median might have been as well: launches drawn anew, then their iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

N_RESAMPLES = 5000


def resampled_medians(
    launches: Sequence[Array], between: np.random.Generator, within: np.random.Generator
) -> Array:
    """Return the medians of ``N_RESAMPLES`` resamples of a case, shape (N_RESAMPLES,).

    Each resample draws as many launches as there are, with replacement, and for each of them as
    many of its samples as it has; its value is the median over launches of their medians.

    Parameters
    ----------
    launches
        For each launch the seconds of its samples, at least one.
    between, within
        What draws the launches, and what draws the samples within them.

    Notes
    -----
    The k-th smallest of n values drawn from a sorted sample x is x[⌊nU⌋], where U is the k-th
    smallest of n uniform numbers, which is Beta(k, n − k + 1): so a launch of a thousand samples
    costs as little as one of three. The bootstrap in two levels is that of A. C. Davison and
    D. V. Hinkley, Bootstrap Methods and their Application, section 3.8.
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
        # The next larger of the n - k uniform numbers that are left above the k-th.
        high = low + (1 - low) * (1 - rng.random(size) ** (1 / (n - k)))
    return (_at(values, low) + _at(values, high)) / 2


def _at(values: Array, share: Array) -> Array:
    index = np.minimum((share * len(values)).astype(int), len(values) - 1)
    return np.asarray(values[index])


def interval(resampled: Array, confidence: float) -> tuple[float, float]:
    """Return the percentile interval of a resampled statistic.

    Notes
    -----
    For ratios of medians of six launches and more it holds what it says: a median's resamples lie
    further apart than the sample's own luck, the more so as iterations are drawn anew as well.
    ``tests/stats/test_verdict_rates.py`` measures it.

    Examples
    --------
    >>> low, high = interval(np.linspace(0, 1, 10001), 0.95)
    >>> f"{low:.3f} {high:.3f}"
    '0.025 0.975'
    """
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return low, high

"""Resampled medians are distributed as drawing every value one by one would have them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import ks_2samp

from commbench.stats.inference import N_RESAMPLES, resampled_medians


def generators(seed: int) -> list[np.random.Generator]:
    """Return what draws launches and what draws samples."""
    return [np.random.default_rng([seed, number]) for number in range(2)]


def drawn_one_by_one(launches: list[np.ndarray], n: int) -> np.ndarray:
    """Return resampled medians the slow way."""
    dice = np.random.default_rng(1)
    medians = []
    for _ in range(n):
        chosen = [launches[place] for place in dice.integers(len(launches), size=len(launches))]
        medians.append(np.median([np.median(dice.choice(x, len(x))) for x in chosen]))
    return np.array(medians)


@pytest.mark.parametrize("sizes", [[1, 1, 1], [3, 3, 3, 3], [2, 5, 8, 1], [50, 51]])
def test_the_shortcut_is_the_bootstrap(sizes: list[int]) -> None:
    """Medians from order statistics have the distribution of medians of values drawn singly."""
    dice = np.random.default_rng(0)
    launches = [dice.lognormal(place, 0.5, size) for place, size in enumerate(sizes)]
    fast = resampled_medians(launches, *generators(2))
    assert fast.shape == (N_RESAMPLES,)
    assert ks_2samp(fast, drawn_one_by_one(launches, 3000)).pvalue > 1e-3


def test_two_launches_of_one_sample_are_what_counting_gives() -> None:
    """Of the four draws of two launches one in four is the smaller twice: 1, 1.5, 1.5 and 2."""
    found = resampled_medians([np.array([1.0]), np.array([2.0])], *generators(3))
    outcomes = [sum(draw) / 2 for draw in product((1.0, 2.0), repeat=2)]
    for value in set(outcomes):
        share = outcomes.count(value) / 4
        assert (found == value).mean() == pytest.approx(share, abs=4 * math.sqrt(0.25 / len(found)))


def test_a_constant_stays_what_it_is() -> None:
    """Resampling what has no spread gives none."""
    found = resampled_medians([np.full(4, 7.0)] * 6, *generators(0))
    assert set(found) == {7.0}

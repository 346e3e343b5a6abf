import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import ks_2samp

from commbench.stats.inference import N_RESAMPLES, resampled_medians


def generators(seed):
    return [np.random.default_rng([seed, number]) for number in range(2)]


def drawn_one_by_one(launches, n):
    dice = np.random.default_rng(1)
    medians = []
    for _ in range(n):
        chosen = [launches[i] for i in dice.integers(len(launches), size=len(launches))]
        medians.append(np.median([np.median(dice.choice(x, len(x))) for x in chosen]))
    return np.array(medians)


@pytest.mark.parametrize("sizes", [[1, 1, 1], [3, 3, 3, 3], [2, 5, 8, 1], [50, 51]])
def test_resampled_medians_are_distributed_like_medians_of_single_draws(sizes):
    dice = np.random.default_rng(0)
    launches = [dice.lognormal(center, 0.5, size) for center, size in enumerate(sizes)]
    fast = resampled_medians(launches, *generators(2))
    assert fast.shape == (N_RESAMPLES,)
    assert ks_2samp(fast, drawn_one_by_one(launches, 3000)).pvalue > 1e-3


def test_resampled_medians_of_two_launches_have_the_probabilities_of_counting():
    medians = resampled_medians([np.array([1.0]), np.array([2.0])], *generators(3))
    outcomes = [sum(draw) / 2 for draw in product((1.0, 2.0), repeat=2)]
    for value in set(outcomes):
        share = outcomes.count(value) / 4
        slack = 4 * math.sqrt(0.25 / len(medians))
        assert (medians == value).mean() == pytest.approx(share, abs=slack)


def test_resampled_medians_of_a_constant_are_that_constant():
    assert set(resampled_medians([np.full(4, 7.0)] * 6, *generators(0))) == {7.0}

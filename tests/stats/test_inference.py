import itertools

import numpy as np
import pytest
import scipy

from commbench.stats.inference import MANN_WHITNEY, SIGNED_RANK, interval, log_ratios, p_value

TESTS = [MANN_WHITNEY, SIGNED_RANK]


def drawn(n, seed):
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 0.2, n), rng.lognormal(0.1, 0.2, n)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("n", [6, 9, 20, 40])
def test_the_interval_has_the_ratios_that_the_test_does_not_reject(test, n):
    one, two = drawn(n, seed=n)
    limits = interval(test, log_ratios(test, one, two), n, n, 0.05)
    for limit, outside in zip(limits, (-1, 1), strict=True):
        # Just outside a limit one of the log ratios has changed its sign.
        rejected = p_value(test, one, two * np.exp(-limit - outside * 1e-9))
        kept = p_value(test, one, two * np.exp(-limit + outside * 1e-9))
        # Above 20 launches the statistic is taken to be normal.
        slack = 0.003 if n > 20 else 0.0
        assert rejected <= 0.05 + slack
        assert kept > 0.05 - slack


@pytest.mark.parametrize("seed", range(20))
def test_the_p_value_of_pairs_is_exact_with_ties_and_ratios_of_1(seed):
    dice = np.random.default_rng(seed)
    logs = dice.integers(-4, 5, 6 + seed % 4) / 10
    ranks = scipy.stats.rankdata(abs(logs)) * (logs != 0)
    signs = np.array([*itertools.product((-1, 1), repeat=len(logs))])
    total = abs(ranks @ np.sign(logs))
    expected = (abs(signs @ ranks) > total - 1e-6).mean()
    one, two = np.ones(len(logs)), np.exp(logs)
    assert p_value(SIGNED_RANK, one, two) == pytest.approx(expected)
    assert p_value(SIGNED_RANK, two, one) == pytest.approx(expected)


@pytest.mark.parametrize("test", TESTS)
def test_the_median_ratio_is_hodges_and_lehmanns(test):
    one, two = np.array([1.0, 1.0, 2.0]), np.array([2.0, 2.0, 8.0])
    assert np.exp(np.median(log_ratios(test, one, two))) == pytest.approx(
        2.0 if test == MANN_WHITNEY else 2 * 2**0.25
    )


@pytest.mark.parametrize(("test", "n"), [(MANN_WHITNEY, 3), (SIGNED_RANK, 5)])
def test_few_launches_have_no_interval(test, n):
    one, two = drawn(n, seed=1)
    assert interval(test, log_ratios(test, one, two), n, n, 0.05) == (-np.inf, np.inf)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("n", [6, 20, 21])
def test_the_interval_covers_the_ratio(test, n):
    n_trials, hits = 1000, 0
    for seed in range(n_trials):
        low, high = interval(test, log_ratios(test, *drawn(n, seed)), n, n, 0.05)
        hits += low <= 0.1 <= high
    assert scipy.stats.binomtest(hits, n_trials, 0.95, "less").pvalue > 1e-4
    assert hits <= 0.985 * n_trials

import itertools

import numpy as np
import pytest
import scipy

from commbench.stats.inference import (
    MANN_WHITNEY,
    SIGNED_RANK,
    all_alike,
    interval,
    larger,
    log_ratios,
    median_interval,
    p_value,
    trend,
)

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


@pytest.mark.parametrize("seed", range(40))
def test_p_values_are_those_of_scipy(seed):
    dice = np.random.default_rng(seed)
    n_groups, n = dice.integers(3, 6), 2 + seed % 12
    # Every second time some values are equal.
    groups = [
        dice.integers(1, 6, n).astype(float) if seed % 2 else dice.random(n)
        for _ in range(n_groups)
    ]  # fmt: skip
    assert all_alike(groups, paired=True) == pytest.approx(
        scipy.stats.friedmanchisquare(*groups).pvalue
    )
    shorter = [group[: dice.integers(1, n + 1)] for group in groups]
    assert all_alike(shorter, paired=False) == pytest.approx(scipy.stats.kruskal(*shorter).pvalue)
    for one, two in itertools.permutations(shorter, 2):
        exact = scipy.stats.mannwhitneyu(one, two, method="exact")
        assert p_value(MANN_WHITNEY, one, two) == pytest.approx(exact.pvalue)
    many = [np.concatenate([group] * 4) + dice.integers(0, 9, 4 * n) for group in groups]
    normal = scipy.stats.mannwhitneyu(*many[:2], alternative="greater", method="asymptotic")
    assert larger(*many[:2]) == pytest.approx(normal.pvalue)
    distinct = dice.permutation(n).astype(float)
    assert trend(distinct) == pytest.approx(
        scipy.stats.kendalltau(range(n), distinct, method="exact").pvalue
    )


@pytest.mark.parametrize("n", [21, 60, 600])
def test_p_values_of_many_launches_are_near_the_exact_ones(n):
    one, two = drawn(n, seed=n)
    two = two[: n // 2] / 1.1
    exact = scipy.stats.mannwhitneyu(one, two, method="exact" if n < 100 else "asymptotic").pvalue
    assert p_value(MANN_WHITNEY, one, two) == pytest.approx(exact, rel=0.1)
    course = drawn(n, seed=n)[0] + np.linspace(0, 0.2, n)
    kendall = scipy.stats.kendalltau(range(n), course).pvalue
    assert trend(course) == pytest.approx(kendall, rel=0.15)


def test_a_trend_with_equal_values_is_no_clearer_than_one_of_distinct_values():
    one_tie, one_inversion = np.array([1.0, 2, 2, 3, 4, 5]), np.array([1.0, 3, 2, 4, 5, 6])
    assert trend(np.arange(6.0)) < trend(one_tie) <= trend(one_inversion)
    assert trend(np.ones(6)) == 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 14, 60, 1500])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_the_interval_of_a_median_is_the_narrowest_that_reaches_the_confidence(n, confidence):
    k, level = median_interval(n, confidence)
    levels = {k: 1 - 2 * scipy.stats.binom.cdf(k - 1, n, 0.5) for k in range(1, n // 2 + 1)}
    assert level == pytest.approx(levels.get(k, 0.0))
    assert k == max([1, *(each for each, level in levels.items() if level >= confidence)])


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

"""How often a verdict is right, on simulated launches; ``make truth`` has real ones."""

from collections import Counter
from typing import Any

import builders
import numpy as np
import pytest

from commbench.stats.comparison import MIN_EFFECT, compare_pairs
from commbench.stats.sequential import CONFIDENCE, N_LOOKS, look_level

Launches = list[np.ndarray[Any, Any]]
CASES = (builders.case("tcp"), builders.case("ucx"))
N_LAUNCHES = 100


def verdict(one, two, alpha=1 - CONFIDENCE, *, paired=True):
    sides = [
        builders.make_side(case, "comm", 1, dict(enumerate(launches)))
        for case, launches in zip(CASES, (one, two), strict=True)
    ]
    (comparisons,) = compare_pairs([(sides[0], sides[1])], MIN_EFFECT, paired=paired, alpha=alpha)
    return comparisons


def lognormal(dice, n, sigma, scale=1.0):
    between = dice.lognormal(np.log(scale), sigma, n)
    return [between[i] * dice.lognormal(0, sigma / 2, 5) for i in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 10, 20])
@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_the_interval_of_a_ratio_covers_it_in_95_percent(n, sigma):
    dice = np.random.default_rng(n)
    comparisons = [
        verdict(lognormal(dice, n, sigma), lognormal(dice, n, sigma, 2.0)) for _ in range(400)
    ]
    hits = sum(c.ci_low <= 2.0 <= c.ci_high for c in comparisons)
    print(f"coverage n={n} sigma={sigma}: {hits}/400 = {hits / 400:.1%}")
    # Two standard deviations of a share of 400 below.
    assert hits >= 400 * 0.95 - 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "sigma"), [(6, 0.1), *((n, sigma) for n in (6, 10, 30) for sigma in (0.03, 0.5))]
)
def test_equal_cases_rarely_differ(n, sigma):
    dice = np.random.default_rng(n + 1)
    comparisons = Counter(
        verdict(lognormal(dice, n, sigma), lognormal(dice, n, sigma)).verdict for _ in range(400)
    )
    wrong = comparisons["faster"] + comparisons["slower"]
    print(f"A/A simulated n={n} sigma={sigma}: {wrong}/400 = {wrong / 400:.1%}")
    assert wrong <= 20


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "least"), [(0.05, 90), (0.1, 90), (0.15, 75)])
def test_a_tenth_is_detected_where_launches_differ_by_little_more(sigma, least):
    dice = np.random.default_rng(7)
    comparisons = []
    for _ in range(100):
        one, two = (lognormal(dice, N_LAUNCHES, sigma, scale) for scale in (1.0, 1.1))
        comparisons.append(sequentially(one, two))
    assert (
        print_verdicts(f"A/B 10 % slower, simulated, sigma={sigma}", comparisons)["slower"] >= least
    )


def sequentially(one, two):
    """Return the comparison with which a run ends whose budget has time for all of these."""
    for number in range(1, N_LOOKS + 1):
        n = len(one) * number // N_LOOKS
        result = verdict(one[:n], two[:n], look_level(number))
        if result.verdict != "inconclusive":
            break
    return result


def print_verdicts(what, comparisons):
    counts = Counter(c.verdict for c in comparisons)
    launches = np.median([c.n_launches for c in comparisons])
    shares = ", ".join(
        f"{name} {n} ({n / len(comparisons):.1%})" for name, n in counts.most_common()
    )
    print(f"{what}: {len(comparisons)} comparisons of {launches:.0f} launches (median): {shares}")
    return counts

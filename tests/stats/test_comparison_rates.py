"""How often a verdict is right: on simulated launches, and on real ones whose truth is known.

The real launches are those of ``twins``; where ``COMMBENCH_TWINS`` names a run of them, it is used
instead of measuring one, which takes half an hour.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
import twins

from commbench import load
from commbench.stats.comparison import MIN_EFFECT, compare_pairs, make_side
from commbench.stats.selection import measured
from commbench.stats.sequential import CONFIDENCE, N_LOOKS, look_level

Launches = list[np.ndarray[Any, Any]]
CASES = (builders.case("tcp"), builders.case("ucx"))
N_LAUNCHES = 100


def verdict(one, two, alpha=1 - CONFIDENCE):
    sides = [
        make_side(case, "comm", 1, dict(enumerate(launches)))
        for case, launches in zip(CASES, (one, two), strict=True)
    ]
    (comparisons,) = compare_pairs([(sides[0], sides[1])], MIN_EFFECT, paired=True, alpha=alpha)
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


@pytest.mark.parametrize(
    ("n", "sigma"),
    [
        (6, 0.1),
        *(pytest.param(n, x, marks=pytest.mark.slow) for n in (6, 10, 30) for x in (0.03, 0.5)),
    ],
)
def test_equal_cases_rarely_differ(n, sigma):
    dice = np.random.default_rng(n + 1)
    comparisons = Counter(
        verdict(lognormal(dice, n, sigma), lognormal(dice, n, sigma)).verdict for _ in range(400)
    )
    wrong = comparisons["faster"] + comparisons["slower"]
    print(f"A/A simulated n={n} sigma={sigma}: {wrong}/400 = {wrong / 400:.1%}")
    assert wrong <= 20


# --- real launches ---------------------------------------------------------------------------


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


@pytest.fixture(scope="module", name="pool")
def _pool(tmp_path_factory):
    given = os.environ.get("COMMBENCH_TWINS")
    run = load(Path(given) if given else twins.measure(tmp_path_factory.mktemp("twins"), 120))
    samples = measured(run)
    # A block that was cut short has no launch of every backend.
    complete = samples.groupby("launch")["backend"].nunique() == len(twins.BACKENDS)
    samples = samples[samples["launch"].map(complete)]
    groups = samples.groupby(["backend", "payload_bytes", "launch"])["seconds"]
    comparisons = {}
    for (backend, size, _), seconds in groups:
        comparisons.setdefault((backend, size), []).append(seconds.to_numpy())
    return comparisons


def sequentially(one, two):
    """Return the comparison with which a run ends whose budget has time for all of these."""
    for number in range(1, N_LOOKS + 1):
        n = len(one) * number // N_LOOKS
        result = verdict(one[:n], two[:n], look_level(number))
        if result.verdict != "inconclusive":
            break
    return result


def drawn(pool, names, size, dice, *, part=1, factor=1.0):
    sides = [pool[name, size] for name in names]
    blocks = len(sides[0])
    order = dice.permutation(blocks)[: blocks // part]
    swap = dice.integers(2 if names == ("twin:a", "twin:b") else 1, size=blocks)
    one = [sides[swap[block]][block] for block in order]
    two = [sides[1 - swap[block]][block] * factor for block in order]
    return sequentially(one, two)


def print_verdicts(what, comparisons):
    counts = Counter(c.verdict for c in comparisons)
    launches = np.median([c.n_launches for c in comparisons])
    shares = ", ".join(
        f"{name} {n} ({n / len(comparisons):.1%})" for name, n in counts.most_common()
    )
    print(f"{what}: {len(comparisons)} comparisons of {launches:.0f} launches (median): {shares}")
    return counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", [1, 4])
@pytest.mark.parametrize("size", twins.SIZES)
def test_a_backend_rarely_differs_from_itself(pool, size, part):
    dice = np.random.default_rng(size)
    comparisons = [drawn(pool, ("twin:a", "twin:b"), size, dice, part=part) for _ in range(200)]
    counts = print_verdicts(
        f"A/A resampled, 1/{part} of the blocks, {size} B, five looks", comparisons
    )
    assert counts["faster"] + counts["slower"] <= 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fresh_launches_of_one_backend_rarely_differ(pool):
    comparisons = []
    for size in twins.SIZES:
        one, two = pool["twin:a", size], pool["twin:b", size]
        comparisons += [
            verdict(one[begin : begin + 6], two[begin : begin + 6])
            for begin in range(0, len(one) - 5, 6)
        ]
    counts = print_verdicts("A/A fresh, 6 launches", comparisons)
    assert len(comparisons) >= 20
    assert counts["faster"] + counts["slower"] <= 0.05 * len(comparisons)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("size", twins.SIZES)
def test_a_delay_of_a_tenth_is_detected(pool, size):
    dice = np.random.default_rng(size)
    comparisons = [drawn(pool, ("twin:a", "twin:10"), size, dice, part=2) for _ in range(200)]
    counts = print_verdicts(f"A/B 10 % slower, injected, {size} B, five looks", comparisons)
    scaled = [drawn(pool, ("twin:a", "twin:b"), size, dice, factor=1.1) for _ in range(200)]
    scaled_counts = print_verdicts(f"A/B 10 % slower, scaled copy, {size} B, five looks", scaled)
    assert counts["slower"] >= 180
    assert scaled_counts["slower"] >= 180

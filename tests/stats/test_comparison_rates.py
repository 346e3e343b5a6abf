"""How often a verdict is right: on simulated launches, and on real ones whose truth is known.

The real launches are those of ``twins``; where ``COMMBENCH_TWINS`` names a run of them, it is used
instead of measuring one, which takes half an hour.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
import twins

from commbench import load
from commbench.model import RIGOROUS_LAUNCHES, Stopping
from commbench.stats.comparison import MIN_EFFECT, compare_pairs, make_side
from commbench.stats.selection import measured
from commbench.stats.summary import launches_interval

Launches = list[np.ndarray[Any, Any]]
CASES = (builders.case("tcp"), builders.case("ucx"))
RULE = Stopping()


def verdict(one: Launches, two: Launches) -> Any:
    """Compare the second set of launches with the first, block by block, as a report does."""
    sides = [
        make_side(case, "comm", 1, dict(enumerate(launches)))
        for case, launches in zip(CASES, (one, two), strict=True)
    ]
    (found,) = compare_pairs([(sides[0], sides[1])], MIN_EFFECT, paired=True)
    return found


def lognormal(dice: np.random.Generator, n: int, sigma: float, scale: float = 1.0) -> Launches:
    """Return `n` launches of 5 samples, `sigma` apart, with half of that within a launch."""
    between = dice.lognormal(np.log(scale), sigma, n)
    return [between[i] * dice.lognormal(0, sigma / 2, 5) for i in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 10, 20])
@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_the_interval_of_a_ratio_holds_it_in_95_percent(n: int, sigma: float) -> None:
    """Of 400 simulated pairs of cases the true ratio is outside of the interval in 5 % at most."""
    dice = np.random.default_rng(n)
    found = [verdict(lognormal(dice, n, sigma), lognormal(dice, n, sigma, 2.0)) for _ in range(400)]
    hits = sum(c.ci_low <= 2.0 <= c.ci_high for c in found)
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
def test_equal_cases_are_rarely_told_apart(n: int, sigma: float) -> None:
    """Of 400 pairs of simulated cases that are alike, 5 % at most are called faster or slower."""
    dice = np.random.default_rng(n + 1)
    found = Counter(
        verdict(lognormal(dice, n, sigma), lognormal(dice, n, sigma)).verdict for _ in range(400)
    )
    wrong = found["faster"] + found["slower"]
    print(f"A/A simulated n={n} sigma={sigma}: {wrong}/400 = {wrong / 400:.1%}")
    assert wrong <= 20


# --- real launches ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "least"), [(0.05, 90), (0.1, 90), (0.15, 75)])
def test_a_tenth_is_found_where_launches_differ_by_little_more(sigma: float, least: int) -> None:
    """With as many launches as ``--rigorous`` would take, most 10 % slowdowns are found."""
    dice = np.random.default_rng(7)
    found = []
    for _ in range(100):
        one, two = (lognormal(dice, RULE.max_launches, sigma, scale) for scale in (1.0, 1.1))
        n = rigorous(one, two)
        found.append(verdict(one[:n], two[:n]))
    assert tell(f"A/B 10 % slower, simulated, sigma={sigma}", found)["slower"] >= least


@pytest.fixture(scope="module", name="pool")
def _pool(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Launches]:
    """Return by backend and size the samples of each launch, in the order of the blocks."""
    given = os.environ.get("COMMBENCH_TWINS")
    run = load(Path(given) if given else twins.measure(tmp_path_factory.mktemp("twins"), 120))
    samples = measured(run)
    # A block that was cut short has no launch of every backend.
    complete = samples.groupby("launch")["backend"].nunique() == len(twins.BACKENDS)
    samples = samples[samples["launch"].map(complete)]
    groups = samples.groupby(["backend", "payload_bytes", "launch"])["seconds"]
    found: dict[tuple[str, int], Launches] = {}
    for (backend, size, _), seconds in groups:
        found.setdefault((backend, size), []).append(seconds.to_numpy())
    return found


def rigorous(one: Sequence[Any], two: Sequence[Any]) -> int:
    """Return how many of the blocks a ``--rigorous`` run with its default limits would take."""
    most = min(RULE.max_launches, len(one))
    for n in range(RIGOROUS_LAUNCHES, most):
        limits = [launches_interval([float(np.median(x)) for x in side[:n]]) for side in (one, two)]
        medians = [np.median([np.median(x) for x in side[:n]]) for side in (one, two)]
        if all(
            (high - low) / 2 / median <= RULE.rel_ci
            for (low, high, _), median in zip(limits, medians, strict=True)
        ):
            return n
    return most


def drawn(
    pool: dict[tuple[str, int], Launches], names: tuple[str, str], size: int,
    dice: np.random.Generator, *, part: int = 1, factor: float = 1.0,
) -> Any:  # fmt: skip
    """Compare two backends by launches of random blocks, one `part`-th of them, none used twice.

    Which of the two launches of a block stands for which side is drawn where both are alike.
    """
    sides = [pool[name, size] for name in names]
    blocks = len(sides[0])
    order = dice.permutation(blocks)[: blocks // part]
    swap = dice.integers(2 if names == ("twin:a", "twin:b") else 1, size=blocks)
    one = [sides[swap[block]][block] for block in order]
    two = [sides[1 - swap[block]][block] * factor for block in order]
    n = rigorous(one, two)
    return verdict(one[:n], two[:n])


def tell(what: str, found: Sequence[Any]) -> Counter[str]:
    """Print and return how often each verdict was given."""
    counts = Counter(c.verdict for c in found)
    launches = np.median([c.n_launches for c in found])
    shares = ", ".join(f"{name} {n} ({n / len(found):.1%})" for name, n in counts.most_common())
    print(f"{what}: {len(found)} comparisons of {launches:.0f} launches (median): {shares}")
    return counts


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", [1, 4])
@pytest.mark.parametrize("size", twins.SIZES)
def test_a_backend_is_rarely_told_apart_from_itself(pool: Any, size: int, part: int) -> None:
    """Of 200 comparisons of a backend with itself, from real launches, 5 % at most are wrong.

    Draws of all blocks have many launches in common, those of a quarter of them few.
    """
    dice = np.random.default_rng(size)
    found = [drawn(pool, ("twin:a", "twin:b"), size, dice, part=part) for _ in range(200)]
    counts = tell(f"A/A resampled, 1/{part} of the blocks, {size} B, --rigorous", found)
    assert counts["faster"] + counts["slower"] <= 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fresh_launches_of_one_backend_are_rarely_told_apart(pool: Any) -> None:
    """Of all stretches of six fresh blocks, each used once, 5 % at most get a false verdict."""
    found = []
    for size in twins.SIZES:
        one, two = pool["twin:a", size], pool["twin:b", size]
        found += [
            verdict(one[begin : begin + 6], two[begin : begin + 6])
            for begin in range(0, len(one) - 5, 6)
        ]
    counts = tell("A/A fresh, 6 launches", found)
    assert len(found) >= 20
    assert counts["faster"] + counts["slower"] <= 0.05 * len(found)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("size", twins.SIZES)
def test_a_delay_of_a_tenth_is_found(pool: Any, size: int) -> None:
    """Of 200 comparisons with a backend that is 10 % slower, from real launches, 90 % say so."""
    dice = np.random.default_rng(size)
    found = [drawn(pool, ("twin:a", "twin:10"), size, dice, part=2) for _ in range(200)]
    counts = tell(f"A/B 10 % slower, injected, {size} B, --rigorous", found)
    scaled = [drawn(pool, ("twin:a", "twin:b"), size, dice, factor=1.1) for _ in range(200)]
    scaled_counts = tell(f"A/B 10 % slower, scaled copy, {size} B, --rigorous", scaled)
    assert counts["slower"] >= 180
    assert scaled_counts["slower"] >= 180

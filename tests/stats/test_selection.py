"""Warm-up is found where it is, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable

import builders
import numpy as np
import pytest

from commbench import stats
from commbench.analysis.run import Run
from commbench.reports.sections import tables
from commbench.stats.selection import n_warmup


def noise(n: int, seed: int = 0) -> np.ndarray:
    """Return `n` samples of about 1 s."""
    return np.random.default_rng(seed).lognormal(0, 0.1, n)


@pytest.mark.parametrize("n_slow", [10, 25, 60])
def test_slow_samples_at_the_begin_are_warm_up(n_slow: int) -> None:
    """What is twice as slow at the begin is taken, to half a window less or a window more."""
    values = noise(400)
    values[:n_slow] *= 2
    assert n_slow - 10 <= n_warmup(values) < n_slow + 20


def test_steady_launches_lose_next_to_nothing() -> None:
    """Of 500 launches without warm-up one in a hundred loses a window."""
    lost = [n_warmup(noise(200, seed)) for seed in range(500)]
    assert sum(map(bool, lost)) <= 5


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 39])
def test_few_samples_are_left_alone(n: int) -> None:
    """A launch with fewer than forty samples keeps them, however slow the first ones are."""
    values = noise(n)
    values[: n // 3] *= 10
    assert n_warmup(values) == 0


def test_a_small_difference_is_not_warm_up() -> None:
    """Below the floor of 5 % nothing is taken, however sure the test is."""
    values = 1 + 1e-3 * noise(400)
    values[:100] *= 1.04
    assert n_warmup(values) == 0


def test_fast_samples_at_the_begin_are_not_warm_up() -> None:
    """What gets slower is no warm-up: leaving out the fast ones would be as wrong."""
    values = noise(400)
    values[:50] /= 2
    assert n_warmup(values) == 0


def test_a_launch_that_never_gets_warm_keeps_its_samples() -> None:
    """A launch that becomes faster to its very end has drift, not warm-up."""
    assert n_warmup(np.linspace(10, 1, 400)) == 0


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_samples_have_no_warm_up(value: float) -> None:
    """Where nothing changes, or the clock never moved, nothing is taken."""
    assert n_warmup(np.full(200, value)) == 0


def test_warm_up_is_kept_counted_and_told(recorded: Callable[..., Run]) -> None:
    """The records keep what was found, the summary counts it, and the report says so."""
    case = builders.case(workload="pingpong")
    values = np.ones(100) + 1e-3 * noise(100)
    values[:10] = 5.0
    records = [
        builders.message(case, value, 8, launch=launch, iteration=iteration)
        for launch in range(2)
        # As they come when sizes are interleaved: the order is the iterations', not the file's.
        for iteration, value in reversed(list(enumerate(values.tolist())))
    ]
    run = recorded([case], builders.ended(records))
    (row,) = stats.summaries(run).itertuples()
    assert (row.n_samples, row.n_warmup, len(run.samples)) == (180, 20, 200)
    assert row.max_s < 2
    first = next(tables(recorded([case], builders.ended(records))))
    assert "20 of 200 samples, at the begin of launches, were found to be warm-up" in first.note

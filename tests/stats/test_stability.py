"""Spread and drift are found where they were put, and in noise as often as they claim."""

from __future__ import annotations

import math
from collections.abc import Callable

import builders
import numpy as np
import pytest
from builders import sample

from commbench import stats
from commbench.analysis.run import Run
from commbench.stats.stability import relative_spread

Recorded = Callable[..., Run]
CASE = builders.case(launches=50)


def test_the_spread_of_a_normal_distribution_is_its_standard_deviation() -> None:
    """However few the values are, on average it is right to a tenth."""
    dice = np.random.default_rng(0)
    for n in (3, 4, 6, 10, 100):
        found = [relative_spread(dice.normal(100, 5, n)) for _ in range(4000)]
        assert np.mean(found) == pytest.approx(0.05, rel=0.1), n


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]])
def test_without_a_positive_median_there_is_no_spread(values: list[float]) -> None:
    """Nothing is relative to 0."""
    assert math.isnan(relative_spread(np.array(values)))


def test_spread_within_and_between_launches_are_told_apart(recorded: Recorded) -> None:
    """Launches that differ by 20 %, with samples that differ by 2 %."""
    dice = np.random.default_rng(1)
    records = [
        sample(CASE, level * float(dice.normal(1, 0.02)), launch=launch, iteration=iteration)
        for launch, level in enumerate(dice.normal(1, 0.2, 50).tolist())
        for iteration in range(9)
    ]
    (row,) = stats.spreads(recorded([CASE], builders.ended(records))).itertuples()
    assert row.within == pytest.approx(0.02, rel=0.2)
    assert row.between == pytest.approx(0.2, rel=0.3)


def test_too_few_samples_or_launches_have_no_spread(recorded: Recorded) -> None:
    """Two samples have no quartiles, nor have three launches; nothing at all has no row."""
    records = [sample(CASE, 1.0, launch=n, iteration=i) for n in range(3) for i in range(2)]
    (row,) = stats.spreads(recorded([CASE], builders.ended(records))).itertuples()
    assert math.isnan(row.within)
    assert math.isnan(row.between)
    for records in ([], [builders.failure(CASE)]):
        run = recorded([CASE], records)
        assert len(stats.spreads(run)) == len(stats.drifts(run)) == 0
        assert list(stats.drifts(run)) == ["case_id", "n_launches", "change", "p_value"]


def test_drift_follows_the_order_in_time_over_all_sizes(recorded: Recorded) -> None:
    """Launches are ordered by their blocks, whatever their numbers, and sizes weigh the same."""
    case = builders.case(workload="pingpong")
    blocks = [3, 0, 5, 1, 4, 2]
    records = [
        builders.message(case, size * 1e-6 * (1 + 0.1 * block), size, launch=launch, iteration=i)
        for launch, block in enumerate(blocks)
        for size in (1, 1000)
        for i in range(3)
    ]
    ends = [
        builders.model.LaunchEnd(
            case_id=case.id, launch=launch, block=block, position=0, ok=True, seconds=1.0
        )
        for launch, block in enumerate(blocks)
    ]
    (row,) = stats.drifts(recorded([case], [*records, *ends])).itertuples()
    assert row.n_launches == 6
    assert row.change == pytest.approx(0.5 / 1.25, rel=1e-9)
    assert row.p_value == pytest.approx(2 / 720)
    few = [*records, *(end for end in ends if end.launch < 5)]
    assert len(stats.drifts(recorded([case], few))) == 0


def test_noise_drifts_as_rarely_as_its_probability_says(recorded: Recorded) -> None:
    """Of 300 steady cases of seven launches about 1 % have a p-value below 1 %."""
    dice = np.random.default_rng(2)
    cases = [builders.case(params={"rows": number}) for number in range(300)]
    records = [
        sample(case, float(dice.lognormal(0, 0.1)), launch=launch)
        for case in cases
        for launch in range(7)
    ]
    table = stats.drifts(recorded(cases, builders.ended(records)))
    assert len(table) == 300
    assert (table["p_value"] < 0.01).mean() <= 0.03
    assert (table["p_value"] < 0.5).mean() == pytest.approx(0.5, abs=0.15)

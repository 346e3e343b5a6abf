import math

import builders
import numpy as np
import pytest
from builders import sample

from commbench import stats
from commbench.stats.stability import relative_spread

CASE = builders.case(launches=50)


def test_the_spread_of_a_normal_distribution_is_its_standard_deviation():
    dice = np.random.default_rng(0)
    for n in (3, 4, 6, 10, 100):
        spreads = [relative_spread(dice.normal(100, 5, n)) for _ in range(2000)]
        assert np.mean(spreads) == pytest.approx(0.05, rel=0.1), n


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]])
def test_no_spread_without_a_positive_median(values):
    assert math.isnan(relative_spread(np.array(values)))


def test_spread_within_and_between_launches(recorded):
    dice = np.random.default_rng(1)
    records = [
        sample(CASE, level * float(dice.normal(1, 0.02)), launch=launch, iteration=iteration)
        for launch, level in enumerate(dice.normal(1, 0.2, 50).tolist())
        for iteration in range(9)
    ]
    (row,) = stats.spreads(recorded([CASE], builders.ended(records))).itertuples()
    assert row.within == pytest.approx(0.02, rel=0.2)
    assert row.between == pytest.approx(0.2, rel=0.3)


def test_too_few_samples_or_launches_have_no_spread(recorded):
    records = [sample(CASE, 1.0, launch=n, iteration=i) for n in range(3) for i in range(2)]
    (row,) = stats.spreads(recorded([CASE], builders.ended(records))).itertuples()
    assert math.isnan(row.within)
    assert math.isnan(row.between)
    for records in ([], [builders.failure(CASE)]):
        run = recorded([CASE], records)
        assert len(stats.spreads(run)) == len(stats.drifts(run)) == 0
        assert list(stats.drifts(run)) == ["case_id", "n_launches", "change", "p_value"]


def test_drift_follows_the_order_in_time_over_all_sizes(recorded):
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


def test_p_values_of_drift_are_uniform_without_drift():
    dice = np.random.default_rng(2)
    cases = [builders.case(params={"rows": number}) for number in range(300)]
    records = [
        sample(case, float(dice.lognormal(0, 0.1)), launch=launch)
        for case in cases
        for launch in range(7)
    ]
    table = stats.drifts(builders.in_memory(cases, builders.ended(records)))
    assert len(table) == 300
    assert (table["p_value"] < 0.01).mean() <= 0.03
    assert (table["p_value"] < 0.5).mean() == pytest.approx(0.5, abs=0.15)

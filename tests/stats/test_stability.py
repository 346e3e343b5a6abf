import math

import builders
import numpy as np
import pytest
from builders import sample

from commbench import stats
from commbench.model import registry
from commbench.stats import stability
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
        builders.observed.LaunchEnd(
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


BIMODAL = [0.88, 7.84, 1.10, 7.90, 1.25, 7.91]


@pytest.mark.parametrize(
    ("medians", "split"),
    [
        (BIMODAL, (1.10, 7.90, 0.5)),
        ([*BIMODAL, 7.8, 7.9], (1.10, 7.90, 3 / 8)),
        # A tight group and a loose one: the median would be 5.23.
        ([0.55, 0.81, 2.53, 7.93, 7.94, 7.94], (0.81, 7.94, 0.5)),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 9.0], None),
        ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], None),
        ([1.0] * 6, None),
        ([1.0, 1.0, 5.0, 5.0], None),
        ([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], None),
    ],
)
def test_launches_split_into_modes_at_a_wide_gap(medians, split):
    found = stability.modes(np.array(medians))
    assert found == (split if split is None else pytest.approx(split))


@pytest.mark.parametrize(("n", "sigma", "most"), [(6, 0.1, 0), (6, 0.2, 20), (10, 0.3, 10)])
def test_launches_with_one_mode_rarely_split(n, sigma, most):
    rng = np.random.default_rng(1)
    splits = [stability.modes(rng.lognormal(0, sigma, n)) for _ in range(2000)]
    assert sum(split is not None for split in splits) <= most


def test_a_report_has_both_modes_and_no_median_between_them(recorded):
    case = builders.case()
    run = recorded([case], builders.launches(case, [value / 1000 for value in BIMODAL]))
    (summary,) = run.summaries.itertuples()
    assert (summary.low_mode_s, summary.high_mode_s) == pytest.approx((1.1e-3, 7.9e-3))
    text = " ".join(registry.load("report", "terminal")(run).split())
    assert "1.10 or 7.90 ms" in text
    assert "4.55 ms" not in text
    assert "launches split into two modes, 3 of 6 at 1.10 ms and the others at 7.90 ms" in text
    assert "the slower is 2 × the kernel's tick (4 ms if the kernel ticks at 250 Hz)" in text


@pytest.mark.parametrize(
    ("tick_rate", "low_ms", "words"),
    [
        (250, 1.1, "; the slower is 2 × the kernel's tick (4 ms)"),
        (250, 4.0, "; the faster is 1 × the kernel's tick and the slower is 2 × the kernel's tick"),
        (1000, 3.0, "; the faster is 3 × the kernel's tick and the slower is 8 × the kernel's"),
        (300, 3.33, "; the faster is 1 × the kernel's tick (3.33 ms)"),
        (100, 1.1, ""),
    ],
)
def test_modes_that_are_multiples_of_the_tick_are_named(tick_rate, low_ms, words, recorded):
    case = builders.case()
    records = builders.launches(case, [low_ms / 1000, 7.99 / 1000] * 3)
    run = recorded([case], records, environment={"clock": {"tick_Hz": tick_rate}})
    (text,) = (text for text in run.warnings if "two modes" in text)
    assert text.partition("describes them")[2].startswith(words)
    assert words or "tick" not in text


def test_the_warning_names_the_widest_split_but_no_copy_of_memory(recorded):
    case = builders.case(workload="pingpong")
    slowdowns = {("memcpy", 1): 20.0, ("comm", 1): 1.7, ("worker", 64): 7.9, ("worker", 1): 2.0}
    records = []
    for key, slow in slowdowns.items():
        records += builders.messages(case, {key: 1.0}, [1.0, slow] * 3)
    (text,) = (text for text in recorded([case], records).warnings
               if "two modes" in text)  # fmt: skip
    assert "worker layer at 64 B: " in text
    assert "at 1.00 s and the others at 7.90 s (3 other sizes or layers do, too)" in text

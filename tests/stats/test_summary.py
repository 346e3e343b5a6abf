"""Medians of launches, intervals that hold what they promise, and verdicts only where they do."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable
from itertools import product

import builders
import numpy as np
import pytest
from builders import message, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import Case, Record

Recorded = Callable[..., Run]


@pytest.fixture(scope="session", name="recorded")
def _recorded_and_ended(recorded: Recorded) -> Recorded:
    """Return what stores records, with a good end for each launch that has none."""

    def build(cases: Iterable[Case], records: Iterable[Record] = (), **given: object) -> Run:
        return recorded(cases, builders.ended(records), **given)

    return build


def test_launches_that_were_cut_short_do_not_count(recorded: Recorded) -> None:
    """A launch that failed after one fast sample changes no median and earns no interval."""
    case = builders.case()
    good = builders.launches(case, [2.0] * 5)
    cut = [sample(case, 0.1, launch=5), builders.end(case, launch=5, ok=False)]
    (row,) = stats.summaries(recorded([case], good + cut)).itertuples()
    assert (row.n_launches, row.n_samples) == (5, 15)
    assert row.median_s == pytest.approx(2.0)
    assert row.confidence < 0.95


def test_a_case_without_a_good_launch_is_shown_without_an_interval(recorded: Recorded) -> None:
    """What was measured before every launch was cut short is still there, as such."""
    case = builders.case()
    records = [
        *(sample(case, 2.0, launch=launch) for launch in range(6)),
        *(builders.end(case, launch=launch, ok=False) for launch in range(6)),
    ]
    (row,) = stats.summaries(recorded([case], records)).itertuples()
    assert (row.n_launches, row.median_s, row.confidence) == (0, 2.0, 0.0)
    assert math.isnan(row.ci_low_s)


def level_by_counting(n: int, k: int) -> float:
    """Return P(k-th smallest ≤ median ≤ k-th largest) by going through all 2^n outcomes."""
    # Each value falls below the distribution's median or not, like a coin.
    hits = sum(k <= sum(below) <= n - k for below in product((0, 1), repeat=n))
    return hits / 2**n


@pytest.mark.parametrize("n", range(1, 15))
def test_the_level_is_what_counting_all_outcomes_gives(n: int) -> None:
    """The interval's probability is exact, for any continuous distribution."""
    k, level = stats.median_interval(n)
    assert level == pytest.approx(level_by_counting(n, k), abs=1e-12)


@pytest.mark.parametrize("n", range(1, 15))
def test_the_interval_is_the_narrowest_that_reaches_95_percent(n: int) -> None:
    """The next narrower interval falls short; where none reaches 95 %, it is the widest."""
    k, level = stats.median_interval(n)
    if level >= 0.95:
        assert k == n // 2 or level_by_counting(n, k + 1) < 0.95
    else:
        assert (k, n < 6) == (1, True)


@pytest.mark.parametrize("n", [6, 9, 20, 51])
@pytest.mark.parametrize("skew", [0.1, 2.0])
def test_the_interval_holds_the_median_as_often_as_it_says(n: int, skew: float) -> None:
    """In 40,000 simulated runs of skewed times the share of hits is the level, 95 % or more."""
    medians = np.random.default_rng(n).lognormal(0.0, skew, (40_000, n))
    medians.sort(axis=1)
    k, level = stats.median_interval(n)
    hits = (medians[:, k - 1] <= 1.0) & (medians[:, -k] >= 1.0)
    assert level >= 0.95
    # Four standard deviations of a share of 40,000.
    assert hits.mean() == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 40_000))


def test_six_launches_cover_the_median_in_96_percent_of_runs(recorded: Recorded) -> None:
    """Through the whole pipeline: 500 cases of six launches, each with a cluster of its own."""
    dice = random.Random(1)
    cases = [builders.case(params={"number": number}) for number in range(500)]
    records = [
        sample(case, luck * dice.uniform(0.99, 1.01), launch=launch, iteration=iteration)
        for case in cases
        for launch in range(6)
        for luck in [dice.lognormvariate(0.0, 0.5)]
        for iteration in range(2)
    ]
    table = stats.summaries(recorded(cases, records))
    hits = (table.ci_low_s <= 1.0) & (table.ci_high_s >= 1.0)
    assert (table.confidence == 0.96875).all()
    assert hits.mean() >= 0.96


runs = st.lists(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5), min_size=1, max_size=9)


@given(runs)
@settings(max_examples=40)
def test_a_summary_is_what_a_pocket_calculator_finds(
    recorded: Recorded, launches: list[list[float]]
) -> None:
    """Median of medians, order statistics and percentiles agree with the definitions."""
    case = builders.case()
    (row,) = stats.summaries(
        recorded(
            [case],
            [
                sample(case, value, launch=launch, iteration=iteration)
                for launch, values in enumerate(launches)
                for iteration, value in enumerate(values)
            ],
        )
    ).itertuples()
    medians = sorted(statistics.median(values) for values in launches)
    pooled = sorted(value for values in launches for value in values)
    k, level = stats.median_interval(len(medians))
    assert (row.n_launches, row.n_samples) == (len(launches), len(pooled))
    assert row.median_s == pytest.approx(statistics.median(medians), rel=1e-12)
    expected = (medians[k - 1], medians[-k]) if level else (math.nan, math.nan)
    assert (row.ci_low_s, row.ci_high_s) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert row.confidence == level
    for quantile, name in ((5, "p5"), (25, "p25"), (75, "p75"), (95, "p95"), (99, "p99")):
        place = (len(pooled) - 1) * quantile / 100
        low, high = pooled[math.floor(place)], pooled[math.ceil(place)]
        assert getattr(row, f"{name}_s") == pytest.approx(low + (high - low) * (place % 1))
    assert (row.min_s, row.max_s) == (pooled[0], pooled[-1])
    assert row.throughput_Bps == pytest.approx(row.payload_bytes / row.median_s)


def test_a_launch_with_many_samples_weighs_no_more_than_one_with_few(recorded: Recorded) -> None:
    """A hundred fast samples of one launch don't outvote two slow launches."""
    case = builders.case()
    records = [sample(case, 1.0, iteration=iteration) for iteration in range(100)]
    records += [sample(case, 3.0, launch=launch) for launch in (1, 2)]
    run = recorded([case], records)
    (row,) = stats.summaries(run).itertuples()
    assert row.median_s == 3.0
    assert (row.n_launches, row.n_samples) == (3, 102)
    assert run.samples["seconds"].median() == 1.0
    assert stats.launch_medians(run)["median_s"].tolist() == [1.0, 3.0, 3.0]


@pytest.mark.parametrize("field", [{"warmup": True}, {"verified": False}])
def test_warm_ups_and_unverified_samples_count_nowhere(
    field: dict[str, bool], recorded: Recorded
) -> None:
    """A sample that is a warm-up, or was not verified, moves no number and adds no launch."""
    case = builders.case()
    good = [sample(case, 1.0), sample(case, 1.0, launch=1)]
    bad = [sample(case, 99.0, iteration=1, **field), sample(case, 99.0, launch=2, **field)]
    (row,) = stats.summaries(recorded([case], good + bad)).itertuples()
    assert (row.n_launches, row.n_samples) == (2, 2)
    assert row.median_s == row.min_s == row.max_s == 1.0
    assert row.cpu_s == 2.0


def test_each_message_size_has_a_row_of_its_own(recorded: Recorded) -> None:
    """Sizes are not mixed, and stand in their order, not in the order of their text."""
    case = builders.case("tcp", "pingpong")
    records = [
        message(case, 1e-6 * size, size, launch=launch)
        for size in (1024, 1, 9)
        for launch in range(2)
    ]
    table = stats.summaries(recorded([case], records))
    assert table["payload_bytes"].tolist() == [1, 9, 1024]
    assert table["median_s"].tolist() == pytest.approx([1e-6, 9e-6, 1024e-6])
    assert table["throughput_Bps"].tolist() == pytest.approx([1e6] * 3)
    assert table["n_launches"].tolist() == [2, 2, 2]


def test_rows_stand_in_the_order_of_the_suite(recorded: Recorded) -> None:
    """The first backend of the suite comes first, whatever its name or its time."""
    cases = [builders.case(name) for name in ("ucx", "tcp", "ucx:shm")]
    run = recorded(cases, [sample(case, 3.0 - place) for place, case in enumerate(cases)])
    assert stats.summaries(run)["backend"].tolist() == ["ucx", "tcp", "ucx:shm"]
    assert stats.launch_medians(run)["backend"].tolist() == ["ucx", "tcp", "ucx:shm"]


def test_a_message_of_no_bytes_has_no_throughput(recorded: Recorded) -> None:
    """A size of 0 has a time, but no bandwidth: neither 0 nor infinite."""
    case = builders.case("tcp", "pingpong")
    (row,) = stats.summaries(recorded([case], [message(case, 1e-6, 0)])).itertuples()
    assert row.median_s == 1e-6
    assert math.isnan(row.throughput_Bps)


def test_negative_durations_count_nowhere(recorded: Recorded) -> None:
    """A clock that went back moves no number; a case that has nothing else has no row."""
    one, two = builders.case("tcp"), builders.case("ucx")
    records = [sample(one, 1.0), sample(one, -9.0, iteration=1), sample(two, -1.0)]
    (row,) = stats.summaries(recorded([one, two], records)).itertuples()
    assert (row.backend, row.n_samples, row.median_s, row.min_s) == ("tcp", 1, 1.0, 1.0)


def test_constant_times_have_an_interval_of_no_width(recorded: Recorded) -> None:
    """Six equal launches: one number everywhere, with its 97 %."""
    case = builders.case()
    run = recorded([case], [sample(case, 2.0, launch=launch) for launch in range(6)])
    (row,) = stats.summaries(run).itertuples()
    names = "median ci_low ci_high min p5 p25 p75 p95 p99 max"
    assert {getattr(row, f"{name}_s") for name in names.split()} == {2.0}
    assert row.confidence == 0.96875


def test_one_launch_allows_no_interval(recorded: Recorded) -> None:
    """However many samples it has, one launch gives a median without an interval."""
    case = builders.case()
    run = recorded([case], [sample(case, 1.0 + n, iteration=n) for n in range(50)])
    (row,) = stats.summaries(run).itertuples()
    assert row.confidence == 0
    assert math.isnan(row.ci_low_s)
    assert math.isnan(row.ci_high_s)
    assert row.median_s == 25.5


@pytest.mark.parametrize("records", [[], [builders.failure(builders.case())]])
def test_a_run_without_samples_has_no_rows(records: list[Record], recorded: Recorded) -> None:
    """Nothing measured, or failures only: empty tables with all their columns."""
    full = recorded(
        [builders.case()], [sample(builders.case(), 1.0), builders.idle(builders.case())]
    )
    empty = recorded([builders.case()], records)
    for derive in (stats.summaries, stats.launch_medians, stats.idle_cores):
        assert len(derive(empty)) == 0
        assert list(derive(empty).columns) == list(derive(full).columns)
    assert stats.comparisons(empty) == []


def test_a_sample_that_is_no_number_is_left_out_and_told(recorded: Recorded) -> None:
    """NaN seconds in a results file end up in a note, in no count and in no percentile."""
    case = builders.case()
    run = recorded([case], [sample(case, math.nan), sample(case, 1.0), sample(case, math.inf)])
    (row,) = stats.summaries(run).itertuples()
    assert (row.n_samples, row.median_s, row.p99_s) == (1, 1.0, 1.0)
    assert len(run.notes) == 2


def test_idle_cores_are_cpu_seconds_per_second(recorded: Recorded) -> None:
    """The median over launches of CPU time over wall time; a window of no length tells nothing."""
    one, two = builders.case("tcp"), builders.case("ucx")
    records = [builders.idle(one, cpu, seconds=2.0, launch=n) for n, cpu in enumerate((4, 1, 2))]
    run = recorded([one, two], [*records, builders.idle(two, 1.0, seconds=0.0)])
    table = stats.idle_cores(run)
    assert table["idle_cores"].tolist() == pytest.approx([1.0, math.nan], nan_ok=True)

import math
import statistics

import builders
import pytest
from builders import message, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench import stats

CASE = builders.case()
SECONDS = ["median_s", "ci_low_s", "ci_high_s", "min_s", "p25_s", "p75_s", "max_s"]  # fmt: skip


runs = st.lists(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5), min_size=1, max_size=9)


@given(runs)
@settings(max_examples=40)
def test_a_summary_agrees_with_its_definitions(launches):
    records = [
        sample(CASE, value, launch=launch, iteration=iteration)
        for launch, values in enumerate(launches)
        for iteration, value in enumerate(values)
    ]
    run = builders.in_memory([CASE], builders.ended(records))
    (row,) = stats.summaries(run).itertuples()
    medians = sorted(statistics.median(values) for values in launches)
    pooled = sorted(value for values in launches for value in values)
    k, level = stats.median_interval(len(medians))
    assert (row.n_launches, row.n_samples) == (len(launches), len(pooled))
    assert row.median_s == pytest.approx(statistics.median(medians), rel=1e-12)
    expected = (medians[k - 1], medians[-k]) if level else (math.nan, math.nan)
    assert (row.ci_low_s, row.ci_high_s) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert row.confidence == level
    for quantile, name in ((5, "p5"), (25, "p25"), (75, "p75"), (95, "p95"), (99, "p99")):
        position = (len(pooled) - 1) * quantile / 100
        low, high = pooled[math.floor(position)], pooled[math.ceil(position)]
        expected = low + (high - low) * (position % 1)
        if len(pooled) * min(quantile, 100 - quantile) < 100:
            expected = math.nan
        assert getattr(row, f"{name}_s") == pytest.approx(expected, nan_ok=True)
    assert (row.min_s, row.max_s) == (pooled[0], pooled[-1])
    assert row.throughput_Bps == pytest.approx(row.payload_bytes / row.median_s)


def test_a_launch_with_many_samples_weighs_no_more_than_one_with_few(recorded_and_ended):
    records = [sample(CASE, 1.0, iteration=iteration) for iteration in range(100)]
    records += [sample(CASE, 3.0, launch=launch) for launch in (1, 2)]
    run = recorded_and_ended([CASE], records)
    (row,) = stats.summaries(run).itertuples()
    assert row.median_s == 3.0
    assert (row.n_launches, row.n_samples) == (3, 102)
    assert run.samples["seconds"].median() == 1.0
    assert stats.launch_medians(run)["median_s"].tolist() == [1.0, 3.0, 3.0]


def test_each_message_size_has_a_row(recorded_and_ended):
    case = builders.case("tcp", "pingpong")
    records = [
        message(case, 1e-6 * size, size, launch=launch)
        for size in (1024, 1, 9)
        for launch in range(2)
    ]
    table = stats.summaries(recorded_and_ended([case], records))
    assert table["payload_bytes"].tolist() == [1, 9, 1024]
    assert table["median_s"].tolist() == pytest.approx([1e-6, 9e-6, 1024e-6])
    assert table["throughput_Bps"].tolist() == pytest.approx([1e6] * 3)
    assert table["n_launches"].tolist() == [2, 2, 2]


def test_rows_are_in_the_order_of_the_suite(recorded_and_ended):
    cases = [builders.case(name) for name in ("ucx", "tcp", "ucx:shm")]
    run = recorded_and_ended(cases, [sample(case, 3.0 - i) for i, case in enumerate(cases)])
    assert stats.summaries(run)["backend"].tolist() == ["ucx", "tcp", "ucx:shm"]
    assert stats.launch_medians(run)["backend"].tolist() == ["ucx", "tcp", "ucx:shm"]


def test_negative_durations_do_not_count(recorded_and_ended):
    one, two = builders.case("tcp"), builders.case("ucx")
    records = [sample(one, 1.0), sample(one, -9.0, iteration=1), sample(two, -1.0)]
    (row,) = stats.summaries(recorded_and_ended([one, two], records)).itertuples()
    assert (row.backend, row.n_samples, row.median_s, row.min_s) == ("tcp", 1, 1.0, 1.0)


def test_samples_of_nan_are_excluded_with_a_note(recorded_and_ended):
    run = recorded_and_ended(
        [CASE], [sample(CASE, math.nan), sample(CASE, 1.0), sample(CASE, math.inf)]
    )
    (row,) = stats.summaries(run).itertuples()
    assert (row.n_samples, row.median_s, row.max_s) == (1, 1.0, 1.0)
    assert len(run.notes) == 2


def test_idle_cores_are_the_median_of_cpu_seconds_per_second(recorded_and_ended):
    one, two = builders.case("tcp"), builders.case("ucx")
    records = [builders.idle(one, cpu, seconds=2.0, launch=n) for n, cpu in enumerate((4, 1, 2))]
    run = recorded_and_ended([one, two], [*records, builders.idle(two, 1.0, seconds=0.0)])
    table = stats.idle_cores(run)
    assert table["idle_cores"].tolist() == pytest.approx([1.0, math.nan], nan_ok=True)


def failed(launch):
    return builders.end(CASE, launch=launch, ok=False)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            [*builders.launches(CASE, [2.0] * 5), sample(CASE, 0.1, launch=5), failed(5)],
            {"n_launches": 5, "n_samples": 15, "median_s": 2.0, "confidence": 0.9375},
        ),
        (
            [record for n in range(6) for record in (sample(CASE, 2.0, launch=n), failed(n))],
            {"n_launches": 0, "median_s": 2.0, "confidence": 0.0, "ci_low_s": math.nan},
        ),
        *(
            (
                [
                    sample(CASE, 1.0), sample(CASE, 1.0, launch=1),
                    sample(CASE, 99.0, iteration=1, **field), sample(CASE, 99.0, launch=2, **field),
                ],
                {"n_launches": 2, "n_samples": 2, "median_s": 1.0, "max_s": 1.0, "cpu_s": 2.0},
            )
            for field in ({"warmup": True}, {"verified": False})
        ),
        ([message(CASE, 1e-6, 0)], {"median_s": 1e-6, "throughput_Bps": math.nan}),
        (
            [sample(CASE, 2.0, launch=launch) for launch in range(6)],
            {"confidence": 0.96875, "p99_s": math.nan} | dict.fromkeys(SECONDS, 2.0),
        ),
        (
            [sample(CASE, 1.0 + n, iteration=n) for n in range(50)],
            {"median_s": 25.5, "confidence": 0.0, "ci_low_s": math.nan, "ci_high_s": math.nan},
        ),
    ],
    ids=["a failed launch", "failed launches only", "warm-up", "unverified", "no bytes", "constant",
         "one launch"],
)  # fmt: skip
def test_summary_of_a_case(records, expected, recorded_and_ended):
    (row,) = stats.summaries(recorded_and_ended([CASE], records)).to_dict("records")
    assert {name: row[name] for name in expected} == pytest.approx(expected, nan_ok=True)

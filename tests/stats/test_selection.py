import builders
import numpy as np
import pytest

from commbench import stats
from commbench.model import USER_CODE, ClusterSpec
from commbench.reports.sections import tables
from commbench.stats.selection import describe_settings, n_warmup


def noise(n, seed=0):
    return np.random.default_rng(seed).lognormal(0, 0.1, n)


def test_versions_of_a_function_have_the_same_settings_and_those_of_a_script_have_others():
    for name, number in (("package.jobs:merge", 1), ("job.py", 2)):
        cases = [builders.case(workload=name, params={"sha256": digest}) for digest in ("a", "b")]
        assert len({*map(describe_settings, cases)}) == number


@pytest.mark.parametrize("n_slow", [10, 25, 60])
def test_slow_samples_at_the_begin_are_warm_up(n_slow):
    values = noise(400)
    values[:n_slow] *= 2
    assert n_slow - 10 <= n_warmup(values) < n_slow + 20


def test_one_in_a_hundred_steady_launches_loses_samples():
    lost = [n_warmup(noise(200, seed)) for seed in range(500)]
    assert sum(map(bool, lost)) <= 5


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 39])
def test_launches_of_fewer_than_40_samples_keep_them(n):
    values = noise(n)
    values[: n // 3] *= 10
    assert n_warmup(values) == 0


@pytest.mark.parametrize(
    ("n", "n_slow", "n_expected"),
    [
        (50, 20, 20),
        (59, 20, 20),
        (46, 20, 20),
        (50, 25, 0),
        (43, 21, 0),
        (44, 22, 0),
        (46, 23, 0),
        (64, 32, 0),
        (60, 30, 0),
    ],
)
def test_what_is_left_of_the_first_half_is_a_window_too(n, n_slow, n_expected):
    values = noise(n)
    values[:n_slow] *= 3
    assert n_warmup(values) == n_expected


@pytest.mark.parametrize(
    "values",
    [
        (1 + 1e-3 * noise(400)) * np.repeat([1.04, 1], [100, 300]),
        noise(400) * np.repeat([0.5, 1], [50, 350]),
        np.linspace(10, 1, 400),
        np.zeros(200),
        np.ones(200),
    ],
    ids=["below the floor of 5 %", "faster at the begin", "drift to the end", "zero", "constant"],
)
def test_samples_without_warm_up(values):
    assert n_warmup(values) == 0


def test_warm_up_is_excluded_counted_and_reported(recorded):
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
    assert "20 of 200 samples, at the start of launches, were detected as warm-up" in first.note


@pytest.mark.parametrize(
    ("errors", "kept"), [(["", "x", ""], [0, 2]), (["x", "x", "x"], [0, 1, 2])]
)
def test_regions_that_raised_do_not_count_unless_all_did(errors, kept, recorded):
    case = builders.case(workload="step")
    records = [
        record
        for number, error in enumerate(errors)
        for record in (
            builders.sample(case, 1.0, iteration=number, tool="your code"),
            builders.region(case, 1.0, iteration=number, error=error),
        )
    ]
    records += [builders.wire(case, 100, iteration=number) for number in range(3)]
    run = recorded([case], builders.ended(records))
    assert run.measured["iteration"].tolist() == kept
    assert run.costs["moved_bytes"].tolist() == [100]


def test_entries_of_a_region_are_no_warm_up(recorded):
    case = builders.case(workload="step", cluster=ClusterSpec(launcher=USER_CODE))
    samples = [
        builders.sample(case, 2.0 if number < 10 else 1.0 + number % 3 / 100, iteration=number)
        for number in range(60)
    ]
    assert len(recorded([case], builders.ended(samples)).measured) == 60

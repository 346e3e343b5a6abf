import math
import re

import builders
import numpy as np
import pytest
from scipy import stats

from commbench.reports.sections.differences import resolution
from commbench.stats.comparison import compare_pairs
from commbench.stats.inference import MANN_WHITNEY, SIGNED_RANK, detectable_shift

COARSE = "This run can't tell any backends apart: the clock is too coarse for their times."


@pytest.mark.parametrize("n", [6, 30])
@pytest.mark.parametrize("test", [MANN_WHITNEY, SIGNED_RANK])
def test_a_detectable_shift_is_found_with_its_probability(test, n):
    shift, rng, n_trials = detectable_shift(test, n, n, 0.05), np.random.default_rng(1), 600
    n_found = 0
    for _ in range(n_trials):
        one, two = rng.standard_normal(n), rng.standard_normal(n) + shift
        p = stats.wilcoxon(two) if test == SIGNED_RANK else stats.mannwhitneyu(one, two)
        n_found += p.pvalue <= 0.05
    # Four standard errors.
    assert n_found / n_trials == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(("test", "n", "level"), [(MANN_WHITNEY, 3, 0.05), (SIGNED_RANK, 6, 0.01)])
def test_too_few_values_detect_nothing(test, n, level):
    assert detectable_shift(test, n, n, level) == math.inf


def side(name, factor, deviation, n_launches, rng):
    samples = {
        launch: factor * np.exp(rng.normal(0, deviation) + rng.normal(0, 0.05, 3))
        for launch in range(n_launches)
    }
    return builders.make_side(builders.case(name), "workload", 8, samples)


@pytest.mark.parametrize(("n_launches", "deviation"), [(6, 0.1), (20, 0.1)])
def test_a_detectable_ratio_gets_a_verdict(n_launches, deviation):
    rng, detectable, n_found = np.random.default_rng(2), 0.0, 0
    for factor in [1.0] * 40 + [0.0] * 80:
        sides = (
            side("tcp", 1.0, deviation, n_launches, rng),
            side("mpi", factor or detectable / 40, deviation, n_launches, rng),
        )
        (comparison,) = compare_pairs([sides], 0.05, paired=True)
        detectable += comparison.detectable if factor else 0
        n_found += not factor and comparison.verdict == "slower"
    assert n_found / 80 >= 0.8


def launches(recorded, n_launches):
    tcp = [1 + launch / 50 for launch in range(n_launches)]
    return recorded(*builders.rivals({"tcp": tcp, "mpi": [1.1 * seconds for seconds in tcp]}))


def test_a_report_begins_with_what_it_can_find(recorded):
    assert resolution(launches(recorded, 8)) == ""
    noisy = [1.0, 2.0, 0.5, 1.5, 0.7, 1.2, 1.8, 0.9]
    run = recorded(*builders.rivals({"tcp": noisy, "mpi": noisy[::-1]}))
    least = f"{run.comparisons[0].detectable:.3g}×"
    margin = 1 + run.comparisons[0].margin
    shown = re.fullmatch(
        rf"Where no difference is shown, up to {least} can be missed; same within ([\d.]+)×.",
        resolution(run),
    )
    assert 0 <= float(shown[1]) - margin < 0.01


def test_where_comparisons_differ_the_worst_and_the_best_are_printed(recorded):
    quiet = [1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.15, 0.85]
    noisy = [1.0, 2.0, 0.5, 1.5, 0.7, 1.2, 1.8, 0.9]
    run = recorded(*builders.rivals({"tcp": quiet, "ucx": quiet[::-1], "mpi": noisy}))
    most, least = (f"{f(c.detectable for c in run.comparisons):.3g}×" for f in (max, min))
    missed = f"up to {most} ({least} in its best comparison) can be missed"
    assert f"{missed}; same within 1.64×." in resolution(run)


def test_differences_of_over_ten_times_have_no_digits(recorded):
    wild = [1.0, 900.0, 0.1, 300.0, 0.5, 7.0, 550.0, 2.0]
    run = recorded(*builders.rivals({"tcp": wild, "mpi": wild[::-1]}))
    (comparison,) = run.comparisons
    assert 10 < comparison.detectable < math.inf
    assert 10 < comparison.margin < math.inf
    text = "Where no difference is shown, any of mpi vs tcp can be missed."
    assert resolution(run) == text


def test_a_report_of_few_launches_says_how_many_are_needed(recorded):
    # Those that are planned are no option to give.
    text = resolution(launches(recorded, 2))
    assert text.endswith("it has 2 launches per case, and needs 6.")
    cases, records = builders.rivals({"tcp": [1.0, 1.1], "mpi": [1.2, 1.3]}, launches=2)
    assert resolution(recorded(cases, records)).endswith("needs 6 (--launches 6).")


def test_pairs_that_no_difference_would_tell_apart_are_named(recorded):
    # Of four backends, one has too few launches.
    medians = {
        name: [1 + launch / spread for launch in range(1, 13)]
        for name, spread in (("tcp", 500), ("mpi", 450))
    }
    medians["ucx"] = [1 + launch / 20 for launch in range(12)]
    medians["ucx:shm"] = medians["tcp"][:3]
    run = recorded(*builders.rivals(medians))
    assert resolution(run) == (
        "Where no difference is shown, any of ucx:shm vs tcp and 2 more can be missed."
    )


@pytest.mark.parametrize(("medians", "text"), [([0.0], COARSE), ([0.0, 1.0], "")])
def test_medians_of_0_need_no_more_launches(medians, text, recorded):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "mpi")]
    seconds = {("comm", size): median for size, median in enumerate(medians, start=1)}
    factors = [1 + launch / 50 for launch in range(6)]
    records = [each for case in cases for each in builders.messages(case, seconds, factors)]
    assert resolution(recorded(cases, records)) == text


def test_needed_launches_are_those_of_the_pairs_tested_together(recorded):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "mpi")]
    # One pair at each of a hundred sizes, not a hundred pairs.
    seconds = {("comm", size): 1e-3 for size in range(1, 101)}
    records = [each for case in cases for each in builders.messages(case, seconds, [1.0] * 2)]
    assert resolution(recorded(cases, records)).endswith("and needs 6.")

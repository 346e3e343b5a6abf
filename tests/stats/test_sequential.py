import math
from dataclasses import replace

import builders
import numpy as np
import pytest
import scipy

from commbench.model import Stopping
from commbench.stats import sequential
from commbench.stats.comparison import compare_pairs
from commbench.studies import budget

RULE = Stopping(budget_s=300.0)


def test_all_looks_together_have_the_level_of_one_test():
    rng = np.random.default_rng(1)
    steps = rng.standard_normal((200_000, sequential.N_LOOKS))
    looks = np.arange(1, sequential.N_LOOKS + 1)
    z = np.cumsum(steps, axis=1) / np.sqrt(looks)
    limits = [scipy.stats.norm.isf(sequential.look_level(int(number)) / 2) for number in looks]
    crossed = (np.abs(z) > limits).any(axis=1).mean()
    assert crossed == pytest.approx(0.05, abs=0.002)


def simulated(n_launches, between, within, iterations, ratio, rng):
    """Return a comparison's two sides, and how they look after fewer launches."""
    case = builders.case()
    logs = [
        rng.normal(math.log(level), between, n_launches)[:, None]
        + rng.normal(0, within, (n_launches, iterations))
        for level in (1.0, ratio)
    ]
    return [
        [builders.make_side(case, "workload", 1, dict(enumerate(np.exp(log[:n])))) for log in logs]
        for n in np.ceil(np.arange(1, 6) * n_launches / 5).astype(int)
    ]


def verdict(looks):
    """Return the verdict with which a run of these looks ends."""
    for number, pair in enumerate(looks, 1):
        (result,) = compare_pairs(
            [tuple(pair)], 0.05, paired=True, alpha=sequential.look_level(number)
        )
        if result.verdict != "inconclusive":
            return result.verdict
    return "inconclusive"


@pytest.mark.parametrize(
    "n_runs", [40, pytest.param(600, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_equal_backends_rarely_differ_and_a_tenth_is_detected(n_runs):
    # Sixteen launches of twelve iterations: five minutes of merge over two backends.
    rng = np.random.default_rng(2)
    design = {"n_launches": 16, "between": 0.03, "within": 0.1, "iterations": 12}
    equal = [verdict(simulated(**design, ratio=1.0, rng=rng)) for _ in range(n_runs)]
    n_false = sum(one in ("faster", "slower") for one in equal)
    assert scipy.stats.binomtest(n_false, n_runs, 0.05, "greater").pvalue > 0.01
    assert equal.count("same") >= n_runs / 2
    faster = [verdict(simulated(**design, ratio=0.9, rng=rng)) for _ in range(n_runs)]
    print(f"{n_runs} runs: {n_false} false, {equal.count('same')} same, ", end="")
    print(f"{faster.count('faster')} of a tenth detected")
    assert faster.count("faster") >= 0.8 * n_runs


def launches(
    case, n_launches, n_iterations, seconds=10.0, noise=0.1, between=0.0, seed=0, period_s=1.0
):
    rng = np.random.default_rng(seed)
    records = []
    for launch in range(n_launches):
        level = math.exp(rng.normal(0, between))
        records += [
            builders.sample(
                case,
                level * math.exp(rng.normal(0, noise)),
                launch=launch,
                iteration=number,
                started_at_s=period_s * number,
            )
            for number in range(n_iterations)
        ]
        records.append(builders.end(case, launch=launch, seconds=seconds))
    return records


def test_iterations_balance_the_cost_and_the_variance_of_both_levels(recorded):
    case = builders.case(launches=20)

    def chosen(**variances):
        records = launches(case, 100, 4, seconds=20.0, **variances)
        return sequential.next_block(recorded([case], records, stopping=RULE))

    # sqrt(16 s / 1 s), times the ratio of the standard deviations.
    assert chosen(noise=0.1, between=0.1).iterations == pytest.approx(4, abs=1)
    assert chosen(noise=0.05, between=0.2).iterations == 1
    block = chosen(noise=0.1)
    assert block.iterations == pytest.approx(16, abs=1)
    assert block.seconds == pytest.approx(16 + block.iterations, rel=0.1)
    # Two more seconds of each iteration are not timed.
    block = chosen(noise=0.1, period_s=3.0)
    assert block.seconds == pytest.approx(8 + 3 * block.iterations, rel=0.1)


def test_iterations_leave_time_until_the_deadline_of_each_case(recorded):
    cases = [builders.case("tcp"), builders.case("mpi", timeout_s=40.0)]
    records = [record for case in cases for record in launches(case, 100, 4, seconds=20.0)]
    # Half of 40 s without the 16 s that are no iteration.
    block = sequential.next_block(recorded(cases, records, stopping=RULE))
    assert block.iterations == pytest.approx(12, abs=1)


def test_few_launches_get_no_more_iterations_than_the_budget_has_time_for(recorded):
    case = builders.case(launches=2)
    run = recorded([case], launches(case, 2, 4), stopping=RULE)
    assert sequential.next_block(run).iterations > 1
    run = recorded([case], launches(case, 2, 4), stopping=Stopping(budget_s=70.0))
    assert sequential.next_block(run).iterations == 1


def test_iterations_that_are_fixed_stay(recorded):
    case = builders.case(launches=2)
    rule = Stopping(fixed_iterations=True)
    block = sequential.next_block(recorded([case], launches(case, 2, 4), stopping=rule))
    assert block.iterations is None
    assert block.seconds == 10.0


def test_a_block_takes_the_time_of_cases_that_always_fail(recorded):
    good, bad = builders.case("tcp"), builders.case("mpi")
    records = launches(good, 20, 4)
    alone = sequential.next_block(recorded([good], records, stopping=Stopping(budget_s=900.0)))
    records += [builders.end(bad, launch=n, ok=False, seconds=40.0) for n in range(20)]
    run = recorded([good, bad], records, stopping=Stopping(budget_s=900.0))
    assert sequential.next_block(run).seconds > alone.seconds + 40.0


@pytest.mark.parametrize(("n_launches", "number"), [(2, 0), (6, 1), (12, 2), (25, 4), (30, 5)])
def test_looks_are_due_by_the_share_of_the_budget_that_is_spent(n_launches, number, recorded):
    case = builders.case(launches=2)
    rule = Stopping(fixed_iterations=True)
    run = recorded([case], launches(case, n_launches, 4), stopping=rule)
    assert sequential.look(run) == number


@pytest.mark.parametrize(
    ("budget_s", "quick", "number"), [(52.0, False, 4), (52.0, True, 5), (39.0, False, 5)]
)
def test_a_run_may_take_longer_for_the_launches_of_a_verdict(budget_s, quick, number, recorded):
    case = builders.case(launches=2)
    rule = Stopping(budget_s=budget_s, fixed_iterations=True, quick=quick)
    # Of 10 s each, and six make a verdict.
    assert sequential.look(recorded([case], launches(case, 5, 4), stopping=rule)) == number
    assert sequential.look(recorded([case], launches(case, 6, 4), stopping=rule)) == 5


@pytest.mark.parametrize(("budget_s", "n_launches", "number"), [(46.0, 5, 5), (65.0, 6, 4)])
def test_a_launch_that_failed_is_none_of_those_of_a_verdict(budget_s, n_launches, number, recorded):
    case = builders.case(launches=2)
    rule = Stopping(budget_s=budget_s, fixed_iterations=True)
    *good, last = launches(case, n_launches, 4)
    run = recorded([case], [*good, replace(last, ok=False)], stopping=rule)
    assert sequential.look(run) == number


def test_cases_that_always_fail_do_not_extend_the_budget(recorded):
    case = builders.case(launches=2)
    rule = Stopping(budget_s=60.0, fixed_iterations=True)
    ends = [builders.end(case, launch=n, ok=False, seconds=6.0) for n in range(6)]
    assert sequential.limit_s(recorded([case], ends, stopping=rule)) == 60.0


def test_a_median_is_known_to_the_farther_end_of_its_interval(recorded):
    case = builders.case()
    records = builders.launches(case, [1.0, 1.0, 1.0, 1.0, 1.0, 1.09])
    run = recorded([case], records, stopping=Stopping(budget_s=300.0, detect=0.05))
    assert sequential.imprecise(run)["within"].tolist() == pytest.approx([0.09])


def test_a_run_of_fixed_launches_has_no_looks(recorded):
    case = builders.case()
    run = recorded([case], launches(case, 6, 3))
    assert sequential.look(run) == 0
    assert sequential.significance(run) == pytest.approx(0.05)
    assert run.ended_by == ""


@pytest.mark.parametrize(
    ("n_good", "n_failed", "ended_by"), [(0, 12, ""), (12, 5, ""), (12, 6, "decided")]
)
def test_a_case_of_which_no_launch_ends_well_is_not_decided(n_good, n_failed, ended_by, recorded):
    good, bad = builders.case("tcp"), builders.case("mpi")
    records = launches(good, n_good, 3, noise=0.001)
    records += [
        builders.end(bad, launch=launch, ok=False, seconds=4.0) for launch in range(n_failed)
    ]
    run = recorded([good, bad], records, stopping=Stopping(budget_s=200.0))
    assert run.ended_by == ended_by
    text = budget._describe(run, 1)
    assert "merge over mpi (no launch ended well)" in text
    assert "all is decided" not in text
    assert ("; ends in about " in text) == (not ended_by)

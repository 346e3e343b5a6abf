"""A verdict is given where interval, test and effect agree, and nowhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import builders
import numpy as np
import pytest
from builders import message, sample

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import Case, ClusterSpec, Comparison, Record
from commbench.stats.comparison import compare_pairs, make_side

Recorded = Callable[..., Run]
STEADY = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]


@pytest.fixture(scope="session", name="recorded")
def _recorded_and_ended(recorded: Recorded) -> Recorded:
    """Return what stores records, with a good end for each launch that has none."""

    def build(cases: Iterable[Case], records: Iterable[Record] = (), **given: object) -> Run:
        return recorded(cases, builders.ended(records), **given)

    return build


def verdict(
    baseline: list[float], candidate: list[float], min_effect: float = 0.05, *, paired: bool = False
) -> Comparison:
    """Return the comparison of two backends by their launches' medians."""
    sides = [
        make_side(
            builders.case(name), "workload", 8,
            dict(enumerate(np.array([medians]).T)),
        )
        for name, medians in (("tcp", baseline), ("ucx", candidate))
    ]  # fmt: skip
    (found,) = compare_pairs([(sides[0], sides[1])], min_effect, paired=paired)
    return found


def scaled(factor: float) -> list[float]:
    """Return steady launches that take `factor` times as long."""
    return [factor * value for value in STEADY]


def test_a_candidate_that_takes_longer_is_slower() -> None:
    """Ratio, effect, interval, p, delta and verdict of launches that don't overlap."""
    found = verdict(STEADY, scaled(3))
    assert (found.baseline, found.candidate, found.verdict) == ("tcp", "ucx", "slower")
    assert (found.baseline_id, found.candidate_id) == (
        builders.case("tcp").id, builders.case("ucx").id,
    )  # fmt: skip
    assert (found.ratio, found.effect) == pytest.approx((3.0, 2.0))
    assert (found.baseline_s, found.candidate_s) == pytest.approx((1.025, 3.075))
    assert 3 / 1.05 <= found.ci_low < 3 < found.ci_high <= 3 * 1.05
    assert found.p_value == pytest.approx(2 / math.comb(12, 6))
    assert (found.delta, found.n_launches, found.min_effect) == (1.0, 6, 0.05)


def test_the_other_way_around_is_the_inverse() -> None:
    """The same launches with the sides changed give the inverse ratio and the inverse verdict."""
    one, two = verdict(STEADY, scaled(3)), verdict(scaled(3), STEADY)
    assert two.verdict == "faster"
    assert (two.ratio, two.delta, two.p_value) == pytest.approx((1 / one.ratio, -1, one.p_value))


@pytest.mark.parametrize("factor", [1.0, 1.01, 0.99])
def test_what_differs_by_less_than_the_least_effect_is_the_same(factor: float) -> None:
    """Where the whole interval is within the least effect, the two are called the same."""
    assert verdict(STEADY, scaled(factor), min_effect=0.1).verdict == "same"


def test_a_small_difference_is_no_verdict_however_sure() -> None:
    """Launches that never overlap, 3 % apart: slower at a least effect of 1 %, the same at 5 %."""
    one = [1 + 1e-4 * number for number in range(10)]
    two = [1.03 * value for value in reversed(one)]
    assert verdict(one, two).p_value < 0.01
    assert [verdict(one, two, effect).verdict for effect in (0.0, 0.01, 0.0301, 0.05)] == [
        "slower", "slower", "inconclusive", "same",
    ]  # fmt: skip


def test_launches_that_overlap_widely_are_inconclusive() -> None:
    """A tenth apart, but with half of the launches beyond the others': nothing is said."""
    one, two = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.6, 1.4, 1.1, 1.5, 1.2, 1.3]
    found = verdict(one, two)
    assert found.verdict == "inconclusive"
    assert found.ci_low < 1 < found.ci_high


@pytest.mark.parametrize(("n_baseline", "n_candidate"), [(5, 6), (6, 5), (1, 1), (5, 50), (2, 2)])
def test_there_is_no_verdict_of_fewer_than_six_launches(n_baseline: int, n_candidate: int) -> None:
    """A hundredfold difference is inconclusive where either side has fewer than six launches."""
    found = verdict([1.0] * n_baseline, [100.0] * n_candidate)
    assert (found.verdict, found.ratio) == ("inconclusive", 100.0)
    assert verdict([1.0] * n_baseline, [1.0] * n_candidate).verdict == "inconclusive"


def test_one_launch_has_a_ratio_without_limits() -> None:
    """A single launch each: a ratio, and nothing that would make it sure."""
    found = verdict([1.0], [2.0])
    assert (found.ratio, found.p_value, found.delta) == (2.0, 1.0, 1.0)
    assert math.isnan(found.ci_low)
    assert math.isnan(found.ci_high)


def test_constant_launches_are_compared_like_others() -> None:
    """Six equal launches each: an interval of no width, and the verdict that follows from it."""
    slower, same = verdict([1.0] * 6, [2.0] * 6), verdict([1.0] * 6, [1.0] * 6)
    assert (slower.ci_low, slower.ci_high, slower.verdict) == (2.0, 2.0, "slower")
    assert (same.ratio, same.p_value, same.delta, same.verdict) == (1.0, 1.0, 0.0, "same")


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [([0.0] * 6, [1.0] * 6), ([0.0] * 6, [0.0] * 6), ([1.0] * 6, [0.0] * 6)],
)
def test_a_median_of_no_time_gives_no_ratio(baseline: list[float], candidate: list[float]) -> None:
    """Zero seconds, as a clock too coarse for them gives, are neither divided by nor beaten."""
    found = verdict(baseline, candidate)
    assert math.isnan(found.ratio)
    assert math.isnan(found.ci_low)
    assert found.verdict == "inconclusive"


def test_a_launch_of_no_time_among_others_gives_no_interval() -> None:
    """Where a resample may have a median of 0 s there are no limits, and no verdict."""
    found = verdict([0.0, *STEADY[1:]], scaled(3))
    assert math.isnan(found.ci_high)
    assert found.verdict == "inconclusive"


# --- blocks ------------------------------------------------------------------------------------

DRIFT = [1.0, 1.6, 2.3, 3.1, 4.4, 6.0, 8.8]


def test_what_a_block_has_in_common_counts_for_neither_side() -> None:
    """A machine that gets nine times slower hides no steady fifth: blocks are told apart."""
    slowed = [1.2 * value + 0.01 * place for place, value in enumerate(DRIFT)]
    assert verdict(DRIFT, slowed).verdict == "inconclusive"
    found = verdict(DRIFT, slowed, paired=True)
    assert (found.verdict, found.test) == ("slower", "Wilcoxon signed-rank")
    assert found.p_value == pytest.approx(2 / 2**7)
    assert 1.19 < found.ci_low < found.ratio <= found.ci_high < 1.25


def test_too_few_blocks_for_the_pairs_are_not_paired() -> None:
    """Where no outcome of the paired test could survive Holm's correction, the other is made."""
    sides = [
        make_side(
            builders.case(name), "workload", 8, {n: np.array([x]) for n, x in enumerate(STEADY)}
        )
        for name in ("tcp", "ucx", "mpi")
    ]
    one_pair = compare_pairs([(sides[0], sides[1])], 0.05, paired=True)
    two_pairs = compare_pairs([(sides[0], sides[1]), (sides[0], sides[2])], 0.05, paired=True)
    assert [c.test for c in one_pair] == ["Wilcoxon signed-rank"]
    assert [c.test for c in two_pairs] == ["Mann-Whitney"] * 2


def test_launches_of_other_blocks_are_not_paired(recorded: Recorded) -> None:
    """After a failure in one block the backends share no complete blocks, and are tested apart."""
    cases = [builders.case(name) for name in ("tcp", "ucx")]
    records = [
        sample(case, value, launch=launch)
        for case in cases
        for launch, value in enumerate([*STEADY, 1.0])
    ]
    tests = [
        stats.comparisons(recorded(cases, some))[0].test
        for some in (records, records[1:], [*records, builders.end(cases[1], launch=6, ok=False)])
    ]
    assert tests == ["Wilcoxon signed-rank", "Mann-Whitney", "Mann-Whitney"]


# --- several backends --------------------------------------------------------------------------


def test_all_pairs_are_compared_and_pay_for_their_number(recorded: Recorded) -> None:
    """Three backends make three pairs; each p-value is the test's times the pairs left (Holm)."""
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    records = [
        sample(case, factor * value, launch=launch)
        for case, factor in zip(cases, (1, 2, 4), strict=True)
        for launch, value in enumerate(STEADY)
    ]
    found = stats.comparisons(recorded(cases, records))
    assert [(c.baseline, c.candidate) for c in found] == [
        ("tcp", "ucx"), ("tcp", "mpi"), ("ucx", "mpi"),
    ]  # fmt: skip
    assert {c.verdict for c in found} == {"slower"}
    # All three tests are as sure as can be, so each stands at the largest multiple.
    assert [c.p_value for c in found] == pytest.approx([3 * 2 / math.comb(12, 6)] * 3)


def test_no_pair_is_surer_than_that_not_all_are_alike(recorded: Recorded) -> None:
    """Where Friedman doesn't find a difference among ten, no pair of them has one."""
    cases = [builders.case(name) for name in ("tcp", *(f"ucx:{n}" for n in range(9)))]
    records = [
        sample(case, 1.0 + ((7 * place + 3 * launch) % 11) / 100, launch=launch)
        for place, case in enumerate(cases)
        for launch in range(6)
    ]
    found = stats.comparisons(recorded(cases, records))
    assert len(found) == 45
    assert min(c.p_value for c in found) > 0.5


@pytest.mark.parametrize(
    "other",
    [
        {"params": {"rows": 2}},
        {"workload": "svd"},
        {"cluster": ClusterSpec(n_workers=3)},
        {"cluster": ClusterSpec(device="gpu")},
        {"cluster": ClusterSpec(env={"UCX_TLS": "tcp"})},
    ],
)
def test_only_what_differs_in_its_backend_alone_is_compared(
    other: dict[str, object], recorded: Recorded
) -> None:
    """Two cases of other parameters, workload or cluster are never set against each other."""
    cases: list[Case] = [
        builders.case("tcp", params={"rows": 1}),
        builders.case("ucx", **({"params": {"rows": 1}} | other)),
    ]
    run = recorded(cases, [sample(case, 1.0, launch=n) for case in cases for n in range(6)])
    assert stats.comparisons(run) == []


def test_message_sizes_are_compared_one_by_one(recorded: Recorded) -> None:
    """Each size has a ratio of its own, against the same size of the first backend."""
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx")]
    records = [
        message(case, size * (1 + place * size), size, launch=launch)
        for place, case in enumerate(cases)
        for size in (1, 4)
        for launch in range(6)
    ]
    found = stats.comparisons(recorded(cases, records))
    assert {c.payload_bytes: c.ratio for c in found} == {1: 2.0, 4: 5.0}


def test_only_launches_that_ended_well_are_compared(recorded: Recorded) -> None:
    """Launches that were cut short, however many and fast, make no comparison."""
    cases = [builders.case(name) for name in ("tcp", "ucx")]
    records = builders.launches(cases[0], STEADY)
    records += [sample(cases[1], 0.1, launch=launch) for launch in range(6)]
    records += [builders.end(cases[1], launch=launch, ok=False) for launch in range(6)]
    assert stats.comparisons(recorded(cases, records)) == []


def test_a_report_can_be_made_again(recorded: Recorded) -> None:
    """The same records give the same limits, whatever other cases stand beside them."""
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    records = [
        sample(case, value * (place + 1) ** 0.1, launch=launch)
        for place, case in enumerate(cases)
        for launch, value in enumerate(STEADY)
    ]
    limits = [
        next((c.ci_low, c.ci_high) for c in stats.comparisons(recorded(some, records)))
        for some in (cases, cases, cases[:2])
    ]
    assert limits[0] == limits[1] == limits[2]


@pytest.mark.slow
def test_eighty_rows_are_compared_within_seconds(recorded: Recorded) -> None:
    """Four backends, twenty sizes and ten launches of 200 messages: 120 pairs in 20 s at most."""
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx", "ucx:shm", "mpi")]
    dice = np.random.default_rng(0)
    records = [
        message(case, seconds, 1 << size, launch=launch, iteration=iteration)
        for case in cases
        for size in range(20)
        for launch in range(10)
        for iteration, seconds in enumerate(dice.lognormal(0, 0.1, 200).tolist())
    ]
    run = recorded(cases, records)
    began = time.process_time()
    found = stats.comparisons(run)
    print(f"{len(found)} pairs in {time.process_time() - began:.1f} s of CPU time")
    assert len(found) == 120
    assert time.process_time() - began < 20

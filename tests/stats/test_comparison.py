import math
import time

import builders
import numpy as np
import pytest
from builders import message, messages, sample, wire

from commbench import stats
from commbench.analysis import warnings
from commbench.model import ClusterSpec, Stopping
from commbench.stats import comparison, inference
from commbench.stats.comparison import compare_pairs

STEADY = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]


def sides_of(*backends):
    """Return the side of each backend, given as its name and its launches' medians."""
    return [
        builders.make_side(
            builders.case(name), "workload", 8, dict(enumerate(np.array([medians]).T))
        )
        for name, medians in backends
    ]


def verdict(baseline, candidate, min_effect=0.05, *, paired=False):
    sides = sides_of(("tcp", baseline), ("ucx", candidate))
    (result,) = compare_pairs([tuple(sides)], min_effect, paired=paired)
    return result


def samples(cases, seconds, n_launches=6):
    """Return a sample of each launch: of ``seconds(number of the case, launch)``."""
    return [
        sample(case, seconds(i, launch), launch=launch)
        for i, case in enumerate(cases)
        for launch in range(n_launches)
    ]


def scaled(factor):
    return [factor * value for value in STEADY]


def test_a_candidate_that_takes_longer_is_slower():
    result = verdict(STEADY, scaled(3))
    assert (result.baseline, result.candidate, result.verdict) == ("tcp", "ucx", "slower")
    assert (result.baseline_id, result.candidate_id) == (
        builders.case("tcp").id, builders.case("ucx").id,
    )  # fmt: skip
    assert result.ratio == pytest.approx(3.0)
    assert (result.baseline_s, result.candidate_s) == pytest.approx((1.025, 3.075))
    assert 3 / 1.05 <= result.ci_low < 3 < result.ci_high <= 3 * 1.05
    assert result.p_value == pytest.approx(2 / math.comb(12, 6))
    assert (result.n_launches, result.min_effect) == (6, 0.05)


@pytest.mark.parametrize(("layer", "n"), [("alone", 1), ("together", 0)])
def test_blocks_of_other_sizes_between_more_workers_are_not_compared(recorded, layer, n):
    cases = [
        builders.case(workload="all-to-all", n_workers=workers, varied=("workers",))
        for workers in (3, 4)
    ]
    records = [each for case in cases for each in messages(case, {(layer, 12 << 20): 1.0}, STEADY)]
    assert len(recorded(cases, records).comparisons) == n


def test_swapped_sides_give_the_inverse_ratio_and_verdict():
    one, two = verdict(STEADY, scaled(3)), verdict(scaled(3), STEADY)
    assert two.verdict == "faster"
    assert (two.ratio, two.p_value) == pytest.approx((1 / one.ratio, one.p_value))


@pytest.mark.parametrize("factor", [1.0, 1.01, 0.99])
def test_a_difference_below_the_least_effect_is_called_the_same(factor):
    assert verdict(STEADY, scaled(factor), min_effect=0.1).verdict == "same"


def test_a_significant_difference_below_the_least_effect_is_not_slower():
    one = [1 + 1e-4 * number for number in range(10)]
    two = [1.03 * value for value in reversed(one)]
    assert verdict(one, two).p_value < 0.01
    assert [verdict(one, two, effect).verdict for effect in (0.0, 0.01, 0.0301, 0.05)] == [
        "slower", "slower", "inconclusive", "same",
    ]  # fmt: skip


def test_launches_that_overlap_widely_are_inconclusive():
    one, two = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.6, 1.4, 1.1, 1.5, 1.2, 1.3]
    result = verdict(one, two)
    assert result.verdict == "inconclusive"
    assert result.ci_low < 1 < result.ci_high


@pytest.mark.parametrize(("n_baseline", "n_candidate"), [(5, 6), (6, 5), (1, 1), (5, 50)])
def test_fewer_than_six_launches_give_no_verdict(n_baseline, n_candidate):
    result = verdict([1.0] * n_baseline, [100.0] * n_candidate)
    assert (result.verdict, result.ratio) == ("inconclusive", pytest.approx(100.0))
    assert verdict([1.0] * n_baseline, [1.0] * n_candidate).verdict == "inconclusive"
    if n_candidate == 1:
        assert result.p_value == 1.0
        assert math.isnan(result.ci_low)
        assert math.isnan(result.ci_high)


def test_constant_launches_are_compared_like_others():
    slower, same = verdict([1.0] * 6, [2.0] * 6), verdict([1.0] * 6, [1.0] * 6)
    assert (slower.ci_low, slower.ci_high) == pytest.approx((2.0, 2.0))
    assert slower.verdict == "slower"
    assert (same.ratio, same.p_value, same.verdict) == (1.0, 1.0, "same")


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [([0.0] * 6, [1.0] * 6), ([0.0] * 6, [0.0] * 6), ([1.0] * 6, [0.0] * 6)],
)
def test_a_median_of_0_s_gives_no_ratio(baseline, candidate):
    result = verdict(baseline, candidate)
    assert math.isnan(result.ratio)
    assert math.isnan(result.ci_low)
    assert result.verdict == "inconclusive"


def test_a_launch_of_0_s_among_others_gives_no_interval():
    result = verdict([0.0, *STEADY[1:]], scaled(3))
    assert math.isnan(result.ci_high)
    assert result.verdict == "inconclusive"


DRIFT = [1.0, 1.6, 2.3, 3.1, 4.4, 6.0, 8.8]


def test_a_median_of_0_s_of_one_size_unpairs_no_other():
    case = builders.case()
    pairs = [
        tuple(builders.make_side(case, "comm", size, dict(enumerate(side))) for side in sides)
        for size, sides in ((1, ([0.0] * 7, [0.0] * 7)), (2, (DRIFT, [1.2 * s for s in DRIFT])))
    ]
    first, second = compare_pairs(pairs, 0.05, paired=True)
    assert (first.verdict, second.verdict) == ("inconclusive", "slower")


def test_a_paired_comparison_cancels_what_a_block_has_in_common():
    slowed = [1.2 * value + 0.01 * i for i, value in enumerate(DRIFT)]
    assert verdict(DRIFT, slowed).verdict == "inconclusive"
    result = verdict(DRIFT, slowed, paired=True)
    assert (result.verdict, result.test) == ("slower", "Wilcoxon signed-rank")
    assert result.p_value == pytest.approx(2 / 2**7)
    assert 1.19 < result.ci_low < result.ratio <= result.ci_high < 1.25


def test_pairs_are_tested_unpaired_where_holm_leaves_no_significant_outcome():
    slower = [1.001 * value for value in STEADY]
    tcp, ucx, mpi = sides_of(("tcp", STEADY), ("ucx", slower), ("mpi", slower))
    one_pair = compare_pairs([(tcp, ucx)], 0.05, paired=True)
    two_pairs = compare_pairs([(tcp, ucx), (tcp, mpi)], 0.05, paired=True)
    assert [c.test for c in one_pair] == ["Wilcoxon signed-rank"]
    assert [c.test for c in two_pairs] == ["Mann-Whitney"] * 2


def test_pairs_of_which_one_is_equal_have_too_few_signs_for_a_verdict():
    slowed = [*(1.3 * value for value in STEADY[:-1]), STEADY[-1]]
    (result,) = compare_pairs(
        [tuple(sides_of(("tcp", STEADY), ("ucx", slowed)))], 0.05, paired=True
    )
    assert result.test == "Mann-Whitney"
    assert result.p_value < 0.05


@pytest.mark.parametrize("n", [62, 63, 64, 200])
def test_many_pairs_are_tested_as_pairs(n):
    dice = np.random.default_rng(1)
    block = dice.uniform(1, 3, n)
    result = verdict(block, block * dice.uniform(1.05, 1.15, n), paired=True)
    assert (result.verdict, result.test) == ("slower", inference.SIGNED_RANK)


def test_a_verdict_needs_the_interval_that_is_printed():
    """With three pairs the test is of launches, and the interval of blocks: one contradicts."""
    tcp, ucx, mpi = sides_of(
        ("tcp", [10, 10.2, 9.9, 10.1, 10.3, 8.0]), ("ucx", [7, 7.1, 6.9, 7.2, 7.05, 8.1]),
        ("mpi", [9.9, 10.1, 10, 10.2, 10.05, 9.95]),
    )  # fmt: skip
    result = compare_pairs([(tcp, ucx), (tcp, mpi), (ucx, mpi)], 0.05, paired=True)[0]
    assert (result.test, result.paired) == ("Mann-Whitney", True)
    assert result.p_value < 0.05
    assert result.ci_low < result.ratio < 1 < result.ci_high
    assert result.verdict == "inconclusive"


def test_launches_of_different_blocks_are_not_paired(recorded_and_ended):
    cases = [builders.case(name) for name in ("tcp", "ucx")]
    records = samples(
        cases, lambda case, launch: [*STEADY, 1.0][launch] * (1 + 1e-3 * case), n_launches=7
    )
    tests = [
        stats.comparisons(recorded_and_ended(cases, some))[0].test
        for some in (records, records[1:], [*records, builders.end(cases[1], launch=6, ok=False)])
    ]
    assert tests == ["Wilcoxon signed-rank", "Mann-Whitney", "Mann-Whitney"]


def test_a_backend_that_lost_a_launch_leaves_others_paired(recorded_and_ended):
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    records = samples(cases, lambda _, launch: DRIFT[launch], n_launches=7)
    lost = builders.end(cases[1], launch=3, ok=False)
    paired = {
        (c.baseline, c.candidate): c.paired
        for c in stats.comparisons(recorded_and_ended(cases, [*records, lost]))
    }
    assert paired == {("tcp", "ucx"): False, ("tcp", "mpi"): True, ("ucx", "mpi"): False}


def test_a_strict_level_that_pairs_cannot_reach_is_that_of_the_unpaired_test():
    slowed = [10 * value for value in STEADY]
    (result,) = compare_pairs(
        [tuple(sides_of(("tcp", STEADY), ("ucx", slowed)))], 0.05, paired=True, alpha=0.0084
    )
    assert (result.test, result.verdict, result.alpha) == ("Mann-Whitney", "slower", 0.0084)


def test_p_values_of_all_pairs_are_adjusted_by_holm(recorded_and_ended):
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    records = samples(cases, lambda i, launch: 2**i * STEADY[launch])
    result = stats.comparisons(recorded_and_ended(cases, records))
    assert [(c.baseline, c.candidate) for c in result] == [
        ("tcp", "ucx"), ("tcp", "mpi"), ("ucx", "mpi"),
    ]  # fmt: skip
    assert {c.verdict for c in result} == {"slower"}
    # All three tests are as sure as can be, so each stands at the largest multiple.
    assert [c.p_value for c in result] == pytest.approx([3 * 2 / math.comb(12, 6)] * 3)


def test_the_p_value_of_a_pair_is_at_least_that_of_all_backends(recorded_and_ended, monkeypatch):
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    run = recorded_and_ended(cases, samples(cases, lambda i, launch: 2**i * STEADY[launch]))
    monkeypatch.setattr(inference, "all_alike", lambda *_, **__: 0.7)
    result = stats.comparisons(run)
    assert [(c.p_value, c.verdict) for c in result] == [(0.7, "inconclusive")] * 3


def test_no_pair_differs_where_friedman_finds_no_difference(recorded_and_ended):
    cases = [builders.case(name) for name in ("tcp", *(f"ucx:{n}" for n in range(9)))]
    records = samples(cases, lambda i, launch: 1.0 + ((7 * i + 3 * launch) % 11) / 100)
    result = stats.comparisons(recorded_and_ended(cases, records))
    assert len(result) == 45
    assert min(c.p_value for c in result) > 0.5


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
def test_only_cases_that_differ_in_their_backend_alone_are_compared(other, recorded_and_ended):
    cases = [
        builders.case("tcp", params={"rows": 1}),
        builders.case("ucx", **({"params": {"rows": 1}} | other)),
    ]
    assert stats.comparisons(recorded_and_ended(cases, samples(cases, lambda *_: 1.0))) == []


def test_message_sizes_are_compared_one_by_one(recorded):
    tcp, ucx = (builders.case(name, "pingpong") for name in ("tcp", "ucx"))
    records = messages(tcp, {("comm", 1): 1.0, ("comm", 4): 4.0})
    records += messages(ucx, {("comm", 1): 2.0, ("comm", 4): 20.0})
    result = stats.comparisons(recorded([tcp, ucx], records))
    assert {c.payload_bytes: c.ratio for c in result} == pytest.approx({1: 2.0, 4: 5.0})


def test_only_launches_that_ended_well_are_compared(recorded_and_ended):
    cases = [builders.case(name) for name in ("tcp", "ucx")]
    records = builders.launches(cases[0], STEADY)
    records += [sample(cases[1], 0.1, launch=launch) for launch in range(6)]
    records += [builders.end(cases[1], launch=launch, ok=False) for launch in range(6)]
    assert stats.comparisons(recorded_and_ended(cases, records)) == []


def test_limits_do_not_depend_on_the_other_cases_of_the_run(recorded_and_ended):
    cases = [builders.case(name) for name in ("tcp", "ucx", "mpi")]
    records = samples(cases, lambda i, launch: STEADY[launch] * (i + 1) ** 0.1)
    limits = [
        next((c.ci_low, c.ci_high) for c in stats.comparisons(recorded_and_ended(some, records)))
        for some in (cases, cases, cases[:2])
    ]
    assert limits[0] == limits[1] == limits[2]


def moving(
    recorded, moved, placement="pinned", seconds=0.0, n_launches=6, n_tasks=(), n_threads=(1, 1),
    **manifest,
):  # fmt: skip
    """Return a run with the bytes of its iterations by backend; the second takes twice as long."""
    cases = [
        builders.case(
            backend,
            cluster=ClusterSpec(task_placement=placement, threads_per_worker=n),
            varied=("backend", *["threads"] * (len({*n_threads}) > 1)),
        )
        for backend, n in zip(moved, n_threads, strict=True)
    ]
    records = [
        builders.task(case, 0.0, 0.1, launch=launch, iteration=iteration)
        for case, n in zip(cases, n_tasks, strict=False) for _ in range(n)
        for launch in range(n_launches) for iteration in range(2)
    ]  # fmt: skip
    for factor, (case, sizes) in enumerate(zip(cases, moved.values(), strict=True), 1):
        for launch in range(n_launches):
            for iteration in range(2):
                at = {"launch": launch, "iteration": iteration}
                records.append(sample(case, factor * (1 + launch / 100), **at))
                size = sizes[(launch * 2 + iteration) % len(sizes)]
                records.append(wire(case, size, **at))
                if seconds:
                    records.append(builders.transfer(case, 0.0, seconds, size, **at))
                # What a worker writes to itself doesn't cross.
                records.append(wire(case, 10**9, src="1", **at))
    return recorded(cases, builders.ended(records), **manifest)


@pytest.mark.parametrize(("n_launches", "ended_by"), [(1, ""), (5, ""), (6, "decided")])
def test_unequal_work_of_few_launches_ends_no_run(recorded, n_launches, ended_by):
    # A launch takes 9 s; in the next ones Dask may place the tasks otherwise.
    rule = Stopping(budget_s=90.0 * n_launches, fixed_iterations=True)
    moved = {"tcp": (10**6,), "mpi": (2 * 10**6,)}
    run = moving(recorded, moved, n_launches=n_launches, stopping=rule)
    assert [c.verdict for c in run.comparisons] == ["unequal"]
    assert run.ended_by == ended_by


@pytest.mark.parametrize(
    ("moved", "other", "verdict"),
    [
        (10**6, 1_040_000, "slower"), (10**6, 1_060_000, "unequal"), (10**6, 940_000, "unequal"),
        # Addresses in messages have other lengths.
        (3100, 3400, "slower"), (0, 200, "slower"),
    ],
)  # fmt: skip
def test_a_verdict_needs_equal_work(recorded, moved, other, verdict):
    run = moving(recorded, {"tcp": (moved,), "mpi": (other,)})
    (comparison,) = run.comparisons
    assert comparison.verdict == verdict
    assert (comparison.baseline_moved_bytes, comparison.candidate_moved_bytes) == (moved, other)


@pytest.mark.parametrize(
    ("n_tasks", "n_threads", "verdict"),
    [
        ((20, 21), (1, 1), "slower"), ((20, 22), (1, 1), "unequal"), ((22, 20), (1, 1), "unequal"),
        # There may be a part for each thread.
        ((20, 40), (1, 2), "slower"), ((20,), (1, 1), "slower"),
    ],
)  # fmt: skip
def test_a_verdict_needs_equal_tasks(recorded, n_tasks, n_threads, verdict):
    moved = {"tcp": (10**6,), "mpi": (10**6,)}
    run = moving(recorded, moved, n_tasks=n_tasks, n_threads=n_threads)
    assert [c.verdict for c in run.comparisons] == [verdict]
    texts = [text for text in warnings.find(run) if "unequal work" in text]
    few, many = ("tcp", "mpi") if n_tasks[0] < n_tasks[-1] else ("mpi", "tcp")
    assert [*map(str, texts)] == [
        f"an iteration ran 20 tasks in merge over {few} and 22 in merge over {many}: times of "
        "unequal work don't compare backends; find out what in the code depends on the backend, or "
        "on chance"
    ] * (verdict == "unequal")


@pytest.mark.parametrize(("seconds", "verdict"), [(0.009, "slower"), (0.012, "unequal")])
def test_bytes_whose_transfer_takes_little_time_are_no_unequal_work(recorded, seconds, verdict):
    # The first moves as much as the difference; 1 % of its second is little.
    run = moving(recorded, {"tcp": (100_000,), "mpi": (200_000,)}, seconds=seconds)
    (comparison,) = run.comparisons
    assert comparison.verdict == verdict


@pytest.mark.parametrize("change", [{"stop_s": "start_s"}, {"nbytes": 10}])
def test_time_of_bytes_counts_timed_transfers_and_what_was_on_the_wire(recorded, change):
    run = moving(recorded, {"tcp": (100_000,), "mpi": (200_000,)}, seconds=0.005)
    assert [c.verdict for c in run.comparisons] == ["slower"]
    log = run.transfers
    for name, how in change.items():
        changed = log[how] if isinstance(how, str) else how * log[name]
        if name == "nbytes":
            # Ten times as much in memory in ten times the time.
            log = log.assign(stop_s=log["start_s"] + 10 * (log["stop_s"] - log["start_s"]))
        log = log.assign(**{name: changed})
    run = moving(recorded, {"tcp": (100_000,), "mpi": (200_000,)}, seconds=0.005)
    run.__dict__["transfers"] = log
    assert [c.verdict for c in run.comparisons] == ["unequal"]


def test_bytes_are_the_mean_over_iterations(recorded):
    run = moving(recorded, {"tcp": (100, 200), "mpi": (200, 100)})
    (comparison,) = run.comparisons
    assert comparison.candidate_moved_bytes == 150
    assert comparison.verdict == "slower"


@pytest.mark.parametrize(
    ("placement", "remedy"),
    [("dask", "measure again with --task-placement pinned"), ("pinned", "the tables of pairs")],
)
def test_unequal_work_is_a_warning_with_a_remedy(recorded, placement, remedy):
    run = moving(recorded, {"tcp": (100_000,), "mpi": (200_000,)}, placement)
    text = next(text for text in warnings.find(run) if "unequal work" in text)
    assert text.startswith("an iteration moved 100 kB in merge over tcp and 200 kB in merge over")
    assert remedy in text


def test_equal_work_is_no_warning(recorded):
    run = moving(recorded, {"tcp": (100,), "mpi": (101,)})
    assert not any("unequal work" in text for text in warnings.find(run))


def session(recorded, factor, day=1, *backends):
    """Return a run of ``STEADY`` launches, all slowed down by the day."""
    cases = [builders.case(name) for name in backends or ("tcp",)]
    records = builders.ended(samples(cases, lambda _, n: factor * STEADY[n]))
    return recorded(cases, records, started_at=f"2025-01-{day:02}T00:00:00+00:00")


def compared(old, new, factors, recorded, **given):
    same = {case.id: case.id for case in old.suite.cases}
    names = [case.backend for case in old.suite.cases]
    history = [session(recorded, *each, *names) for each in zip(factors, range(1, 9), strict=False)]
    return stats.between(old, new, same, history=history, **given)


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((), "slower"),
        ((0.9, 1.1), "slower"),
        ((1.0, 1.0, 1.0), "slower"),
        ((0.99, 1.0, 1.01), "slower"),
        ((0.9, 1.0, 1.1), "inconclusive"),
    ],
)
def test_a_difference_as_between_other_sessions_is_no_verdict(recorded, factors, verdict):
    old, new = (session(recorded, factor) for factor in (1.0, 1.2))
    (result,) = compared(old, new, factors, recorded)
    assert result.verdict == verdict
    assert math.isnan(result.sessions_ratio) == (len(factors) < 3)
    if verdict == "inconclusive":
        assert result.detectable >= result.sessions_ratio > 1.2


def test_the_limit_of_sessions_is_that_of_student_for_a_difference(recorded):
    old = session(recorded, 1.0)
    (result,) = compared(old, old, (0.9, 1.0, 1.1), recorded)
    deviation = np.std(np.log([0.9, 1.0, 1.1]), ddof=1)
    # The 97.5 % quantile of Student's t for two degrees of freedom.
    assert result.sessions_ratio == pytest.approx(math.exp(4.30265 * 2**0.5 * deviation), rel=1e-4)


def test_a_control_cancels_what_differs_between_sessions(recorded):
    old = session(recorded, 1.0, 1, "tcp", "ucx")
    (result,) = compared(old, old, (0.5, 1.0, 2.0), recorded, control="tcp")
    assert (result.candidate, result.sessions_ratio) == ("ucx", pytest.approx(1))


def test_a_session_without_the_control_does_not_count(recorded):
    old = session(recorded, 1.0, 1, "tcp", "ucx")
    same = {case.id: case.id for case in old.suite.cases}
    names = [("tcp", "ucx")] * 3 + [("ucx",)]
    history = [session(recorded, 1.0, day, *each) for day, each in enumerate(names, 1)]
    for sessions, ratio in ((history, 1.0), (history[1:], math.nan)):
        (result,) = stats.between(old, old, same, control="tcp", history=sessions)
        assert result.sessions_ratio == pytest.approx(ratio, nan_ok=True)


@pytest.mark.parametrize(
    ("control", "ratios"),
    [("tcp", {"ucx workers=2": 2, "ucx workers=4": 2}),
     ("tcp workers=2", {"ucx workers=2": 2, "tcp workers=4": 3, "ucx workers=4": 6})],
)  # fmt: skip
def test_a_backend_is_the_control_of_cases_with_its_settings(recorded, control, ratios):
    cases = [
        builders.case(name, n_workers=n, varied=("backend", "workers"))
        for n in (2, 4)
        for name in ("tcp", "ucx")
    ]
    run = recorded(cases, builders.ended(samples(cases, lambda i, _: (1.0, 2.0, 3.0, 6.0)[i])))
    results = stats.between(run, run, {case.id: case.id for case in cases}, control=control)
    assert {each.candidate: each.candidate_s for each in results} == pytest.approx(ratios)


def test_a_control_that_does_not_read_a_varied_variable_is_that_of_all_its_values():
    cases = [
        builders.case(name, cluster=ClusterSpec(env=env), varied=("backend", "UCX_TLS"))
        for name, env in (("tcp", {}), ("ucx", {"UCX_TLS": "tcp"}), ("ucx", {"UCX_TLS": "sm"}))
    ]
    control, *others = cases
    assert comparison.controls("tcp", cases) == {case.id: control for case in others}


@pytest.mark.slow
def test_120_pairs_are_compared_within_20_seconds(recorded_and_ended):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "ucx", "ucx:shm", "mpi")]
    dice = np.random.default_rng(0)
    records = [
        message(case, seconds, 1 << size, launch=launch, iteration=iteration)
        for case in cases
        for size in range(20)
        for launch in range(10)
        for iteration, seconds in enumerate(dice.lognormal(0, 0.1, 200).tolist())
    ]
    run = recorded_and_ended(cases, records)
    began = time.process_time()
    result = stats.comparisons(run)
    print(f"{len(result)} pairs in {time.process_time() - began:.1f} s of CPU time")
    assert len(result) == 120
    assert time.process_time() - began < 20


def test_a_twin_is_compared_with_its_original_only(recorded):
    cases = [builders.case(name) for name in ("ucx@1", "tcp", "ucx", "tcp@2")]
    run = recorded(cases, builders.ended(samples(cases, lambda _, launch: STEADY[launch])))
    compared = [(c.candidate, c.baseline) for c in run.comparisons]
    assert compared == [("ucx", "ucx@1"), ("ucx", "tcp"), ("tcp@2", "tcp")]


@pytest.mark.parametrize(("twin", "expected"), [(1.0, "slower"), (1.3, "slower"), (2.0, "open")])
def test_a_smaller_difference_than_that_of_twins_gives_no_verdict(recorded, twin, expected):
    cases = [builders.case(name) for name in ("tcp", "ucx", "tcp@2")]
    factors = (1.0, 1.5, twin)
    run = recorded(cases, builders.ended(samples(cases, lambda i, n: factors[i] * STEADY[n])))
    verdicts = {c.candidate: c.verdict for c in run.comparisons}
    assert verdicts == {
        "ucx": "inconclusive" if expected == "open" else expected,
        "tcp@2": "same" if twin == 1 else "slower",
    }


@pytest.mark.parametrize(
    ("copies", "expected"), [(1.0, "slower"), (1.3, "slower"), (1.6, "inconclusive")]
)
def test_a_smaller_difference_than_that_of_memory_copies_gives_no_verdict(
    recorded, copies, expected
):
    tcp, mpi = cases = [builders.case(name, "pingpong") for name in ("tcp", "mpi")]
    factors = {("memcpy", 1000): copies, ("raw", 1000): 1.5, ("raw", 2000): 1.5}
    records = messages(tcp, dict.fromkeys(factors, 1.0), STEADY)
    before, run = (recorded(cases, records + more) for more in ([], messages(mpi, factors, STEADY)))
    within = {(c.layer, c.payload_bytes): c.verdict for c in run.comparisons}
    between = stats.between(before, run, {tcp.id: mpi.id})
    assert within == {(c.layer, c.payload_bytes): c.verdict for c in between}
    # Copies of another size are no controls.
    assert within["raw", 1000] == expected
    assert within["raw", 2000] == "slower"


def test_what_twins_contradict_remains_a_control_for_messages(recorded):
    cases = [builders.case(name, "pingpong") for name in ("tcp", "mpi", "tcp@2")]
    records = []
    for case, raw, memcpy in zip(cases, (1.0, 1.5, 1.0), (1.0, 1.6, 2.0), strict=True):
        records += messages(case, {("raw", 1000): raw, ("memcpy", 1000): memcpy}, STEADY)
    run = recorded(cases, records)
    verdicts = {(c.layer, c.candidate): c.verdict for c in run.comparisons}
    assert verdicts == {
        ("raw", "mpi"): "inconclusive",
        ("raw", "tcp@2"): "same",
        ("memcpy", "mpi"): "inconclusive",
        ("memcpy", "tcp@2"): "slower",
    }

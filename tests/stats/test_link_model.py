import itertools
import math
import random
from dataclasses import replace
from math import nan

import builders
import numpy as np
import pytest
from builders import address, end, transfer

from commbench import stats
from commbench.stats.link_model import fit

CASE = builders.case(workload="all-to-all", n_workers=2)
KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB)


def sweep(alpha=1e-3, beta=600e6, *, case=CASE, sizes=SIZES, launches=6, iterations=3, **given):
    """Return transfers of that latency and bandwidth, with noise, a share of them delayed."""
    given = {"src": "0", "dst": "1", "channel": "alone"} | given
    noise, delayed = given.pop("noise", 0.05), given.pop("delayed", 0.0)
    dice = random.Random(f"{given['src']} {given['dst']}")
    return [
        transfer(
            case, 0, (alpha + size / beta) * dice.lognormvariate(0, noise)
            * (10 if dice.random() < delayed else 1),
            size, launch=launch, iteration=iteration, **given,
        )
        for launch in range(launches)
        for iteration in range(iterations)
        for size in sizes
    ]  # fmt: skip


def ends(launches=6):
    return [end(CASE, launch=launch) for launch in range(launches)]


def pair(recorded, records):
    """Return the model of the only pair."""
    (model,) = [model for model in stats.link_models(recorded([CASE], records)) if model.src]
    return model


@pytest.mark.parametrize(("alpha", "beta"), [(1e-3, 600e6), (20e-6, 12e9), (0.05, 5e6)])
def test_latency_and_bandwidth_are_fitted_within_noise_and_intervals(alpha, beta, recorded):
    model = pair(recorded, sweep(alpha, beta) + ends())
    assert model.reason == ""
    assert (model.alpha_s, model.beta_Bps) == pytest.approx((alpha, beta), rel=0.05)
    assert model.alpha_low_s < model.alpha_s < model.alpha_high_s
    assert model.beta_low_Bps < model.beta_Bps < model.beta_high_Bps
    assert (model.parts, model.n_parts, model.confidence) == ("launch", 6, 0.96875)
    assert model.predict_s(2 * MIB) == pytest.approx(alpha + 2 * MIB / beta, rel=0.05)
    assert model.half_bytes == pytest.approx(model.alpha_s * model.beta_Bps)


@pytest.mark.parametrize("launches", [1, 4])
def test_few_large_transfers_determine_the_bandwidth(launches, recorded):
    """The traffic shaper lets a burst of 64 KiB pass at once; nine in ten transfers are small."""
    records = [
        each
        for size, n, seconds in ((1, 60, 1e-3), (64 * KIB, 33, 1.5e-3), (8 * MIB, 3, 8 * MIB / 3e7))
        for each in sweep(seconds, np.inf, sizes=[size] * n, launches=launches)
    ]
    model = pair(recorded, records + ends(launches))
    assert model.beta_Bps == pytest.approx(3e7, rel=0.15)
    assert model.predict_s(8 * MIB) == pytest.approx(8 * MIB / 3e7, rel=0.15)
    assert model.largest_misfit == pytest.approx(1, abs=0.15)
    assert model.misfit_bytes == 64 * KIB
    # A third of the sizes fits badly, however few of the transfers that are.
    assert model.error_median < 0.15
    assert model.error_p90 > 0.5


def test_the_size_at_which_a_line_fits_worst_is_named(recorded):
    straight = pair(recorded, sweep() + ends())
    assert straight.misfit == pytest.approx(1, abs=0.05)
    records = [
        replace(each, stop_s=each.stop_s + 0.6 * (each.stop_s - each.start_s))
        if each.nbytes == MIB
        else each
        for each in sweep()
    ]
    bent = pair(recorded, records + ends())
    assert bent.misfit_bytes == MIB
    assert 1.4 < bent.misfit < 1.7
    # One transfer of another size tells nothing.
    once = transfer(CASE, 0, 5 * (1e-3 + 40_000 / 600e6), 40_000, src="0", dst="1", channel="alone")
    assert pair(recorded, [*sweep(), once, *ends()]).misfit == pytest.approx(1, abs=0.05)


def test_nine_errors_have_no_90_percent_quantile(recorded):
    few = pair(recorded, sweep(launches=2, iterations=1, sizes=SIZES[:4]) + ends())
    assert few.error_median > 0
    assert math.isnan(few.error_p90)


def test_the_error_is_of_launches_that_were_left_out(recorded):
    model = pair(recorded, sweep(iterations=20) + ends())
    assert model.error_median == pytest.approx(0.0337, rel=0.15)
    assert model.error_p90 == pytest.approx(0.0822, rel=0.15)


def test_the_error_is_large_where_launches_differ(recorded):
    sizes = (4 * MIB, 8 * MIB, 64 * MIB)
    records = []
    for launch, factor in enumerate([1, 1, 1, 2, 2]):
        records += [
            transfer(CASE, 0, size / 600e6 * factor, size, launch=launch, channel="alone")
            for size in sizes
        ]
    model = pair(recorded, records + ends(launches=5))
    assert model.error_p90 == pytest.approx(0.5, abs=0.01)


def test_a_tenth_of_delayed_transfers_does_not_change_the_fit(recorded):
    model = pair(recorded, sweep(delayed=0.1, iterations=10) + ends())
    assert (model.alpha_s, model.beta_Bps) == pytest.approx((1e-3, 600e6), rel=0.15)
    least_squares = np.polyfit(
        *zip(*((r.nbytes, r.stop_s - r.start_s) for r in sweep(delayed=0.1)),
             strict=True), 1,
    )  # fmt: skip
    assert abs(1 / least_squares[0] / 600e6 - 1) > 0.15


def test_one_launch_has_an_error_but_no_interval(recorded):
    model = pair(recorded, sweep(launches=1) + ends(launches=1))
    assert (model.parts, model.n_parts, model.confidence) == ("iteration", 3, 0.0)
    assert 0 < model.error_median < 0.1
    assert math.isnan(model.alpha_low_s)
    assert math.isnan(model.beta_high_Bps)


def test_launches_of_which_none_ended_well_give_no_interval(recorded):
    model = pair(recorded, sweep())
    assert (model.parts, model.confidence) == ("launch", 0.0)
    assert math.isnan(model.alpha_low_s)


def test_one_launch_with_sizes_enough_gives_no_interval(recorded):
    records = sweep() + ends()
    small = [
        each
        for each in records
        if getattr(each, "launch", 0) == 0 or not hasattr(each, "nbytes") or each.nbytes == SIZES[0]
    ]
    model = pair(recorded, small)
    assert (model.parts, model.n_parts, model.confidence) == ("launch", 1, 0.0)
    assert math.isnan(model.alpha_low_s)


def test_one_iteration_has_no_error(recorded):
    model = pair(recorded, sweep(launches=1, iterations=1))
    assert model.beta_Bps == pytest.approx(600e6, rel=0.2)
    assert math.isnan(model.error_median)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (sweep(sizes=[MIB]), "one size only; at least 3 are needed"),
        (sweep(sizes=[KIB, MIB]), "2 sizes only"),
        (sweep(sizes=[MIB, 2 * MIB, 4 * MIB]), "the largest size is only 4 times the smallest"),
        (sweep(sizes=[1, 64, KIB]), "latency takes most of the time"),
        (
            [transfer(CASE, 0, stop, size) for size in SIZES for stop in (0, -1)],
            "none of 10 has a duration",
        ),
        ([transfer(CASE, 0, 1, 0)], "none of 1 has a duration"),
        (
            [transfer(CASE, 0, 1e-3 + x / 6e8, x, launch=i) for i, x in enumerate(SIZES)],
            "no launch by itself has sizes enough",
        ),
    ],
    ids=["one size", "two sizes", "alike", "small", "untimed", "empty", "scattered"],
)
def test_unsuitable_transfers_are_refused_with_a_reason(records, reason, recorded):
    model = pair(recorded, records)
    assert reason in model.reason
    numbers = (model.alpha_s, model.beta_Bps, model.error_median, model.predict_s(MIB))
    assert all(map(math.isnan, numbers))


@pytest.mark.parametrize("backends", [("tcp", "mpi"), ("mpi", "tcp")])
def test_models_are_in_the_order_of_the_suite(backends, recorded):
    cases = [builders.case(name, "all-to-all") for name in backends]
    models = stats.link_models(recorded(cases, [r for case in cases for r in sweep(case=case)]))
    assert [model.backend for model in models if model.src] == list(backends)


def test_transfers_without_duration_are_counted_and_ignored(recorded):
    bad = [transfer(CASE, 0, stop, MIB, channel="alone") for stop in (0, -5)]
    model = pair(recorded, sweep(noise=0) + bad + ends())
    assert (model.n, model.n_untimed) == (90, 2)
    assert (model.alpha_s, model.beta_Bps) == pytest.approx((1e-3, 600e6), rel=1e-3)


def test_each_channel_pair_and_link_class_has_a_model(recorded):
    case = builders.case(workload="all-to-all", n_workers=3)
    pairs = list(itertools.permutations("012", 2))
    records = [address(case, "0"), address(case, "1"), address(case, "2", "tcp://10.0.0.9:4000")]
    for src, dst in pairs:
        far = "2" in (src, dst)
        records += sweep(2e-3 if far else 1e-3, 1e8 if far else 1e9, case=case, src=src, dst=dst)
        records += sweep(0.1, 1e7, case=case, src=src, dst=dst, channel="together")
    models = stats.link_models(recorded([case], records))
    assert [(model.channel, model.link, model.src + model.dst) for model in models] == [
        (channel, link, name)
        for channel in ("alone", "together")
        for link, name in [
            ("same host", ""), ("network", ""), ("same host", "01"), ("same host", "10"),
            *(("network", name) for name in ("02", "12", "20", "21")),
        ]
    ]  # fmt: skip
    for model in models:
        slow = model.link == "network"
        expected = (2e-3, 1e8) if slow else (1e-3, 1e9)
        if model.channel == "together":
            expected = (0.1, 1e7)
        assert (model.alpha_s, model.beta_Bps) == pytest.approx(expected, rel=0.1)
        assert model.n_pairs == (1 if model.src else 4 if slow else 2)


def test_round_trips_are_those_of_the_pair_and_not_of_fetches_together(recorded):
    trips = [
        builders.round_trip(
            CASE, seconds * (1 + launch) * (100 if iteration < 0 else 1), src=src, dst=dst,
            launch=launch, iteration=iteration,
        )
        for src, dst, seconds in (("0", "1", 1e-4), ("1", "0", 9.0))
        for launch in range(3)
        for iteration in range(-1, 2)
    ]  # fmt: skip
    records = sweep(launches=3) + sweep(launches=3, channel="together")
    models = stats.link_models(recorded([CASE], [*records, *trips, *ends(3)]))
    seconds = {model.channel: model.round_trip_s for model in models if model.src}
    assert seconds == {"alone": pytest.approx(2e-4), "together": pytest.approx(nan, nan_ok=True)}


def test_warm_ups_and_failed_launches_are_ignored(recorded):
    records = sweep(noise=0, launches=3) + ends(launches=2)
    records += [end(CASE, launch=2, ok=False), transfer(CASE, 0, 99, iteration=-1, channel="alone")]
    model = pair(recorded, records)
    assert (model.n, model.n_parts) == (2 * 3 * len(SIZES), 2)


def test_a_run_without_transfers_has_no_model(recorded):
    assert stats.link_models(recorded([CASE])) == []


def test_a_fitted_latency_is_never_negative():
    sizes = np.array([1e6, 1e7, 1e8])
    alpha, seconds_per_byte = fit(sizes, sizes / 1e9)
    assert 0 <= alpha < 1e-6
    assert 1 / seconds_per_byte == pytest.approx(1e9, rel=1e-3)

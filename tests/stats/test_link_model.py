"""Latency and bandwidth are found again in transfers made of them, or it is said why not."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable

import builders
import numpy as np
import pytest
from builders import address, end, transfer

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import Case, Record
from commbench.stats.link_model import LinkModel, fit

Recorded = Callable[..., Run]
CASE = builders.case(workload="all-to-all", n_workers=2)
KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB)


def sweep(
    alpha_s: float, beta_Bps: float, *, case: Case = CASE, sizes: Iterable[int] = SIZES,  # noqa: N803
    launches: int = 6, iterations: int = 3, noise: float = 0.05, src: str = "0", dst: str = "1",
    channel: str = "alone", held_up: float = 0.0,
) -> list[Record]:  # fmt: skip
    """Return transfers of that latency and bandwidth, a share of them held up tenfold."""
    dice = random.Random(f"{src} {dst}")
    return [
        transfer(
            case, 0, (alpha_s + size / beta_Bps) * dice.lognormvariate(0, noise)
            * (10 if dice.random() < held_up else 1),
            size, src=src, dst=dst, launch=launch, iteration=iteration, channel=channel,
        )
        for launch in range(launches)
        for iteration in range(iterations)
        for size in sizes
    ]  # fmt: skip


def ends(case: Case = CASE, launches: int = 6) -> list[Record]:
    """Return the good ends of launches."""
    return [end(case, launch=launch) for launch in range(launches)]


def pair(recorded: Recorded, records: list[Record], case: Case = CASE) -> LinkModel:
    """Return the model of the only pair."""
    models = stats.link_models(recorded([case], records))
    (found,) = [model for model in models if model.src]
    return found


@pytest.mark.parametrize(("alpha_s", "beta_Bps"), [(1e-3, 600e6), (20e-6, 12e9), (0.05, 5e6)])
def test_latency_and_bandwidth_are_found_again(
    alpha_s: float, beta_Bps: float, recorded: Recorded  # noqa: N803
) -> None:  # fmt: skip
    """Within noise of 5 % both come out within 5 %, and within their intervals."""
    found = pair(recorded, sweep(alpha_s, beta_Bps) + ends())
    assert found.reason == ""
    assert (found.alpha_s, found.beta_Bps) == pytest.approx((alpha_s, beta_Bps), rel=0.05)
    assert found.alpha_low_s < found.alpha_s < found.alpha_high_s
    assert found.beta_low_Bps < found.beta_Bps < found.beta_high_Bps
    assert (found.parts, found.n_parts, found.confidence) == ("launch", 6, 0.96875)
    assert found.predict_s(2 * MIB) == pytest.approx(alpha_s + 2 * MIB / beta_Bps, rel=0.05)
    assert found.half_bytes == pytest.approx(found.alpha_s * found.beta_Bps)


def test_the_error_is_that_of_what_was_not_fitted(recorded: Recorded) -> None:
    """Noise of 5 % is a median error of |N(0, 5 %)|'s median, 3.4 %, on launches held out."""
    found = pair(recorded, sweep(1e-3, 600e6, iterations=20) + ends())
    assert found.error_median == pytest.approx(0.0337, rel=0.15)
    assert found.error_p90 == pytest.approx(0.0822, rel=0.15)


def test_the_error_shows_where_launches_differ(recorded: Recorded) -> None:
    """A launch of half the bandwidth is badly predicted by the others, and that is said."""
    sizes = (4 * MIB, 8 * MIB, 64 * MIB)
    records = []
    for launch, factor in enumerate([1, 1, 1, 2, 2]):
        records += [
            transfer(CASE, 0, size / 600e6 * factor, size, launch=launch, channel="alone")
            for size in sizes
        ]
    found = pair(recorded, records + ends(launches=5))
    assert found.error_p90 == pytest.approx(0.5, abs=0.01)


def test_a_tenth_of_held_up_transfers_does_not_bend_the_line(recorded: Recorded) -> None:
    """One transfer in ten takes ten times as long; latency and bandwidth stay within 15 %."""
    found = pair(recorded, sweep(1e-3, 600e6, held_up=0.1, iterations=10) + ends())
    assert (found.alpha_s, found.beta_Bps) == pytest.approx((1e-3, 600e6), rel=0.15)
    least_squares = np.polyfit(
        *zip(*((r.nbytes, r.stop_s - r.start_s) for r in sweep(1e-3, 600e6, held_up=0.1)),
             strict=True), 1,
    )  # fmt: skip
    assert abs(1 / least_squares[0] / 600e6 - 1) > 0.15


def test_one_launch_has_an_error_but_no_interval(recorded: Recorded) -> None:
    """Iterations of one launch are held out in turn; they are no replication."""
    found = pair(recorded, sweep(1e-3, 600e6, launches=1) + ends(launches=1))
    assert (found.parts, found.n_parts, found.confidence) == ("iteration", 3, 0.0)
    assert 0 < found.error_median < 0.1
    assert math.isnan(found.alpha_low_s)
    assert math.isnan(found.beta_high_Bps)


def test_one_iteration_has_no_error(recorded: Recorded) -> None:
    """With nothing to hold out the error is unknown, not 0."""
    found = pair(recorded, sweep(1e-3, 600e6, launches=1, iterations=1))
    assert found.beta_Bps == pytest.approx(600e6, rel=0.2)
    assert math.isnan(found.error_median)


def refusals() -> dict[str, tuple[list[Record], str]]:
    """Return by name transfers that no model can be fitted to, and the reason."""
    untimed = [transfer(CASE, 0, stop, size) for size in SIZES for stop in (0, -1)]
    return {
        "one size": (sweep(1e-3, 6e8, sizes=[MIB]), "one size only; at least 3 are needed"),
        "two sizes": (sweep(1e-3, 6e8, sizes=[KIB, MIB]), "2 sizes only"),
        "alike": (
            sweep(1e-3, 6e8, sizes=[MIB, 2 * MIB, 4 * MIB]),
            "the largest size is only 4 times the smallest",
        ),
        "small": (sweep(1e-3, 6e8, sizes=[1, 64, KIB]), "latency takes most of the time"),
        "untimed": (untimed, "none of 10 has a duration"),
        "empty": ([transfer(CASE, 0, 1, 0)], "none of 1 has a duration"),
        "scattered": (
            [
                transfer(CASE, 0, 1e-3 + size / 6e8, size, launch=launch)
                for launch, size in enumerate(SIZES)
            ],
            "no launch by itself has sizes enough",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals())
def test_what_cant_be_fitted_is_refused_with_the_reason(name: str, recorded: Recorded) -> None:
    """No number is made up where sizes or durations don't tell."""
    records, reason = refusals()[name]
    found = pair(recorded, records)
    assert reason in found.reason
    assert math.isnan(found.alpha_s)
    assert math.isnan(found.beta_Bps)
    assert math.isnan(found.error_median)
    assert math.isnan(found.predict_s(MIB))


def test_transfers_without_duration_are_counted_and_left_out(recorded: Recorded) -> None:
    """A clock that stood or went back bends nothing."""
    bad = [transfer(CASE, 0, stop, MIB, channel="alone") for stop in (0, -5)]
    found = pair(recorded, sweep(1e-3, 600e6, noise=0) + bad + ends())
    assert (found.n, found.n_untimed) == (90, 2)
    assert (found.alpha_s, found.beta_Bps) == pytest.approx((1e-3, 600e6), rel=1e-3)


def test_channels_pairs_and_classes_have_models_of_their_own(recorded: Recorded) -> None:
    """Alone and together are never mixed; a class pools its pairs, the nearest class is first."""
    case = builders.case(workload="all-to-all", n_workers=3)
    pairs = list(itertools.permutations("012", 2))
    records = [address(case, "0"), address(case, "1"), address(case, "2", "tcp://10.0.0.9:4000")]
    for src, dst in pairs:
        far = "2" in (src, dst)
        records += sweep(2e-3 if far else 1e-3, 1e8 if far else 1e9, case=case, src=src, dst=dst)
        records += sweep(0.1, 1e7, case=case, src=src, dst=dst, channel="together")
    models = stats.link_models(recorded([case], records))
    far = ["", "02", "12", "20", "21"]
    assert [(model.channel, model.link, model.src + model.dst) for model in models] == [
        (channel, link, name)
        for channel in ("alone", "together")
        for link, name in [
            ("same host", ""), ("network", ""), ("same host", "01"), ("same host", "10"),
            *(("network", name) for name in far[1:]),
        ]
    ]  # fmt: skip
    for model in models:
        slow = model.link == "network"
        expected = (2e-3, 1e8) if slow else (1e-3, 1e9)
        if model.channel == "together":
            expected = (0.1, 1e7)
        assert (model.alpha_s, model.beta_Bps) == pytest.approx(expected, rel=0.1)
        assert model.n_pairs == (1 if model.src else 4 if slow else 2)


def test_warm_ups_and_failed_launches_are_in_no_model(recorded: Recorded) -> None:
    """Only what counts elsewhere counts here."""
    records = sweep(1e-3, 600e6, noise=0, launches=3) + ends(launches=2)
    records += [end(CASE, launch=2, ok=False), transfer(CASE, 0, 99, iteration=-1, channel="alone")]
    found = pair(recorded, records)
    assert (found.n, found.n_parts) == (2 * 3 * len(SIZES), 2)


def test_a_run_without_transfers_has_no_model(recorded: Recorded) -> None:
    """Nothing is fitted to nothing."""
    assert stats.link_models(recorded([CASE])) == []


def test_a_bandwidth_alone_is_fitted_without_latency() -> None:
    """Latency may be next to nothing, and is never below it."""
    sizes = np.array([1e6, 1e7, 1e8])
    alpha_s, seconds_per_byte = fit(sizes, sizes / 1e9)
    assert 0 <= alpha_s < 1e-6
    assert 1 / seconds_per_byte == pytest.approx(1e9, rel=1e-3)

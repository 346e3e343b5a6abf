"""A pair is named slow where it is far behind its peers, and no other is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import builders
import pandas as pd
import pytest
from builders import address, transfer

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import Case, Record

Recorded = Callable[..., Run]
MB = 1_000_000


def fetches(
    case: Case, bandwidths_Bps: Mapping[tuple[str, str], float], **given: Any  # noqa: N803
) -> list[Record]:  # fmt: skip
    """Return three fetches of every pair, the middle one of that bandwidth."""
    return [
        transfer(case, 0, 8 * MB / (bandwidth * spread), 8 * MB, src=src, dst=dst, **given)
        for (src, dst), bandwidth in bandwidths_Bps.items()
        for spread in (0.97, 1.0, 1.03)
    ]


def cluster(
    n_workers: int, bandwidth_Bps: float = 600e6, noise: float = 0.1, seed: int = 0  # noqa: N803
) -> dict[tuple[str, str], float]:  # fmt: skip
    """Return a bandwidth for every pair, lognormal around the given one."""
    dice = random.Random(seed)
    return {
        pair: bandwidth_Bps * dice.lognormvariate(0, noise)
        for pair in itertools.permutations(map(str, range(n_workers)), 2)
    }


def slow(recorded: Recorded, case: Case, records: list[Record]) -> Any:
    """Return the slow pairs of a run with these records."""
    run = recorded([case], records)
    return stats.slow_pairs(stats.pairs(run), run)


@pytest.mark.parametrize("n_workers", [3, 4, 8, 16])
@pytest.mark.parametrize("factor", [2.0, 12.0])
def test_one_slow_link_is_named_in_both_directions(
    n_workers: int, factor: float, recorded: Recorded
) -> None:
    """Among three workers two of six pairs are slow; they are named, the slower one first."""
    case = builders.case(n_workers=n_workers)
    bandwidths = cluster(n_workers, noise=0.05)
    bandwidths["1", "0"], bandwidths["0", "1"] = 600e6 / factor, 550e6 / factor
    found = slow(recorded, case, fetches(case, bandwidths))
    assert [(row.src, row.dst) for row in found.itertuples()] == [("0", "1"), ("1", "0")]
    worst = found.iloc[0]
    typical = math.exp(stats_median([math.log(value) for value in bandwidths.values()]))
    assert worst.typical_Bps == pytest.approx(typical, rel=1e-3)
    assert worst.slowdown == pytest.approx(typical / worst.q50_Bps, rel=1e-3)
    assert worst.n_pairs == n_workers * (n_workers - 1)


def stats_median(values: list[float]) -> float:
    """Return the median, by sorting."""
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return sum(middle) / len(middle)


@pytest.mark.parametrize("n_workers", [2, 3, 4, 8])
def test_a_homogeneous_cluster_has_no_slow_pair(n_workers: int, recorded: Recorded) -> None:
    """Of 200 clusters whose pairs differ by noise of 10 % only, at most one is accused."""
    cases = [builders.case(n_workers=n_workers, params={"rows": seed}) for seed in range(200)]
    rows = [
        (case.id, case.workload, case.backend, "gather", src, dst, bandwidth, "same host")
        for seed, case in enumerate(cases)
        for (src, dst), bandwidth in cluster(n_workers, seed=seed).items()
    ]
    columns = ["case_id", "workload", "backend", "channel", "src", "dst", "q50_Bps", "link"]
    found = stats.slow_pairs(pd.DataFrame(rows, columns=columns), recorded(cases))
    assert len(set(found["case_id"])) <= 1


def test_a_little_behind_is_no_outlier_however_even_the_rest(recorded: Recorded) -> None:
    """A third less bandwidth than pairs that all agree to the digit is not enough, half is."""
    case = builders.case(n_workers=4)
    bandwidths = cluster(4, noise=0.0) | {("2", "3"): 401e6}
    assert slow(recorded, case, fetches(case, bandwidths)).empty
    (row,) = slow(recorded, case, fetches(case, bandwidths | {("2", "3"): 300e6})).itertuples()
    assert (row.src, row.dst, row.slowdown) == ("2", "3", pytest.approx(2.0))
    assert math.isfinite(row.score)


def test_a_pair_within_wide_noise_is_no_outlier(recorded: Recorded) -> None:
    """Where pairs differ by factors anyway, twice as slow as the typical one is nothing special."""
    case = builders.case(n_workers=4)
    spread = itertools.cycle([0.4, 0.7, 1.0, 1.5, 2.5])
    bandwidths = {pair: 600e6 * next(spread) for pair in cluster(4)}
    assert slow(recorded, case, fetches(case, bandwidths)).empty


def test_fast_pairs_are_not_named(recorded: Recorded) -> None:
    """A pair that is far ahead of the others is no problem of its users."""
    case = builders.case(n_workers=4)
    bandwidths = cluster(4, noise=0.02) | {("2", "3"): 60e9}
    assert slow(recorded, case, fetches(case, bandwidths)).empty


def test_a_fast_pair_hides_no_slow_one(recorded: Recorded) -> None:
    """What is far ahead does not count as noise of the ordinary pairs."""
    case = builders.case(n_workers=3)
    bandwidths = cluster(3) | {("1", "2"): 60e9, ("0", "1"): 100e6}
    (row,) = slow(recorded, case, fetches(case, bandwidths)).itertuples()
    assert (row.src, row.dst) == ("0", "1")


def test_all_links_of_a_slow_worker_are_named(recorded: Recorded) -> None:
    """Eight of the twenty pairs of five workers hide one another as little as one does itself."""
    case = builders.case(n_workers=5)
    bandwidths = {
        pair: value / (3 if "4" in pair else 1) for pair, value in cluster(5, noise=0.15).items()
    }
    found = slow(recorded, case, fetches(case, bandwidths))
    assert {(row.src, row.dst) for row in found.itertuples()} == {
        pair for pair in bandwidths if "4" in pair
    }


def test_a_link_among_noisy_ones_is_named(recorded: Recorded) -> None:
    """Six pairs as once measured on a busy machine, in GB/s: two are five times slower."""
    case = builders.case(n_workers=3)
    measured = dict(zip(cluster(3), (0.048, 0.20, 0.047, 0.24, 0.29, 0.33), strict=True))
    found = slow(recorded, case, fetches(case, {pair: 1e9 * b for pair, b in measured.items()}))
    assert [(row.src, row.dst) for row in found.itertuples()] == [("1", "0"), ("0", "1")]
    # Four ordinary pairs and two with a noise of 15 %: mean -1.3458, spread 0.1944.
    assert found["score"].iloc[0] == pytest.approx(8.8047, rel=1e-3)


@pytest.mark.parametrize("n_pairs", [1, 2, 3])
def test_too_few_pairs_accuse_nobody(n_pairs: int, recorded: Recorded) -> None:
    """Of two there is no telling which is the odd one, and of three hardly."""
    case = builders.case(n_workers=4)
    bandwidths = dict(list(cluster(4, noise=0.0).items())[:n_pairs])
    bandwidths[next(iter(bandwidths))] = 1e6
    assert slow(recorded, case, fetches(case, bandwidths)).empty


def test_where_half_the_pairs_are_slow_none_is_named(recorded: Recorded) -> None:
    """Then slow is as typical as fast: the test's breakdown point is said, not hidden."""
    case = builders.case(n_workers=3)
    slow_half = dict.fromkeys(itertools.islice(cluster(3), 3), 6000000.0)
    assert slow(recorded, case, fetches(case, cluster(3) | slow_half)).empty


def test_channels_are_compared_apart(recorded: Recorded) -> None:
    """What all pairs do at once makes no pair slow that is as fast as the others alone."""
    case = builders.case(workload="all-to-all", n_workers=3)
    together = {pair: value / 20 for pair, value in cluster(3).items()}
    records = fetches(case, cluster(3), channel="alone")
    records += fetches(case, together | {("2", "0"): 1e6}, channel="together")
    (row,) = slow(recorded, case, records).itertuples()
    assert (row.channel, row.src, row.dst) == ("together", "2", "0")
    assert row.slowdown == pytest.approx(30, rel=0.3)


def test_links_between_hosts_are_compared_with_their_like(recorded: Recorded) -> None:
    """The only worker on another host is not slow because the others share theirs; one link is."""
    case = builders.case(n_workers=5)
    far = {pair for pair in cluster(5) if "4" in pair}
    bandwidths = {
        pair: 100e6 if pair in far else 2e9 for pair in cluster(5)
    } | {("4", "2"): 5e6}  # fmt: skip
    where = [address(case, str(worker)) for worker in range(4)]
    where.append(address(case, "4", "tcp://10.0.0.9:4000"))
    (row,) = slow(recorded, case, fetches(case, bandwidths) + where).itertuples()
    assert (row.src, row.dst, row.link, row.n_pairs) == ("4", "2", "network", 8)
    assert row.slowdown == pytest.approx(20)


def test_cases_stand_in_order_and_the_slowest_pair_first(recorded: Recorded) -> None:
    """Rows follow the suite, then the slowdown; cases are compared with themselves."""
    cases = [builders.case(name, n_workers=4) for name in ("ucx", "tcp")]
    records = []
    for case, least in zip(cases, (60e6, 6e6), strict=True):
        odd = {("0", "1"): 1.5 * least, ("2", "3"): least}
        records += fetches(case, cluster(4, noise=0.02) | odd)
    run = recorded(cases, records)
    found = stats.slow_pairs(stats.pairs(run), run)
    assert [(row.backend, row.src) for row in found.itertuples()] == [
        ("ucx", "2"), ("ucx", "0"), ("tcp", "2"), ("tcp", "0")
    ]  # fmt: skip


def test_pairs_without_a_bandwidth_are_no_outliers(recorded: Recorded) -> None:
    """A pair whose clock stood has no bandwidth to be slow with, and disturbs no other's."""
    case = builders.case(n_workers=3)
    bandwidths = cluster(3, noise=0.02)
    del bandwidths["0", "1"]
    records = [*fetches(case, bandwidths), transfer(case, 0, 0, src="0", dst="1")]
    assert slow(recorded, case, records).empty


def test_a_run_without_transfers_has_no_slow_pairs(recorded: Recorded) -> None:
    """The table is empty, with all of its columns."""
    case = builders.case(n_workers=4)
    empty = slow(recorded, case, [])
    full = slow(recorded, case, fetches(case, cluster(4, noise=0.0) | {("0", "1"): 1e6}))
    assert list(empty.columns) == list(full.columns)
    assert (len(empty), len(full)) == (0, 1)

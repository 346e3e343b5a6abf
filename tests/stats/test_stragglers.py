import itertools
import math
import random
from dataclasses import replace

import builders
import numpy as np
import pytest
from builders import address, place, transfer

MB = 1_000_000


def fetches(case, bandwidths, launch=0, **given):
    return [
        transfer(
            case, 0, 8 * MB / (bandwidth * spread), 8 * MB, src=src, dst=dst, launch=launch, **given
        )
        for (src, dst), bandwidth in bandwidths.items()
        for spread in (0.97, 1.0, 1.03)
    ]


def cluster(n_workers, slow=(), noise=0.1, seed=0):
    """Return the bandwidth of each pair; those in `slow` have a twelfth of it."""
    dice = random.Random(seed)
    return {
        pair: 600e6 * dice.lognormvariate(0, noise) / (12 if pair in slow else 1)
        for pair in itertools.permutations(map(str, range(n_workers)), 2)
    }


def slow(recorded, case, *records):
    return recorded([case], itertools.chain(*records)).slow_pairs


def named(table):
    return set(zip(table["kind"], table["cause"], strict=True))


def pairs_of(worker, n_workers, *, sends=True, receives=True):
    return [
        (src, dst) for src, dst in itertools.permutations(map(str, range(n_workers)), 2)
        if (sends and src == worker) or (receives and dst == worker)
    ]  # fmt: skip


@pytest.mark.parametrize("n_workers", [3, 4, 8, 16])
def test_a_slow_link_is_named_in_both_directions(n_workers, recorded):
    case = builders.case(n_workers=n_workers)
    bandwidths = cluster(n_workers, [("0", "1"), ("1", "0")], noise=0.05)
    table = slow(recorded, case, fetches(case, bandwidths))
    assert named(table) == {("link", "between workers 0 and 1")}
    assert {(row.src, row.dst) for row in table.itertuples()} == {("0", "1"), ("1", "0")}
    row = table.iloc[0]
    ordinary = [value for pair, value in bandwidths.items() if set(pair) != {"0", "1"}]
    assert row.typical_Bps == pytest.approx(math.exp(np.median(np.log(ordinary))), rel=1e-3)
    assert row.slowdown == pytest.approx(row.typical_Bps / row.q50_Bps, rel=1e-3)
    assert row.n_pairs == n_workers * (n_workers - 1)
    assert row[["low", "high", "level"]].isna().all()


def test_a_median_of_two_transfers_names_no_pair(recorded):
    case = builders.case(n_workers=4)
    records = [
        record
        for number, record in enumerate(fetches(case, cluster(4, [("0", "1"), ("1", "0")])))
        if number % 3
    ]
    assert slow(recorded, case, records).empty


@pytest.mark.parametrize("overlap", [True, False])
def test_overlapping_batches_count_together(overlap, recorded):
    case = builders.case(n_workers=4)

    def batches(bandwidths, overlaps):
        return [
            each if overlaps(each) else
            replace(each, start_s=each.start_s + number, stop_s=each.stop_s + number)
            for number, each in enumerate(fetches(case, bandwidths, channel="p2p"))
        ]  # fmt: skip

    link = [("0", "1"), ("1", "0")]
    run = batches(cluster(4, link, noise=0.05), lambda _: overlap)
    assert named(slow(recorded, case, run)) == {("link", "between workers 0 and 1")}
    # Three batches at a time take three times as long each.
    rates = {pair: 600e6 / (3 if pair in link else 1) for pair in cluster(4)}
    run = batches(rates, lambda each: (each.src, each.dst) in link)
    assert slow(recorded, case, run).empty
    rates = {pair: 600e6 / (18 if pair in link else 1) for pair in cluster(4)}
    run = batches(rates, lambda each: (each.src, each.dst) in link)
    assert slow(recorded, case, run)["factor"].tolist() == pytest.approx([6, 6], rel=0.1)


def test_batches_that_overlap_a_little_less_are_compared_by_the_same_measure(recorded):
    case, dice = builders.case(n_workers=4), np.random.default_rng(0)
    records = []
    for launch in range(6):
        for src, dst in itertools.permutations("0123", 2):
            overlap, start_s = 1.45 if (src, dst) == ("0", "1") else 1.65, 0.0
            for _ in range(30):
                stop_s = start_s + 0.01 * dice.lognormal(0, 0.1)
                records.append(
                    builders.transfer(case, start_s, stop_s, 10**6, src=src, dst=dst,
                                      launch=launch, channel="p2p")
                )  # fmt: skip
                start_s += 0.01 / overlap
    assert slow(recorded, case, records).empty


@pytest.mark.parametrize("others", [1.0, 1.65])
def test_a_single_batch_that_stalls_makes_no_pair_slow(others, recorded):
    case, records = builders.case(n_workers=4), []
    for launch in range(6):
        for src, dst in itertools.permutations("0123", 2):
            start_s = 0.0
            for number in range(30):
                stop_s = start_s + 0.01 + 0.3 * ((src, dst, number) == ("0", "1", 4))
                records.append(
                    builders.transfer(case, start_s, stop_s, 10**6, src=src, dst=dst,
                                      launch=launch, channel="p2p")
                )  # fmt: skip
                start_s = stop_s if (src, dst) == ("0", "1") else start_s + 0.01 / others
    assert slow(recorded, case, records).empty


@pytest.mark.parametrize("seed", range(4))
def test_a_link_of_a_class_without_others_alone_is_compared_with_rounds(seed, recorded):
    # In rounds all links have 40 % of their rate; of the rack no other is alone.
    case, dice = builders.case("tcp", "links", n_workers=7), np.random.default_rng(seed)
    records = []
    for src, dst in itertools.permutations("0123456", 2):
        is_slow, is_local = {src, dst} == {"0", "1"}, {src, dst} <= {*"012"}
        for channel, share in (("rounds", 0.4), ("alone", 1.0), ("again", 1.0)):
            if channel == "again" and not is_slow:
                continue
            if channel == "alone" and is_local:
                continue
            for k in range(6):
                seconds = 0.1 / share * (2.2 if is_slow else 1) * dice.lognormal(0, 0.03)
                records.append(
                    builders.transfer(case, 10 * k, 10 * k + seconds, 10**7, src=src, dst=dst,
                                      channel=channel, iteration=k)
                )  # fmt: skip
    places = [builders.place(case, w, host=w, host_id=w) for w in "0123456"]
    run = recorded([case], [*places, *records, builders.end(case)], racks={"a": tuple("012")})
    assert named(run.slow_pairs) == {("link", "between workers 0 on 0 and 1 on 1")}


@pytest.mark.parametrize("n_workers", [4, 5, 12])
@pytest.mark.parametrize(
    ("kind", "cause", "ends"),
    [
        ("worker", "from and to worker 2", {}),
        ("sender", "from worker 2", {"receives": False}),
        ("receiver", "to worker 2", {"sends": False}),
    ],
)
def test_a_slow_worker_is_named_rather_than_its_links(n_workers, kind, cause, ends, recorded):
    case = builders.case(n_workers=n_workers)
    pairs = pairs_of("2", n_workers, **ends)
    table = slow(recorded, case, fetches(case, cluster(n_workers, pairs)))
    assert named(table) == {(kind, cause)}
    assert sorted((row.src, row.dst) for row in table.itertuples()) == sorted(pairs)
    assert table["factor"].iloc[0] == pytest.approx(12, rel=0.2)


def test_a_slow_worker_that_only_receives_is_named(recorded):
    case = builders.case(n_workers=6)
    bandwidths = {
        pair: bandwidth
        for pair, bandwidth in cluster(6, pairs_of("5", 6)).items()
        if pair[0] != "5"
    }
    assert named(slow(recorded, case, fetches(case, bandwidths))) == {("receiver", "to worker 5")}


def test_a_slow_direction_of_a_link_is_no_slow_link(recorded):
    case = builders.case(n_workers=4)
    table = slow(recorded, case, fetches(case, cluster(4, [("3", "1")])))
    assert named(table) == {("direction", "from worker 3 to 1")}


@pytest.mark.parametrize("slower", [("0", "1"), ("1", "0")])
def test_a_link_whose_directions_are_not_equally_slow_is_one_cause(slower, recorded):
    rates = cluster(4, [("0", "1"), ("1", "0")], noise=0.05)
    rates[slower[::-1]] *= 4
    table = slow(recorded, case := builders.case(n_workers=4), fetches(case, rates))
    assert named(table) == {("link", "between workers 0 and 1")}
    assert sorted(zip(table["src"], table["dst"], strict=True)) == [("0", "1"), ("1", "0")]


def test_a_slow_worker_and_a_slow_link_are_both_named(recorded):
    case = builders.case(n_workers=8)
    slow_ones = [*pairs_of("5", 8), ("0", "1"), ("1", "0")]
    table = slow(recorded, case, fetches(case, cluster(8, slow_ones)))
    assert named(table) == {("worker", "from and to worker 5"), ("link", "between workers 0 and 1")}
    assert len(table) == len(slow_ones)


def test_a_pair_that_is_slow_in_one_launch_only_is_not_named(recorded):
    case = builders.case(n_workers=4, launches=3)
    records = [
        fetches(case, cluster(4, [("0", "1")] if launch == 1 else (), seed=launch), launch)
        for launch in range(3)
    ]
    # The hiccup weighs so much that the pair's median over all launches is slow.
    records.append(records[1] * 9)
    assert slow(recorded, case, *records).empty


@pytest.mark.parametrize("hiccup", [1.7, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("n_fetches", [(1, 1, 1), (3, 2, 2), (6, 1, 1), (3, 1, 0), (3, 0, 0)])
def test_a_hiccup_of_a_receiver_in_one_of_three_launches_is_not_named(n_fetches, hiccup, recorded):
    case = builders.case("mpi", n_workers=8, launches=3)
    dice = random.Random(0)
    records = [builders.place(case, str(n)) for n in range(8)]
    for launch, (src, dst) in itertools.product(range(3), cluster(8)):
        late = hiccup if (launch, dst) == (0, "5") else 1.0
        # The receiver has few fetches, so that those of one launch are the median.
        for _ in range(n_fetches[launch] if dst == "5" else 12):
            seconds = 0.013 * late * dice.lognormvariate(0, 0.15)
            records.append(transfer(case, 0, seconds, 8 * MB, src=src, dst=dst, launch=launch))
    assert slow(recorded, case, records).empty


def test_launches_that_agree_give_an_interval(recorded):
    case = builders.case(n_workers=4, launches=6)
    records = [
        each
        for launch in range(6)
        for each in fetches(case, cluster(4, [("0", "1")], seed=launch), launch)
    ]
    ends = [builders.end(case, launch=launch) for launch in range(6)]
    (row,) = slow(recorded, case, records, ends).itertuples()
    assert row.low < row.factor < row.high
    (cut,) = slow(recorded, case, records).itertuples()
    assert cut.factor == row.factor
    assert math.isnan(cut.level)
    assert row.factor == pytest.approx(12, rel=0.15)
    assert row.level == pytest.approx(0.969, abs=0.001)


def test_a_host_is_named_if_all_of_its_workers_are_slow(recorded):
    case = builders.case(n_workers=8)
    places = [place(case, str(n), host=f"node{n // 2}", host_id=str(n // 2)) for n in range(8)]
    slow_ones = {pair for n in "23" for pair in pairs_of(n, 8)}
    across = {
        pair: b
        for pair, b in cluster(8, slow_ones).items()
        if int(pair[0]) // 2 != int(pair[1]) // 2
    }
    table = slow(recorded, case, fetches(case, across), places)
    assert named(table) == {("worker", "from and to host node1")}
    one = {pair: b for pair, b in cluster(8, pairs_of("2", 8)).items() if pair in across}
    assert named(slow(recorded, case, fetches(case, one), places)) == {
        ("worker", "from and to worker 2 on node1")
    }


def test_a_pair_at_two_thirds_of_equal_others_is_not_slow(recorded):
    case = builders.case(n_workers=4)
    bandwidths = cluster(4, noise=0.0) | {("2", "3"): 401e6}
    assert slow(recorded, case, fetches(case, bandwidths)).empty
    (row,) = slow(recorded, case, fetches(case, bandwidths | {("2", "3"): 300e6})).itertuples()
    assert (row.src, row.dst, row.slowdown) == ("2", "3", pytest.approx(2.0))


def test_a_fast_pair_is_neither_named_nor_hides_a_slow_one(recorded):
    case = builders.case(n_workers=4)
    fast = cluster(4, noise=0.02) | {("2", "3"): 60e9}
    assert slow(recorded, case, fetches(case, fast)).empty
    (row,) = slow(recorded, case, fetches(case, fast | {("0", "1"): 100e6})).itertuples()
    assert (row.src, row.dst) == ("0", "1")


def test_a_slow_link_among_noisy_ones_is_named(recorded):
    case = builders.case(n_workers=3)
    measured = dict(zip(cluster(3), (0.048, 0.20, 0.047, 0.24, 0.29, 0.33), strict=True))
    table = slow(recorded, case, fetches(case, {pair: 1e9 * b for pair, b in measured.items()}))
    assert [(row.src, row.dst) for row in table.itertuples()] == [("1", "0"), ("0", "1")]


def test_channels_are_compared_separately(recorded):
    case = builders.case(workload="all-to-all", n_workers=3)
    together = {pair: value / 20 for pair, value in cluster(3).items()}
    alone = fetches(case, cluster(3), channel="alone")
    together = fetches(case, together | {("2", "0"): 1e6}, channel="together")
    (row,) = slow(recorded, case, alone, together).itertuples()
    assert (row.channel, row.src, row.dst) == ("together", "2", "0")
    assert row.slowdown == pytest.approx(30, rel=0.3)


def test_links_are_compared_within_their_class(recorded):
    case = builders.case(n_workers=5)
    bandwidths = {pair: 100e6 if "4" in pair else 2e9 for pair in cluster(5)} | {("4", "2"): 5e6}
    where = [address(case, str(worker)) for worker in range(4)]
    where.append(address(case, "4", "tcp://10.0.0.9:4000"))
    (row,) = slow(recorded, case, fetches(case, bandwidths), where).itertuples()
    assert (row.src, row.dst, row.link, row.n_pairs) == ("4", "2", "network", 8)
    assert row.slowdown == pytest.approx(20)


def test_slow_pairs_are_ordered_by_case_and_slowdown(recorded):
    cases = [builders.case(name, n_workers=4) for name in ("ucx", "tcp")]
    records = []
    for case, least in zip(cases, (60e6, 6e6), strict=True):
        odd = {("0", "1"): 1.5 * least, ("2", "3"): least}
        records += fetches(case, cluster(4, noise=0.02) | odd)
    run = recorded(cases, records)
    table = run.slow_pairs
    assert [(row.backend, row.src) for row in table.itertuples()] == [
        ("ucx", "2"), ("ucx", "0"), ("tcp", "2"), ("tcp", "0")
    ]  # fmt: skip


@pytest.mark.parametrize("n_timed", [0, 1])
def test_pairs_with_few_timed_transfers_are_not_slow(n_timed, recorded):
    case = builders.case(n_workers=3)
    bandwidths = cluster(3, noise=0.02)
    del bandwidths["0", "1"]
    few = [transfer(case, 0, 0, 8 * MB, src="0", dst="1")] * (3 - n_timed)
    few += [transfer(case, 0, 3.0, 8 * MB, src="0", dst="1")] * n_timed
    assert slow(recorded, case, fetches(case, bandwidths), few).empty


WIDE = dict(zip(cluster(4), itertools.cycle([240e6, 420e6, 600e6, 900e6, 1.5e9]), strict=False))
HALF = cluster(3) | dict.fromkeys(itertools.islice(cluster(3), 3), 6e6)


@pytest.mark.parametrize(
    "bandwidths",
    [
        WIDE, HALF,
        *(dict(zip(cluster(4), [1e6, 600e6, 600e6][:n], strict=False)) for n in (1, 2, 3)),
    ],
    ids=["wide noise", "half of the pairs", "one pair", "two pairs", "three pairs"],
)  # fmt: skip
def test_no_pair_is_slow(bandwidths, recorded):
    case = builders.case(n_workers=4)
    assert slow(recorded, case, fetches(case, bandwidths)).empty


EXPECTED = 500e6


def expected(recorded, bandwidths, channels=("gather",)):
    """Return the slow pairs of workers whose links should have `EXPECTED`."""
    n_workers = len({worker for pair in bandwidths for worker in pair})
    case = builders.case(n_workers=n_workers)
    records = [address(case, str(worker)) for worker in range(n_workers)]
    for channel in channels:
        records += fetches(case, bandwidths, channel=channel)
    return recorded([case], records, expected_Bps={"same host": EXPECTED}).slow_pairs


def even(n_workers, rate):
    return dict.fromkeys(itertools.permutations(map(str, range(n_workers)), 2), rate)


@pytest.mark.parametrize("share", [0.7, 1.0, 3.0])
def test_pairs_above_two_thirds_of_what_is_expected_are_not_slow(share, recorded):
    assert expected(recorded, even(5, share * EXPECTED)).empty


def test_against_an_expectation_two_pairs_are_enough(recorded):
    rates = {("0", "1"): EXPECTED, ("1", "0"): EXPECTED / 4}
    table = expected(recorded, rates)
    assert named(table) == {("direction", "from worker 1 to 0")}
    assert table[["typical_Bps", "factor"]].iloc[0].tolist() == pytest.approx(
        [EXPECTED, 4], rel=1e-3
    )


def test_a_slow_worker_among_expected_links_is_one_cause(recorded):
    rates = even(5, EXPECTED) | dict.fromkeys(pairs_of("2", 5), EXPECTED / 2)
    table = expected(recorded, rates | {("0", "1"): EXPECTED / 3})
    assert named(table) == {("worker", "from and to worker 2"), ("direction", "from worker 0 to 1")}


def test_that_all_links_are_slower_than_expected_hides_no_outlier(recorded):
    rates = even(5, EXPECTED / 5) | {("0", "1"): EXPECTED / 50}
    table = expected(recorded, rates)
    assert named(table) == {("all", "of all other pairs"), ("direction", "from worker 0 to 1")}
    factors = table.groupby("kind")[["factor", "typical_Bps"]].first()
    assert factors.loc["all"].tolist() == pytest.approx([5, EXPECTED], rel=1e-3)
    assert factors.loc["direction"].tolist() == pytest.approx([10, EXPECTED / 5], rel=1e-3)
    assert named(expected(recorded, even(2, EXPECTED / 5))) == {("all", "of all pairs")}


def test_an_outlier_that_is_almost_as_fast_as_expected_is_named_as_without_it(recorded):
    rates = even(5, 3 * EXPECTED) | {("0", "1"): 0.9 * EXPECTED}
    table = expected(recorded, rates)
    assert named(table) == {("direction", "from worker 0 to 1")}
    assert table[["factor", "typical_Bps"]].iloc[0].tolist() == pytest.approx(
        [3 / 0.9, 3 * EXPECTED], rel=1e-3
    )


def test_an_expectation_that_all_links_meet_makes_no_link_a_direction(recorded):
    rates = even(5, 2 * EXPECTED) | {("0", "1"): 1.2 * EXPECTED, ("1", "0"): 1.35 * EXPECTED}
    table = expected(recorded, rates)
    assert named(table) == {("link", "between workers 0 and 1")}


def test_pairs_with_other_sizes_of_transfers_are_not_compared(recorded):
    case = builders.case(n_workers=4)
    records = fetches(case, cluster(4, noise=0.05))
    # The same link, whose latency is most of the time of a small transfer.
    small = [
        replace(each, nbytes=MB, stop_s=each.start_s + (each.stop_s - each.start_s) / 3)
        if (each.src, each.dst) == ("0", "1") else each
        for each in records
    ]  # fmt: skip
    assert slow(recorded, case, small).empty
    large = [
        replace(each, nbytes=8 * MB, stop_s=8 * each.stop_s) if each.nbytes == MB else each
        for each in small
    ]
    assert len(slow(recorded, case, large)) == 1


def test_a_launch_without_ordinary_pairs_has_no_part_in_a_factor(recorded):
    case = builders.case(n_workers=4)
    rates = cluster(4, [("0", "1")], noise=0.05)
    records = [each for launch in range(3) for each in fetches(case, rates, launch)]
    records += fetches(case, {("0", "1"): rates["0", "1"]}, 3)
    (row,) = slow(recorded, case, records).itertuples()
    assert row.factor == pytest.approx(12, rel=0.2)


def test_pairs_of_rounds_are_compared_and_not_the_few_alone(recorded):
    slow_one = cluster(4, [("0", "1"), ("1", "0")], noise=0.05)
    both = expected(recorded, slow_one, ("rounds", "alone"))
    assert {*both["channel"]} == {"rounds"}
    assert named(both) == {("link", "between workers 0 and 1")}


def test_workers_at_the_ends_of_a_link_have_their_hosts(recorded):
    case = builders.case(n_workers=4)
    places = [place(case, str(n), host=f"node{n}", host_id=f"boot {n}") for n in range(4)]
    table = slow(recorded, case, places, fetches(case, cluster(4, [("0", "1")], noise=0.05)))
    assert named(table) == {("direction", "from worker 0 on node0 to 1 on node1")}

import math
from collections import defaultdict
from itertools import pairwise

import builders
import numpy as np
import pytest
from builders import log_count, network, transfer, wire
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench import stats
from commbench.stats.inference import launches_interval

MB = 1_000_000
CASE = builders.case(n_workers=3)


def union_by_brute_force(spans):
    ends = sorted({end for span in spans for end in span})
    return sum(
        stop - start
        for start, stop in pairwise(ends)
        if any(low <= start and stop <= high for low, high in spans)
    )


entries = st.lists(
    st.fixed_dictionaries(
        {
            "src": st.sampled_from("012"),
            "dst": st.sampled_from("012"),
            "launch": st.integers(0, 1),
            "iteration": st.integers(-1, 2),
            "nbytes": st.integers(0, 4 * MB),
            "start": st.integers(0, 400).map(lambda ticks: ticks / 64),
            # Backwards and not at all, too; 64ths of seconds are exact at the epoch.
            "ticks": st.integers(-3, 100),
        }
    ),
    max_size=25,
)


@given(entries)
@settings(max_examples=40)
def test_pairs_agree_with_their_definitions(entries):
    groups = defaultdict(list)
    records = []
    for entry in entries:
        pair = {key: entry[key] for key in ("src", "dst", "launch", "iteration")}
        stop = entry["start"] + entry["ticks"] / 64
        records.append(transfer(CASE, entry["start"], stop, entry["nbytes"], **pair))
        if entry["iteration"] >= 0 and entry["nbytes"] >= MB:
            groups[entry["src"], entry["dst"]].append((entry, stop))
    ends = [builders.end(CASE, launch=launch) for launch in (0, 1)]
    table = builders.in_memory([CASE], [*records, *ends]).pairs
    assert [(row.src, row.dst) for row in table.itertuples()] == sorted(groups)
    assert not np.isinf(table.select_dtypes("number").to_numpy(dtype=float)).any()
    for row in table.itertuples():
        group = groups[row.src, row.dst]
        timed = [(entry, stop) for entry, stop in group if stop > entry["start"]]
        assert (row.n, row.n_untimed) == (len(group), len(group) - len(timed))
        assert row.bytes == sum(entry["nbytes"] for entry, _ in group)
        quantiles = (row.q25_Bps, row.q50_Bps, row.q75_Bps)
        derived = (*quantiles, row.mean_Bps, row.busy_Bps, row.concurrency)
        if not timed:
            assert all(map(math.isnan, (*derived, row.low_Bps, row.high_Bps)))
            continue
        bandwidths = [entry["nbytes"] / (stop - entry["start"]) for entry, stop in timed]
        expected = np.quantile(bandwidths, [0.25, 0.5, 0.75])
        if len(timed) < 4:
            # Quartiles would only be a version of the extremes.
            expected[[0, 2]] = math.nan
        assert quantiles == pytest.approx(expected, rel=1e-9, nan_ok=True)
        by_launch = defaultdict(list)
        for (entry, _), bandwidth in zip(timed, bandwidths, strict=True):
            by_launch[entry["launch"]].append(bandwidth)
        low, high, level = launches_interval([np.median(group) for group in by_launch.values()])
        limits = (row.low_Bps, row.high_Bps, row.confidence)
        assert limits == pytest.approx((low, high, level), rel=1e-9, nan_ok=True)
        nbytes = sum(entry["nbytes"] for entry, _ in timed)
        total = sum(stop - entry["start"] for entry, stop in timed)
        busy = sum(
            union_by_brute_force([(e["start"], stop) for e, stop in timed if e["launch"] == launch])
            for launch in (0, 1)
        )
        assert row.mean_Bps == pytest.approx(nbytes / total, rel=1e-9)
        assert row.busy_Bps == pytest.approx(nbytes / busy, rel=1e-9)
        assert row.concurrency == pytest.approx(total / busy, rel=1e-9)
        assert row.concurrency > 1 - 1e-9
    cut_short = builders.in_memory([CASE], records).pairs
    assert not cut_short["confidence"].any()
    assert cut_short["low_Bps"].isna().all()
    assert cut_short["q50_Bps"].equals(table["q50_Bps"])


@pytest.mark.parametrize("least", [0, 5 * MB, 5 * MB + 1, 2**62, 10**30])
def test_transfers_below_the_least_size_of_the_run_are_ignored(least, recorded):
    run = recorded([CASE], [transfer(CASE, 0, 1, 5 * MB)], min_transfer_bytes=least)
    assert len(run.pairs) == (least <= 5 * MB)


@pytest.mark.parametrize(
    ("least", "channels"),
    [
        ({"min_batch_bytes": MB + 1}, {"gather"}),
        ({"min_transfer_bytes": MB + 1}, {"p2p"}),
        ({"min_batch_bytes": MB, "min_transfer_bytes": MB}, {"gather", "p2p"}),
    ],
)
def test_each_channel_has_a_least_size(least, channels, recorded):
    records = [transfer(CASE, 0, 1, MB, channel=channel) for channel in ("gather", "p2p")]
    assert {*recorded([CASE], records, **least).pairs["channel"]} == channels


P2P = {"channel": "p2p", "shuffle": "join-1"}


def batch(start, stop, queue_s, handling_s, nbytes=10 * MB, **given):
    given = P2P | {"queue_s": queue_s, "handling_s": handling_s} | given
    return transfer(CASE, start, stop, nbytes, **given)


def test_the_times_of_batches_are_medians_per_pair(recorded):
    records = [
        batch(0, 2, 1, 7), batch(0, 4, 2, 8), batch(0, 6, 9, 9), batch(0, 9, 99, 99, iteration=-1),
        batch(0, 1, 5, 5, src="1", dst="0"), transfer(CASE, 0, 1),
    ]  # fmt: skip
    table = recorded([CASE], records).pairs.set_index(["channel", "src"])
    phases = ["queue_s", "wire_s", "handling_s"]
    assert table.loc[("p2p", "0"), phases].tolist() == pytest.approx([2, 4, 8])
    assert table.loc[("p2p", "1"), phases].tolist() == pytest.approx([5, 1, 5])
    assert table.loc[("gather", "0"), phases].isna().all()


def test_shuffles_are_summed_over_batches_of_all_sizes(recorded):
    records = [
        batch(5, 7, 3, 1, 40), batch(5, 9, 1, 1, 20), batch(1, 2, 1, 1, 7, shuffle="first"),
        batch(0, 9, 9, 9, 99, iteration=-1), transfer(CASE, 0, 1),
    ]  # fmt: skip
    # The batches of the second overlap, but not those of another iteration.
    records.append(batch(5, 9, 1, 1, 60, iteration=1))
    table = recorded([CASE], records).shuffles
    assert table[["shuffle", "n", "bytes"]].values.tolist() == [["first", 1, 7], ["join-1", 3, 120]]
    assert table["busy_Bps"].tolist() == pytest.approx([7, 120 / 8])
    assert table["queue_s"].tolist() == pytest.approx([1, 1])


def moved(start, stop, nbytes=10 * MB, **given):
    return transfer(CASE, start, stop, nbytes, **given)


def test_microseconds_keep_their_digits_after_the_epoch(recorded):
    records = [
        transfer(CASE, 87.0 * number, 87.0 * number + 2**-11, MB, launch=number % 7)
        for number in range(1000)
    ]
    (row,) = recorded([CASE], records).pairs.itertuples()
    exact = MB * 2**11
    assert (row.q50_Bps, row.mean_Bps) == pytest.approx((exact, exact), rel=1e-12)
    assert row.busy_Bps == pytest.approx(exact, rel=1e-6)


def test_pairs_are_ordered_by_case_sender_and_receiver(recorded):
    cases = [builders.case(name, n_workers=3) for name in ("ucx", "tcp")]
    records = [
        transfer(case, 0, 1 + i, 10 * MB, src=src, dst=dst)
        for i, case in enumerate(cases)
        for src, dst in ("21", "01", "10")
    ]
    table = recorded(cases, reversed(records)).pairs
    assert table["backend"].tolist() == ["ucx"] * 3 + ["tcp"] * 3
    assert table[["src", "dst"]].astype("str").sum(axis=1).tolist() == ["01", "10", "21"] * 2
    assert table["q50_Bps"].tolist() == [10e6] * 3 + [5e6] * 3


WARM = {"iteration": -1}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            [
                moved(0, 1, 30), moved(0, 1, 45, launch=1, src="2"),
                wire(CASE, 60), wire(CASE, 40, src="1", dst="0", launch=1),
                log_count(CASE, n_started=1, n_logged=1),
                log_count(CASE, "1", n_started=1, n_logged=1, launch=1),
            ],
            {"logged_bytes": 75, "wire_bytes": 100, "coverage": 0.75, "n_started": 2,
             "n_logged": 2, "n_lost": 0},
        ),
        # No log sees what a user's code sends.
        (
            [wire(CASE, 100), log_count(CASE)],
            {"logged_bytes": 0, "wire_bytes": 100, "coverage": 0.0},
        ),
        (
            [
                moved(0, 1, 10), moved(0, 1, 80, channel="p2p"), wire(CASE, 100),
                log_count(CASE, n_started=1, n_logged=1),
            ],
            {"logged_bytes": 90, "p2p_bytes": 80, "coverage": 0.9, "n_logged": 1, "n_lost": 0},
        ),
        (
            [wire(CASE, 70, src="1", dst="1"), wire(CASE, 30), moved(0, 1, 30)],
            {"self_bytes": 70, "wire_bytes": 30, "coverage": 1.0},
        ),
        (
            [
                network(CASE, 5), network(CASE, 6, launch=1),
                network(CASE, 100, interface="eth0"), wire(CASE, 1),
            ],
            {"loopback_bytes": 11},
        ),
        (
            [
                moved(0, 1, 500, **WARM), wire(CASE, 500, **WARM), network(CASE, 500, **WARM),
                wire(CASE, 500, src="0", dst="0", **WARM), log_count(CASE, n_started=9, **WARM),
                wire(CASE, 4), moved(0, 1, 3), log_count(CASE, n_started=1, n_logged=1),
            ],
            {"coverage": 0.75, "self_bytes": 0, "loopback_bytes": math.nan, "n_lost": 0},
        ),
        (
            [
                log_count(CASE, n_started=10, n_logged=2, n_busy=1, n_failed=1, n_in_flight=1),
                moved(0, 1, 5), moved(1, 2, 5),
            ],
            {"n_started": 10, "n_busy": 1, "n_failed": 1, "n_in_flight": 1, "n_lost": 5},
        ),
        # Records count, and not what the worker says it had logged.
        ([log_count(CASE, n_started=10, n_logged=10), moved(0, 1, 5)], {"n_lost": 9}),
        # Where workers share a process, their bytes are not counted.
        (
            [log_count(CASE)],
            {"coverage": math.nan, "wire_bytes": math.nan, "self_bytes": math.nan},
        ),
        # The second iteration was cut short.
        (
            [
                moved(0, 1, 3), wire(CASE, 4), log_count(CASE, n_started=1, n_logged=1),
                moved(0, 1, 3, iteration=1),
            ],
            {"n_lost": 0, "n_logged": 1, "coverage": 0.75},
        ),
    ],
    ids=["logged", "nothing logged", "P2P", "to itself", "loopback", "warm-up", "lost",
         "not stored", "nothing on the wire", "cut short"],
)  # fmt: skip
def test_coverage(records, expected, recorded):
    (row,) = stats.coverage(recorded([CASE], records)).to_dict("records")
    assert {name: row[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_what_workers_of_one_process_moved_is_unknown(recorded):
    sample = builders.sample(CASE, 1.0)
    assert recorded([CASE], [sample, log_count(CASE)]).moved_bytes.empty
    nothing = wire(CASE, 100, dst="")
    moved = recorded([CASE], [sample, log_count(CASE), nothing]).moved_bytes
    assert moved.tolist() == [0]


def test_coverage_of_cases_without_traffic_records(recorded):
    other = builders.case("ucx")
    run = recorded([other, CASE], [builders.sample(other, 1.0), wire(CASE, 1)])
    assert stats.coverage(run)["case_id"].tolist() == [CASE.id]

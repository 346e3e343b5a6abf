import builders
import numpy as np
import pytest
from builders import place, transfer

from commbench import stats

CASE = builders.case(n_workers=3)
MB = 1_000_000
PLACES = [place(CASE, "0"), place(CASE, "1"), place(CASE, "2", host_id="another")]


def fetch(src, dst, seconds, nbytes=8 * MB, **given):
    return transfer(CASE, 0.0, seconds, nbytes, src=src, dst=dst, **given)


def test_quantiles_of_a_link_class_are_over_the_fetches_of_all_its_pairs(recorded):
    near = [fetch("0", "1", s) for s in (1.0, 2.0, 2.0)] + [fetch("1", "0", 4.0)]
    far = [fetch("0", "2", 10.0), fetch("2", "1", 20.0)]
    run = recorded([CASE], [*PLACES, *far, *near])
    bandwidths = stats.pair_bandwidths(run)
    pairs = bandwidths.table
    names = pairs["src"].astype(str) + pairs["dst"].astype(str)
    assert dict(zip(names, pairs["link"], strict=True)) == {
        "01": "same NUMA", "10": "same NUMA", "02": "network", "21": "network",
    }  # fmt: skip
    one, other = run.link_bandwidths.itertuples()
    assert (one.link, one.n_pairs, one.n, one.bytes) == ("same NUMA", 2, 4, 32 * MB)
    expected = np.quantile([8e6, 4e6, 4e6, 2e6], [0.25, 0.5, 0.75])
    assert (one.q25_Bps, one.q50_Bps, one.q75_Bps) == pytest.approx(tuple(expected))
    assert (one.slowest_Bps, one.fastest_Bps) == pytest.approx((2e6, 4e6))
    assert (other.link, other.n_pairs, other.q50_Bps) == ("network", 2, pytest.approx(0.6e6))
    assert np.isnan([other.q25_Bps, other.q75_Bps]).all()


def test_small_untimed_and_warm_up_fetches_count_for_no_link_class(recorded):
    records = [
        *PLACES, fetch("0", "1", 1.0), fetch("0", "1", 1.0, 10),
        fetch("1", "0", 1.0, iteration=-1), fetch("1", "0", 1.0, launch=1), fetch("0", "1", 0.0),
        builders.end(CASE), builders.end(CASE, launch=1, ok=False),
    ]  # fmt: skip
    run = recorded([CASE], records)
    (row,) = run.link_bandwidths.itertuples()
    assert (row.n_pairs, row.n, row.q50_Bps) == (1, 2, 8e6)


def test_link_classes_are_ordered_by_case_channel_and_distance(recorded):
    cases = [builders.case(backend, n_workers=3) for backend in ("ucx", "tcp")]
    records = []
    for case in cases:
        records += [place(case, "0"), place(case, "1"), place(case, "2", host_id="another")]
        records += [
            transfer(case, 0, 1, src=src, dst=dst, channel=channel)
            for channel in ("together", "alone")
            for src, dst in (("0", "2"), ("0", "1"))
        ]
    run = recorded(cases, records)
    table = run.link_bandwidths
    assert list(zip(table["backend"], table["channel"], table["link"], strict=True)) == [
        (backend, channel, link)
        for backend in ("ucx", "tcp")
        for channel in ("alone", "together")
        for link in ("same NUMA", "network")
    ]

"""What ``commbench links`` says of a cluster, and its exit status."""

import dataclasses
import itertools
import json

import builders
import numpy as np
import pandas as pd
import processes
import pytest

from commbench.harness.measure.fetches import rounds
from commbench.reports.link_report import LinkReport
from commbench.reports.sections import pair_tables

HOSTS = 4
RATE = 100e6


def measured(
    recorded, slow=(), n=3, trips_ms=None, n_trips=3, again=(), only_alone=None, hosts=HOSTS,
    **given,
):  # fmt: skip
    """Return the report of hosts whose links have a rate, and those that are `slow` a fifth.

    A request takes 2 ms, or `trips_ms` of its two hosts. A third of the pairs is measured alone,
    or `only_alone`.
    """
    case = builders.case(workload="links", n_workers=hosts, params={"sizes": [1, 8_000_000]})
    records = [builders.sample(case, 0.08, layer="rounds", payload_bytes=8_000_000)]
    for host in range(hosts):
        records.append(builders.place(case, str(host), host=f"n{host}", host_id=f"boot {host}"))
    for number, pair in enumerate(itertools.permutations(map(str, range(hosts)), 2)):
        src, dst = pair
        seconds = 8e6 / RATE * (5 if pair in slow else 1)
        records += [
            builders.transfer(case, 9 * i, 9 * i + seconds, src=src, dst=dst, channel="rounds")
            for i in range(n)
        ]
        if pair == only_alone or (only_alone is None and number % 3 == 0):
            records.append(
                builders.transfer(case, 0, 0.8 * seconds, src=src, dst=dst, channel="alone")
            )
        trip_s = (trips_ms or {}).get(tuple(sorted(pair)), 2.0) / 1e3
        records += [
            builders.round_trip(case, trip_s * factor, src=src, dst=dst, iteration=i)
            for i in range(n_trips)
            for factor in (3.0, 1.0, 2.0)
        ]
    records += [
        builders.transfer(case, start, stop, src=src, dst=dst, channel="again")
        for src, dst, start, stop in again
    ]
    return LinkReport(recorded([case], records, **given))


def lines(report):
    return " ".join(report.text().split())


def test_fine_links_are_all_that_the_first_sentence_is_about(recorded):
    report = measured(recorded)
    assert report.outcome == "fine"
    assert report.text().splitlines()[2] == "All 12 links between 4 hosts are fine over tcp."
    assert "a link has 80% of its rate alone" in lines(report)
    (row,) = report.classes.to_dict("records")
    assert (row["link"], row["n"], row["latency_s"]) == ("network", 12, 1e-3)
    assert row["typical_Bps"] == pytest.approx(RATE)


def test_workers_on_other_hosts_in_other_launches_leave_links_unjudged(recorded):
    report = measured(recorded, slow=[("0", "2"), ("2", "0")])
    assert report.outcome == "faulty"
    (case,) = report.run.suite.cases
    moved = [
        dataclasses.replace(builders.place(case, "2"), launch=launch, host=host, host_id=host)
        for launch, host in ((0, "node2"), (1, "node9"))
    ]
    run = report.run.replace(places=pd.DataFrame(map(vars, moved)))
    assert LinkReport(run).outcome == "not judged"
    assert "Workers were on other hosts in other launches" in lines(LinkReport(run))
    assert any("1 of 4 workers were on other hosts" in text for text in run.warnings)
    assert "are not judged: workers were on other hosts" in next(
        iter(pair_tables.no_slow_pair(run))
    )


def test_a_rule_that_raised_leaves_links_unjudged(recorded):
    report = measured(recorded)
    vars(report.run)["_diagnosis"] = [], ["the rule nics could not be applied: KeyError('x')"]
    assert report.outcome == "not judged"
    assert "The rule nics could not be applied" in lines(report)


def test_the_share_of_the_rate_alone_is_that_of_each_backend(recorded):
    cases, records = [], []
    for backend, share in (("tcp", 0.3), ("mpi", 0.9)):
        case = builders.case(backend, "links", n_workers=HOSTS, params={"sizes": [8_000_000]})
        cases.append(case)
        rounds = builders.exchanges(case, 1.0, channel="rounds")
        alone = [
            each for each in builders.exchanges(case, share, channel="alone") if each.src < each.dst
        ]
        records += 3 * (rounds + alone)
        records += [builders.round_trip(case, 2e-3, src=each.src, dst=each.dst) for each in rounds]
    report = LinkReport(recorded(cases, builders.ended(records)))
    for backend, share in (("tcp", "30%"), ("mpi", "90%")):
        alone = f"{share} of its rate alone (median of 6 links, least {share})"
        assert f"a link over {backend} has {alone}" in lines(report)
    shares = json.loads(report.document())["share_in_rounds"]
    assert shares == {"tcp": pytest.approx(0.3), "mpi": pytest.approx(0.9)}


def test_a_slow_link_is_named_first_with_its_hosts(recorded):
    report = measured(recorded, [("0", "1"), ("1", "0")])
    assert report.outcome == "faulty"
    first, second = report.text().splitlines()[2:4]
    assert first == "1 fault in the 12 links between 4 hosts:"
    assert second.startswith(
        "Transfers between workers 0 on n0 and 1 on n1, in rounds, take 5.0 times"
    )


@pytest.mark.parametrize(
    ("hosts", "has_others", "is_congestion"), [(2, False, False), (3, True, False), (4, True, True)]
)
def test_what_two_hosts_do_is_not_compared_with_that_of_others(
    hosts, has_others, is_congestion, recorded
):
    report = measured(recorded, [("0", "1")], hosts=hosts, expected_Bps={"network": RATE})
    assert report.outcome == "faulty"
    text = lines(report)
    assert ("Both are fast with others, and so is the way back" in text) == has_others
    assert ("the sender's egress, the receiver's ingress or the path" in text) != has_others
    assert ("While all others exchange" in text) == is_congestion
    assert bool(json.loads(report.document())["share_in_rounds"]) == is_congestion


def test_slow_links_are_in_neither_median(recorded):
    slow = [("0", "1")]
    report = measured(recorded, slow, hosts=2, only_alone=slow[0], expected_Bps={"network": RATE})
    (row,) = report.classes.to_dict("records")
    assert row["typical_Bps"] == pytest.approx(RATE)
    assert np.isnan([row["alone_Bps"], row["share"]]).all()
    assert row["slowest_Bps"] == pytest.approx(RATE / 5)


def test_a_link_that_is_late_to_answer_is_named_though_its_rate_is_fine(recorded):
    report = measured(recorded, trips_ms={("2", "3"): 6.0})
    assert report.outcome == "faulty"
    assert "Round trips between workers 2 on n2 and 3 on n3 take 3.0 times" in lines(report)


def test_a_round_trip_counts_once_for_both_directions(recorded):
    pairs = itertools.combinations("0123", 2)
    # As twelve measurements the fourth one would be an outlier.
    trips_ms = zip(pairs, (2.2, 2.5, 2.3, 3.7, 2.2, 1.8), strict=True)
    report = measured(recorded, trips_ms=dict(trips_ms))
    assert report.outcome == "fine"


def test_rates_are_a_share_of_what_is_expected(recorded):
    report = measured(recorded, expected_Bps={"network": 2 * RATE})
    assert report.classes["share"].tolist() == pytest.approx([0.625], rel=1e-3)
    assert report.outcome == "faulty"
    assert "Transfers of all pairs, in rounds, take 2.0 times as long as expected" in lines(report)
    assert "63%" in lines(report)
    document = json.loads(report.document())
    assert (document["outcome"], len(document["links"])) == ("faulty", 12)


# It is compared with others alone, or in rounds if there is no other.
@pytest.mark.parametrize("only_alone", [None, ("0", "1")])
@pytest.mark.parametrize(("seconds", "outcome"), [(0.064, "fine"), (0.4, "faulty")])
def test_a_link_that_is_slow_in_rounds_only_is_congested_and_no_fault(
    only_alone, seconds, outcome, recorded
):
    again = [("0", "1", 9 * i, 9 * i + seconds) for i in range(3)]
    report = measured(recorded, [("0", "1")], again=again, only_alone=only_alone)
    assert report.outcome == outcome
    said = " ".join(pair_tables.no_slow_pair(report.run))
    assert ("is slow alone" in said) == (outcome == "fine")


def test_latencies_of_few_round_trips_are_not_fine(recorded):
    report = measured(recorded, trips_ms={("2", "3"): 60.0}, n_trips=2)
    assert report.outcome == "not judged"
    assert "Latencies: under 3 round trips; take more --iterations" in lines(report)


@pytest.mark.parametrize(
    ("classes", "outcome"), [(("network", "x"), "fine"), (("x",), "not judged")]
)
def test_an_expectation_of_no_link_is_not_met_by_all(classes, outcome, recorded):
    report = measured(recorded, expected_Bps=dict.fromkeys(classes, RATE))
    assert report.outcome == outcome
    assert ("No link is of the class x (--expect): they are network." in lines(report)) == (
        outcome == "not judged"
    )


def test_links_of_which_most_are_slow_are_not_fine(recorded):
    slow = [pair for pair in itertools.permutations("0123", 2) if "3" in pair]
    slow += [pair for pair in itertools.permutations("012", 2) if "2" in pair]
    report = measured(recorded, slow)
    assert report.outcome == "not judged"
    assert "2 of them are 5.0 times as fast as the median one or faster" in lines(report)


def test_links_with_too_few_transfers_are_not_fine(recorded):
    report = measured(recorded, n=2)
    assert report.outcome == "not judged"
    assert "under 3 transfers; take more --iterations" in lines(report)
    assert "are fine" not in lines(report)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 12, 64])
def test_rounds_have_every_pair_once_and_no_host_twice(n):
    played = [*rounds(n)]
    assert len(played) == n - 1 + n % 2
    pairs = [frozenset(pair) for pairs in played for pair in pairs]
    assert sorted(map(sorted, pairs)) == [[*p] for p in itertools.combinations(range(n), 2)]
    for pairs in played:
        assert len({*itertools.chain(*pairs)}) == 2 * len(pairs) == n - n % 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--expect", "netwrok=1GB/s"], "did you mean 'network'"),
        (["--expect", "NV=45GB/s"], "did you mean 'NV2'"),
        (["--expect", "network=1GB"], "100Gb/s (bits) or 12.5GB/s (bytes)"),
        (["--expect", "network=0Gb/s"], "is not a bandwidth above 0"),
        (["--workers", "1"], "links: one worker has no other to fetch from"),
    ],
)
def test_wrong_usage_is_explained(arguments, message):
    assert message in processes.usage_error(processes.invoke("links", *arguments))


def test_it_has_no_option_that_it_ignores():
    assert "No such option '-v'" in processes.usage_error(processes.invoke("links", "-v"))

import itertools
import json
import math

import builders
import pytest
from builders import (
    failure,
    launches,
    log_count,
    message,
    place,
    sample,
    thread_time,
    transfer,
    transport,
    wire,
)

from commbench.reports import json as json_report

CASES = [
    builders.case("tcp", params={"rows": 3, "sizes": [1, 2]}),
    builders.case("ucx", params={"rows": 3, "sizes": [1, 2]}),
    builders.case("tcp", "pingpong"),
]
# The keys of each section are those of the expected reports in tests/golden.
TOP = [
    "run", "warnings", "verdicts", "findings", "cases", "pairs", "links", "shuffles", "slow_pairs",
    "scaling", "comparisons", "published", "transports", "places", "coverage", "profile",
    "failures",
]  # fmt: skip


def strict(text):
    """Return the parsed report; NaN and infinity, which JSON does not have, are errors."""

    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def report(recorded):
    records = [record for case in CASES[:2] for record in launches(case, [1.5] * 6)]
    records += [message(CASES[2], 1e-6, size) for size in (1, 1024)]
    records += [transfer(CASES[0], 0, 1), wire(CASES[0], 8_000_000), log_count(CASES[0])]
    records += [thread_time(CASES[0]), thread_time(CASES[0], "scheduler", "loop")]
    records += [
        transport(CASES[0]),
        place(CASES[0]),
        failure(CASES[1], "<it> | broke\n\udc80", launch=6),
    ]
    content = recorded(
        CASES, records, environment={"load_average": [math.nan], "cpu": {"model": "x"}}, seed=3
    )
    return strict(json_report.render(content))


def test_the_run_has_suite_seed_version_and_environment(report):
    run = report["run"]
    assert (run["suite"], run["seed"], run["schema_version"]) == ("made-up", 3, 2)
    assert run["min_transfer_bytes"] == 1_000_000
    assert run["environment"] == {"load_average": [None], "cpu": {"model": "x"}}


def test_only_messages_have_a_message_size(report):
    sizes = {(row["workload"], row.get("message_bytes")) for row in report["cases"]}
    assert sizes == {("merge", None), ("pingpong", 1), ("pingpong", 1024)}


def test_values_are_in_base_units(report):
    row = report["cases"][0]
    assert row["params"] == {"rows": 3, "sizes": [1, 2]}
    assert row["median_s"] == row["ci_low_s"] == row["ci_high_s"] == 1.5
    assert row["throughput_Bps"] == pytest.approx(800_000_000 / 1.5)
    assert report["pairs"][0]["q50_Bps"] == 8e6
    assert report["coverage"][0]["coverage"] == 1.0


def test_unknown_values_are_null(report):
    pingpong = report["cases"][-1]
    assert (pingpong["ci_low_s"], pingpong["ci_high_s"], pingpong["confidence"]) == (None, None, 0)
    assert pingpong["idle_cores"] is None
    assert report["cases"][1]["cpu_s_per_GB"] is None


def test_failures_have_their_message(report):
    (row,) = report["failures"]
    assert row["message"] == "<it> | broke\n?"
    assert row["launch"] == 6


def test_an_empty_run_has_empty_lists(recorded):
    report = strict(json_report.render(recorded(CASES)))
    assert list(report) == TOP
    assert {name for name in TOP if report[name] == []} == {*TOP} - {"run", "warnings"}


def test_limits_of_a_ratio_without_interval_are_null(recorded):
    records = [sample(case, 1.0 + i) for i, case in enumerate(CASES[:2])]
    content = recorded(CASES, builders.ended(records))
    (row,) = strict(json_report.render(content))["comparisons"]
    assert (row["ratio"], row["ci_low"], row["ci_high"]) == (2.0, None, None)
    assert (row["verdict"], row["candidate_id"]) == ("inconclusive", CASES[1].id)


def test_every_pair_has_a_line(recorded, monkeypatch):
    monkeypatch.setattr(json_report, "_CHUNK", 2)
    case = builders.case(n_workers=3)
    ends = list(itertools.permutations("012", 2))
    records = [transfer(case, 0, int(src != "0"), src=src, dst=dst) for src, dst in ends]
    text = json_report.render(recorded([case], records))
    pairs = strict(text)["pairs"]
    lines = [line for line in text.splitlines() if '"busy_Bps"' in line]
    assert [strict(line.strip().rstrip(",")) for line in lines] == pairs
    assert [(pair["src"], pair["dst"]) for pair in pairs] == ends
    assert [pair["q50_Bps"] for pair in pairs] == [None, None, 8e6, 8e6, 8e6, 8e6]
    assert pairs[0]["n_untimed"] == 1

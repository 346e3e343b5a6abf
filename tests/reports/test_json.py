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

from commbench.model import ClusterSpec
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
    records = launches(CASES[:2], [1.5] * 6)
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
    assert (run["suite"], run["seed"], run["schema_version"]) == ("made-up", 3, 5)
    assert (run["min_transfer_bytes"], run["side"]) == (1_000_000, "")
    assert run["environment"] == {"load_average": [None], "cpu": {"model": "x"}}


def test_cases_that_are_varied_name_their_backend(recorded):
    cases = [
        builders.case("ucx", cluster=ClusterSpec(env={"A": value}), varied=("A",)) for value in "12"
    ]
    run = recorded(cases, launches(cases, [1.0] * 6))
    rows = strict(json_report.render(run))["cases"]
    assert [(row["given_backend"], row["backend"]) for row in rows] == [
        ("ucx", "A=1"), ("ucx", "A=2"),
    ]  # fmt: skip


def test_a_surrogate_in_a_message_is_replaced(report):
    assert [row["message"] for row in report["failures"]] == ["<it> | broke\n?"]


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
    records = builders.exchanges(case, lambda src, _: int(src != "0"))
    text = json_report.render(recorded([case], records))
    pairs = strict(text)["pairs"]
    lines = [line for line in text.splitlines() if '"busy_Bps"' in line]
    assert [strict(line.strip().rstrip(",")) for line in lines] == pairs
    assert [(pair["src"], pair["dst"]) for pair in pairs] == [*itertools.permutations("012", 2)]
    assert [pair["q50_Bps"] for pair in pairs] == [None, None, 8e6, 8e6, 8e6, 8e6]
    assert pairs[0]["n_untimed"] == 1

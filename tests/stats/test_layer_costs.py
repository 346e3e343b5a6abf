import math

import builders
import pytest
from builders import message

from commbench import stats
from commbench.reports.sections.message_tables import tables_by_layer

TCP = builders.case("tcp", "pingpong")


def additions(recorded, cases, records):
    run = recorded(cases, builders.ended(records))
    return stats.additions(run)


def samples(of, seconds, size=8, launches=1):
    return [
        message(of, value * (1 + 0.001 * launch), size, layer=layer, launch=launch)
        for layer, value in seconds.items()
        for launch in range(launches)
    ]


def test_each_layer_is_compared_with_the_one_below(recorded):
    seconds = {"worker": 16.0, "raw": 2.0, "comm": 9.0, "memcpy": 1.0, "coroutine": 4.0}
    table = additions(recorded, [TCP], samples(TCP, seconds))
    assert table["layer"].tolist() == ["memcpy", "raw", "coroutine", "comm", "worker"]
    assert table["below"].tolist() == ["", "memcpy", "raw", "coroutine", "comm"]
    assert table["added_s"].tolist() == pytest.approx([math.nan, 1, 2, 5, 7], nan_ok=True)


@pytest.mark.parametrize(
    ("below", "seconds", "added"), [("raw", 2.0, 1.0), ("coroutine", 5.0, -2.0)]
)
def test_a_layer_that_was_not_measured_is_skipped(below, seconds, added, recorded):
    table = additions(recorded, [TCP], samples(TCP, {below: seconds, "comm": 3.0}))
    assert table["below"].tolist() == ["", below]
    assert table["added_s"].iloc[1] == pytest.approx(added)


def test_sizes_and_cases_are_kept_apart(recorded):
    ucx = builders.case("ucx", "pingpong")
    records = samples(TCP, {"raw": 1.0, "comm": 2.0}, 8) + samples(TCP, {"raw": 10.0}, 16)
    records += samples(ucx, {"raw": 100.0, "comm": 300.0}, 8)
    table = additions(recorded, [TCP, ucx], records)
    assert set(table["payload_bytes"]) == {8}
    added = table[table["layer"] == "comm"].set_index("backend")["added_s"].to_dict()
    assert added == pytest.approx({"tcp": 1.0, "ucx": 200.0})


def test_workloads_and_bandwidths_have_no_additions(recorded):
    stream, merge = builders.case("tcp", "pingpong", params={"mode": "bandwidth"}), builders.case()
    records = samples(stream, {"raw": 1.0, "comm": 2.0}) + builders.launches(merge, [1.0])
    assert additions(recorded, [stream, merge], records).empty
    assert additions(recorded, [merge], []).empty


def test_only_disjoint_intervals_make_an_addition_significant(recorded):
    apart = additions(recorded, [TCP], samples(TCP, {"raw": 1.0, "comm": 2.0}, launches=6))
    close = additions(recorded, [TCP], samples(TCP, {"raw": 1.0, "comm": 1.001}, launches=6))
    single = additions(recorded, [TCP], samples(TCP, {"raw": 1.0, "comm": 2.0}))
    assert [table["apart"].tolist() for table in (apart, close, single)] == [
        [False, True], [False, False], [False, False]
    ]  # fmt: skip


def test_nothing_is_added_to_or_by_a_layer_of_two_modes(recorded):
    records = [
        message(TCP, seconds, 8, layer=layer, launch=launch)
        for launch, coroutine in enumerate([2.0, 8.0] * 3)
        for layer, seconds in (("raw", 1.0), ("coroutine", coroutine), ("comm", 9.0), ("worker", 9))
    ]
    run = recorded([TCP], builders.ended(records))
    expected = [math.nan, math.nan, math.nan, 0]
    assert stats.additions(run)["added_s"].tolist() == pytest.approx(expected, nan_ok=True)
    (table,) = tables_by_layer(run)
    assert table.rows[0][2:] == ("1.00 s", "2.00 or 8.00 s\n—", "9.00 s\n—", "9.00 s\n+0 s (?)")


def test_unverified_samples_of_a_tool_count(recorded):
    records = [
        message(TCP, 1.0, 8, layer="raw", verified=False, tool="ucx_perftest", cpu_seconds=0.0),
        message(TCP, 2.0, 8, layer="comm"),
        message(TCP, 0.1, 8, layer="comm", iteration=1, verified=False),
    ]
    run = recorded([TCP], builders.ended(records))
    table = stats.summaries(run).set_index("layer")
    assert table["median_s"].to_dict() == {"comm": 2.0, "raw": 1.0}
    assert math.isnan(table["cpu_s"]["raw"])


def test_shown_sizes_include_the_first_and_the_last():
    sizes = [2**n for n in range(23)]
    assert stats.shown_sizes(sizes, 30) == sizes
    few = stats.shown_sizes(sizes[::-1], 7)
    assert (len(few), few[0], few[-1]) == (7, 1, 2**22)

"""What each layer adds to the one below it."""

from __future__ import annotations

import math

import builders
import pytest
from builders import message

from commbench import stats


def case(backend="tcp", **params):
    """Return a ping-pong."""
    return builders.case(backend, "pingpong", params=params)


def additions(recorded, cases, records):
    """Return the additions of a run."""
    run = recorded(cases, builders.ended(records))
    return stats.additions(run, stats.summaries(run))


def samples(of, seconds, size=8, launches=1):
    """Return a sample of each layer and launch; the seconds by layer."""
    return [
        message(of, value * (1 + 0.001 * launch), size, layer=layer, launch=launch)
        for layer, value in seconds.items()
        for launch in range(launches)
    ]


def test_each_layer_is_set_against_the_one_below(recorded):
    """From the wire up, whatever the order in the records; the lowest is set against nothing."""
    tcp = case()
    seconds = {"worker": 16.0, "raw": 2.0, "comm": 9.0, "memcpy": 1.0, "coroutine": 4.0}
    found = additions(recorded, [tcp], samples(tcp, seconds))
    assert found["layer"].tolist() == ["memcpy", "raw", "coroutine", "comm", "worker"]
    assert found["below"].tolist() == ["", "memcpy", "raw", "coroutine", "comm"]
    assert found["added_s"].tolist() == pytest.approx([math.nan, 1, 2, 5, 7], nan_ok=True)


def test_a_layer_that_was_not_measured_is_passed_over(recorded):
    """Where coroutine is missing, comm is set against raw."""
    tcp = case()
    found = additions(recorded, [tcp], samples(tcp, {"raw": 2.0, "comm": 9.0}))
    assert found["below"].tolist() == ["", "raw"]
    assert found["added_s"].iloc[1] == pytest.approx(7)


def test_a_faster_layer_adds_less_than_nothing(recorded):
    """The sign says which of two layers is the faster one."""
    tcp = case()
    found = additions(recorded, [tcp], samples(tcp, {"coroutine": 5.0, "comm": 3.0}))
    assert found["added_s"].iloc[1] == pytest.approx(-2)


def test_sizes_and_cases_don_t_mix(recorded):
    """Each size of each backend is set against itself; one layer alone is left out."""
    tcp, ucx = case(), case("ucx")
    records = samples(tcp, {"raw": 1.0, "comm": 2.0}, 8) + samples(tcp, {"raw": 10.0}, 16)
    records += samples(ucx, {"raw": 100.0, "comm": 300.0}, 8)
    found = additions(recorded, [tcp, ucx], records)
    assert set(found["payload_bytes"]) == {8}
    added = found[found["layer"] == "comm"].set_index("backend")["added_s"].to_dict()
    assert added == pytest.approx({"tcp": 1.0, "ucx": 200.0})


def test_only_latency_is_divided_into_layers(recorded):
    """The time of a message in a stream is no sum of what its layers take."""
    stream = case(mode="bandwidth")
    assert additions(recorded, [stream], samples(stream, {"raw": 1.0, "comm": 2.0})).empty


def test_a_workload_has_no_layers(recorded):
    """A run without ping-pong gives an empty table."""
    merge = builders.case()
    assert additions(recorded, [merge], builders.launches(merge, [1.0])).empty
    assert additions(recorded, [merge], []).empty


def test_additions_within_the_noise_are_told_apart(recorded):
    """Only where the medians' intervals are disjoint is the addition sure; one launch has none."""
    tcp = case()
    apart = additions(recorded, [tcp], samples(tcp, {"raw": 1.0, "comm": 2.0}, launches=6))
    close = additions(recorded, [tcp], samples(tcp, {"raw": 1.0, "comm": 1.001}, launches=6))
    single = additions(recorded, [tcp], samples(tcp, {"raw": 1.0, "comm": 2.0}))
    assert [table["apart"].tolist() for table in (apart, close, single)] == [
        [False, True], [False, False], [False, False]
    ]  # fmt: skip


def test_what_a_tool_measured_counts_though_it_is_unverified(recorded):
    """A sample that names its tool counts; one that names none and failed its check does not."""
    tcp = case()
    records = [
        message(tcp, 1.0, 8, layer="raw", verified=False, tool="ucx_perftest", cpu_seconds=0.0),
        message(tcp, 2.0, 8, layer="comm"),
        message(tcp, 0.1, 8, layer="comm", iteration=1, verified=False),
    ]
    run = recorded([tcp], builders.ended(records))
    table = stats.summaries(run).set_index("layer")
    assert table["median_s"].to_dict() == {"comm": 2.0, "raw": 1.0}
    assert math.isnan(table["cpu_s"]["raw"])


def test_shown_sizes_keep_both_ends():
    """Of many sizes the first and the last are always among those shown."""
    sizes = [2**n for n in range(23)]
    assert stats.shown_sizes(sizes, 30) == sizes
    few = stats.shown_sizes(sizes[::-1], 7)
    assert (len(few), few[0], few[-1]) == (7, 1, 2**22)

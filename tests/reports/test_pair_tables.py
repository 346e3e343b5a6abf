import importlib
import itertools
import json

import builders
import pytest
from builders import end, sample, transfer, wire

from commbench.reports.sections import tables

CASE = builders.case(workload="all-to-all", n_workers=3, params={"sizes": [1 << 20, 16 << 20]})
MIB = 1 << 20
PAIRS = list(itertools.permutations("012", 2))


def measured(slow=1.0):
    records = []
    for launch, size in itertools.product(range(6), (MIB, 16 * MIB)):
        for channel, factor in (("alone", 1), ("together", 2)):
            times = [factor * size / 100e6 * (slow if pair == ("2", "0") else 1) for pair in PAIRS]
            records += [
                transfer(CASE, 0, seconds, size, src=src, dst=dst, launch=launch, channel=channel)
                for (src, dst), seconds in zip(PAIRS, times, strict=True)
            ]
            together = channel == "together"
            records.append(
                sample(
                    CASE, max(times) if together else sum(times) / 6, launch=launch, layer=channel,
                    payload_bytes=size * (6 if together else 1), cpu_seconds=0.5,
                )
            )  # fmt: skip
            records += [wire(CASE, size, src=src, dst=dst, launch=launch) for src, dst in PAIRS]
    return records + [end(CASE, launch=launch) for launch in range(6)]


@pytest.fixture(scope="module")
def slow(recorded):
    return recorded([CASE], measured(slow=8.0))


def titled(content, words):
    (found,) = [table for table in tables(content) if table.title.startswith(words)]
    return found


def test_each_size_has_its_time_and_bandwidth(recorded):
    content = recorded([CASE], measured())
    alone = titled(content, "all-to-all, one pair at a time")
    assert alone.columns == ("block", "tcp\ntime", "tcp\nbandwidth")
    assert alone.rows == (("1 MiB", "10.5 ms", "100 MB/s"), ("16 MiB", "168 ms", "100 MB/s"))
    together = titled(content, "all-to-all, all pairs at once")
    assert together.rows == (("1 MiB", "21.0 ms", "300 MB/s"), ("16 MiB", "336 ms", "300 MB/s"))
    assert not any("ping" in table.title or "iteration" in table.title for table in tables(content))


def test_the_pair_tables_are_apart_and_of_the_largest_size(recorded):
    content = recorded([CASE], measured())
    for words, bandwidth in (("one at a time", "0.1"), ("all at once", "0.05")):
        table = titled(content, f"Bandwidth per pair of workers, {words}")
        assert len(table.rows) == 6
        assert {row[5] for row in table.rows} == {bandwidth}
        assert {row[2:4] for row in table.rows} == {("6", "101 MB")}
        assert "had none" not in table.note


def test_a_pair_that_is_missing_alone_is_told_there(recorded):
    records = [
        record for record in measured()
        if (getattr(record, "channel", ""), getattr(record, "dst", "")) != ("alone", "1")
    ]  # fmt: skip
    content = recorded([CASE], records)
    assert "2 of 6 pairs had none" in titled(content, "Bandwidth per pair of workers, one").note
    assert "had none" not in titled(content, "Bandwidth per pair of workers, all").note


def test_slow_pairs_head_the_pair_tables(slow):
    titles = [table.title for table in tables(slow)]
    place = titles.index("Slow pairs of workers")
    assert titles[place + 1].startswith("Bandwidth per pair of workers, one at a time")
    (alone, together) = titled(slow, "Slow pairs").rows
    assert alone[:7] == ("tcp", "2 → 0", "alone", "unknown", "0.0125", "0.1", "8.0")
    assert together[:7] == ("tcp", "2 → 0", "together", "unknown", "0.00625", "0.05", "8.0")


def test_a_slow_pair_is_a_warning(slow):
    found = [text for text in slow.warnings if "slower than" in text]
    assert found == [
        "all-to-all over tcp, alone: pair 2 → 0 is 8.0 × slower than the typical pair "
        "(12.5 MB/s against 100 MB/s)",
        "all-to-all over tcp, together: pair 2 → 0 is 8.0 × slower than the typical pair "
        "(6.25 MB/s against 50.0 MB/s)",
    ]


def test_without_slow_pairs_nothing_is_said(recorded):
    content = recorded([CASE], measured())
    assert not any("Slow" in table.title for table in tables(content))
    assert not any("slower than" in text for text in content.warnings)


def test_many_slow_pairs_are_named_up_to_six(recorded):
    case = builders.case(n_workers=8)
    records = [
        transfer(case, 0, 1.0 if dst == "7" else 0.1, src=src, dst=dst)
        for src, dst in itertools.permutations("01234567", 2)
    ]
    (warning,) = [text for text in recorded([case], records).warnings if "slower" in text]
    assert warning.count("→") == 6
    assert warning.endswith("1 more")


def test_json_has_the_block_size_and_the_slow_pairs(slow):
    report = json.loads(importlib.import_module("commbench.reports.json").render(slow))
    sizes = {(row["layer"], row["message_bytes"], row["payload_bytes"]) for row in report["cases"]}
    assert sizes == {
        ("alone", MIB, MIB), ("alone", 16 * MIB, 16 * MIB),
        ("together", MIB, 6 * MIB), ("together", 16 * MIB, 96 * MIB),
    }  # fmt: skip
    assert [(row["channel"], row["src"], row["dst"]) for row in report["slow_pairs"]] == [
        ("alone", "2", "0"), ("together", "2", "0")
    ]  # fmt: skip
    assert report["slow_pairs"][0]["slowdown"] == pytest.approx(8, rel=1e-3)


def test_cpu_time_is_set_against_the_payload(slow):
    costs = slow.costs.set_index(["layer", "payload_bytes"])["cpu_s_per_GB"]
    assert costs["alone", 16 * MIB] == pytest.approx(0.5 / (16 * MIB / 1e9))
    assert costs["together", 96 * MIB] == pytest.approx(0.5 / (96 * MIB / 1e9))

import itertools
import re

import builders
import pytest
from builders import message, sample

from commbench.model import LAYERS
from commbench.reports import html, terminal
from commbench.reports.sections.message_tables import (
    opening_by_size,
    tables_by_layer,
    tables_by_size,
)


def content(recorded, times, sizes=(1,)):
    cases = {name: builders.case(name, "pingpong") for name in times}
    records = [
        message(
            cases[name], seconds * (1 + 1e-4 * launch), size, layer=layer, launch=launch,
            tool="ucx_perftest" * ((name, layer) == ("ucx", "raw")),
        )
        for name, by_layer in times.items() for layer, seconds in by_layer.items()
        for size in sizes for launch in range(6)
    ]  # fmt: skip
    return recorded(list(cases.values()), builders.ended(records))


TIMES = {
    "tcp": {"memcpy": 60e-9, "raw": 20e-6, "coroutine": 45e-6, "comm": 0.26e-3, "worker": 1.1e-3},
    "ucx": {"memcpy": 60e-9, "raw": 8e-6, "coroutine": 7e-6, "comm": 0.25e-3},
}


def test_cells_have_the_time_and_the_addition_of_each_layer(recorded):
    (table,) = tables_by_layer(content(recorded, TIMES))
    assert table.columns == ("size", "backend", *LAYERS)
    tcp, ucx = table.rows
    assert tcp[:4] == ("1 B", "tcp", "60.0 ns", "20.0 µs\n+19.9 µs")
    assert tcp[5:] == ("260 µs\n+215 µs", "1.10 ms\n+840 µs")
    assert ucx[:2] == ("", "ucx")


def test_a_faster_layer_has_a_negative_time(recorded):
    (table,) = tables_by_layer(content(recorded, TIMES))
    ucx = dict(zip(table.columns, table.rows[1], strict=True))
    assert ucx["coroutine"] == "7.00 µs\n−1.00 µs"
    assert ucx["worker"] == "—"
    assert "−: this layer is faster" in table.note
    assert "raw of ucx is ucx_perftest, whose payloads can't be verified" in table.note


def test_an_addition_within_the_noise_has_a_question_mark(recorded):
    (table,) = tables_by_layer(content(recorded, {"tcp": {"raw": 1e-3, "comm": 1.0001e-3}}))
    assert table.rows[0][-1].endswith("(?)")


def test_7_of_many_sizes_are_shown(recorded):
    sizes = tuple(2**n for n in range(23))
    (table,) = tables_by_layer(content(recorded, TIMES, sizes))
    assert [row[0] for row in table.rows if row[0]][0::6] == ["1 B", "4 MiB"]
    assert "7 of 23 sizes" in table.note


def test_the_opening_has_the_smallest_and_the_largest_of_many_sizes(recorded):
    (table,) = opening_by_size(content(recorded, TIMES, tuple(2**n for n in range(23))))
    sizes = [row[0] for row in table.rows]
    assert (sizes[0], sizes[-1], len(sizes)) == ("1 B", "4 MiB", 7)


def test_the_opening_has_the_last_layer_whatever_the_peer_is_called(recorded):
    case = builders.case("tcp", "pingpong", params={"peer": "fe80::2"})
    records = [message(case, 1e-3, 1, layer=layer) for layer in ("raw", "comm")]
    (table,) = opening_by_size(recorded([case], builders.ended(records)))
    assert "comm layer" in table.title


@pytest.mark.parametrize("times", [{"tcp": {"comm": 1e-3}}, {}])
def test_one_layer_has_no_table_by_layer(recorded, times):
    assert list(tables_by_layer(content(recorded, times))) == []


@pytest.mark.parametrize("columns", ["80", "200"])
def test_every_number_is_on_the_terminal(recorded, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    run = content(recorded, TIMES, (1, 8 << 20))
    text = terminal.render_all(run)
    (table,) = tables_by_layer(run)
    for cell in itertools.chain(*table.rows):
        assert all(line in text for line in cell.split("\n"))
    if columns == "80":
        part = text[text.index("where the time of a message goes") :].split("\n\n")[0]
        assert max(map(len, part.splitlines())) <= 80


STREAM = "Windows of 64 messages"
PAIRS = "of 3 pairs together"


@pytest.mark.parametrize(
    ("mode", "what", "cell", "words", "scope"),
    [
        ("bandwidth", ["bandwidth of a stream"], "500 MB/s", STREAM, "both processes"),
        (
            "bidirectional", ["bidirectional bandwidth of a stream"], "500 MB/s",
            "both directions", "both processes",
        ),
        ("message-rate", ["messages per second"], "500,000", "1 / that time", "both processes"),
        ("latency", ["latency", "bandwidth"], "2.00 µs", "Half the round trip", "both processes"),
        (
            "multi-pair", [f"bandwidth {PAIRS}", f"messages per second {PAIRS}"], "500 MB/s",
            "6 processes", "its share of all processes'",
        ),
    ],
)  # fmt: skip
def test_tables_of_each_mode(recorded, mode, what, cell, words, scope):
    case = builders.case("tcp", "pingpong", params={"mode": mode, "window": 64, "pairs": 3})
    made = list(tables_by_size(recorded([case], builders.ended([message(case, 2e-6, 1000)]))))
    named = f", mode {mode}" * (mode != "latency")
    titles = [*what, f"CPU time of one message, {scope}{named}"]
    assert [table.title for table in made] == [f"pingpong, comm layer: {text}" for text in titles]
    assert made[0].rows[0][1] == cell
    assert words in made[0].note
    assert mode != "multi-pair" or made[1].rows[0][1] == "500,000"


TOOL = {"layer": "raw", "tool": "ucx_perftest", "verified": False, "cpu_seconds": 0.0}


@pytest.mark.parametrize(("mode", "n"), [("bandwidth", 1), ("message-rate", 1), ("latency", 0)])
def test_streams_of_a_tool_are_not_called_acknowledged(recorded, mode, n):
    params = {"mode": mode, "window": 64}
    tcp, ucx = (builders.case(name, "pingpong", params=params) for name in ("tcp", "ucx:shm"))
    records = [message(tcp, 2e-6, 1, layer="raw"), message(ucx, 1e-6, 1, **TOOL)]
    records += [message(case, 2e-6, 1) for case in (tcp, ucx)]
    notes = [table.note for table in tables_by_size(recorded([tcp, ucx], builders.ended(records)))]
    words = "raw of ucx is ucx_perftest: no message is acknowledged"
    assert [note.count(words) for note in notes] == [n] + [0] * (len(notes) - 1)


@pytest.mark.parametrize(
    ("layer", "words", "scope"),
    [
        ("worker", "One fetch", "both workers"),
        ("memcpy", "One copy within a process", "one process"),
    ],
)
def test_fetches_and_copies_are_not_half_a_round_trip(recorded, layer, words, scope):
    case = builders.case("tcp", "pingpong")
    run = recorded([case], builders.ended([message(case, 2e-6, 1000, layer=layer)]))
    first, _, cpu = tables_by_size(run)
    assert words in first.note
    assert "Half the round trip" not in first.note
    assert cpu.title.endswith(scope)


@pytest.mark.parametrize(
    ("layers", "shown"),
    [
        (LAYERS, {"coroutine"}), (("raw", "comm"), {"comm"}), (("worker",), {"worker"}),
        (("raw", "worker"), set()),
    ],
)  # fmt: skip
def test_idle_cores_are_shown_for_the_layer_that_was_measured(recorded, layers, shown):
    case = builders.case("tcp", "pingpong")
    records = [message(case, 2e-6, 1000, layer=layer) for layer in layers]
    run = recorded([case], builders.ended([*records, builders.idle(case)]))
    named = {t.title for t in tables_by_size(run) if "nothing is sent: tcp 0.05." in t.note}
    assert named == {f"pingpong, {layer} layer: latency" for layer in shown}


def test_latency_under_load_has_the_bandwidth_of_the_load(recorded):
    params = {"mode": "loaded-latency", "window": 64, "load_size": 1 << 20}
    case = builders.case("tcp", "pingpong", params=params)
    records = [message(case, 2e-6, 1000, launch=n, cpu_seconds=0.0) for n in range(3)]
    records += [
        builders.load(case, nbytes, launch=n) for n, nbytes in enumerate((10**9, 5, 10**10))
    ]
    (table,) = tables_by_size(recorded([case], builders.ended(records)))
    assert table.title == "pingpong, comm layer: latency under load"
    assert table.rows[0][1] == "2.00 µs"
    assert "Half the round trip, while messages of 1 MiB stream to the peer" in table.note
    assert "The load moved 1.00 GB/s (tcp)" in table.note


def test_unknown_cpu_time_has_no_table(recorded):
    case = builders.case("ucx", "pingpong")
    run = recorded([case], builders.ended([message(case, 2e-6, 1, **TOOL)]))
    titles = [table.title for table in tables_by_size(run)]
    assert len(titles) == 2
    assert not any("CPU" in title for title in titles)


def test_links_are_not_called_all_to_all(recorded):
    case = builders.case(workload="links", n_workers=3)
    records = []
    for channel in ("alone", "rounds"):
        records += 6 * [sample(case, 0.1, layer=channel, payload_bytes=16_000_000)]
        records += 3 * builders.exchanges(case, 0.1, 16_000_000, channel=channel)
    page = html.render(recorded([case], builders.ended(records)))
    assert "mean over the pairs that fetched alone" in page
    assert "The largest blocks, in rounds of pairs that share no host" in page
    assert not re.search("all-to-all", page, re.IGNORECASE)

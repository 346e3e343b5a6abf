import functools
import itertools
import re
from collections import Counter

import builders
import pytest
from builders import (
    LONG_NAMES,
    failure,
    idle,
    launches,
    log_count,
    message,
    network,
    transfer,
    transport,
    wire,
)

from commbench.reports import terminal
from commbench.reports.sections import Table, tables

CASE = builders.case()
EVIDENCE = "ucp_ep_query: tcp/eth0 rc_mlx5/mlx5_0:1 cuda_ipc/cuda; log: intra-node cfg#1 tag(a/b)"
LONG_WORD = "/scratch/users/somebody/" + "long/" * 30 + "worker-0.log"


@pytest.fixture(scope="module")
def wide(recorded):
    """Return a run with every table, four backends, long names and numbers of all lengths."""
    # Two tasks make the labels of the pair tables longer still.
    merges = [
        builders.case(name, params={"rows": 1_000_000, "shuffle": shuffle}, n_workers=12)
        for shuffle in ("tasks", "p2p")
        for name in LONG_NAMES
    ]
    pingpongs = [builders.case(name, "pingpong") for name in LONG_NAMES]
    records = []
    for i, case in enumerate(merges):
        records += launches(case, [0.999 * 2.3**i + 0.03 * n for n in range(6)])
        for src, dst in (("10", "11"), ("11", "10"), ("0", "1")):
            for number in range(3):
                stop = number + 0.123456 * 2.3**i
                records.append(transfer(case, number, stop, 987_654_321, src=src, dst=dst))
            records.append(wire(case, 12_345_678_901 * 3**i, src=src, dst=dst))
        records += [wire(case, 987_654_321, src="1", dst="1"), network(case, 987_654_321_000)]
        records.append(log_count(case, n_started=123_456, n_busy=98_765, n_failed=1))
        records.append(transport(case, "rc_mlx5/mlx5_0:1", evidence=EVIDENCE))
    for i, case in enumerate(pingpongs):
        for launch in range(6):
            records.append(idle(case, 3.999, launch=launch))
            for size in (1, 1023, 65536, 1 << 30):
                seconds = (1e-6 + size / 9.87e9) * (1.9 + i)
                records.append(message(case, seconds, size, launch=launch))
    records.append(failure(merges[3], f"it died; its last words ({LONG_WORD}):\n  Error: 17"))
    return recorded([*merges, *pingpongs], records)


def rendered(content, columns=80):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        return terminal.render_all(content)


@pytest.fixture(scope="module")
def wide_text(wide):
    """Return a function that renders the wide run, once for each width."""
    return functools.cache(functools.partial(rendered, wide))


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_every_number_is_whole_on_one_line(columns, wide, wide_text):
    lines = iter(wide_text(columns).splitlines())
    for table in tables(wide):
        assert any(table.title.startswith(line.strip()) for line in lines if line.strip())
        for row in table.rows:
            numbers = [
                cell
                for name, cell in zip(table.columns[1:], row[1:], strict=True)
                if name not in table.text_columns
            ]
            pattern = r"(?<![^\s])" + r"\s+(?:\S.*\s)?".join(map(re.escape, numbers)) + r"(?!\S)"
            assert any(re.search(pattern, line) for line in lines), (table.title, row)


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_passes_the_edge_and_no_text_is_shortened(columns, wide, wide_text):
    text = wide_text(columns)
    assert max(map(len, text.splitlines())) <= columns
    expected = [text for t in tables(wide) for text in (t.title, t.note, *itertools.chain(*t.rows))]
    assert text.count("…") == "".join(expected).count("…")


@pytest.mark.parametrize("columns", [80, 200])
def test_names_and_messages_are_folded_and_not_cut(columns, wide, wide_text):
    text = wide_text(columns)
    names = Counter(row[0] for table in tables(wide) for row in table.rows)
    for name, count in names.items():
        # It goes on in the next line, after the numbers.
        pattern = r"(?: .*\n| )?".join(map(re.escape, name.replace(" ", "")))
        assert len(re.findall(rf"^{pattern}(?=\s)", text, re.MULTILINE)) >= count, name
    failures = text[text.index("Failures") : text.index("Provenance")]
    # The message is the last column: what stands right of its title is the message alone.
    edge = next(line.index("message") for line in failures.splitlines() if "message" in line)
    message = "".join(line[edge:] for line in failures.splitlines()[3:])
    folded, expected = (re.sub(r"\s+", "", s) for s in (message, wide.failures["message"].iloc[0]))
    assert folded == expected


def test_names_are_on_one_line_of_a_wide_terminal(wide_text):
    text = wide_text(200)
    for name in LONG_NAMES:
        assert re.search(rf"^{re.escape(name)}\s+\d", text, re.MULTILINE)


def test_warnings_come_before_every_table(recorded):
    records = [*launches(CASE, [1.0] * 6), builders.end(CASE, launch=6, ok=False)]
    lines = rendered(recorded([CASE], records)).splitlines()
    first, warning, *rest = filter(None, lines)
    assert first.startswith("made-up · 2025-01-01 00:00 UTC")
    assert warning.startswith("⚠ ")
    assert not any(line.startswith("⚠ ") for line in rest[5:])


@pytest.mark.parametrize(
    "nasty", ["\x1b[2J\x1b[31m", "\x07", "\x9b31m", "\r", "\x00", "\u202e", "\u2067", "\u200b"]
)
def test_control_characters_are_replaced(nasty, recorded):
    case = builders.case(params={"name": nasty})
    records = [
        *launches(case, [1.0] * 6), failure(case, f"a{nasty}b"),
        transport(case, f"a{nasty}b", contradiction=f"a{nasty}b", evidence=f"a{nasty}b"),
        transfer(case, 0, 1, src=f"a{nasty}b"),
    ]  # fmt: skip
    text = rendered(recorded([case], records, started_at=f"a{nasty}b"))
    assert not re.search(r"[^\n -~\xa0-\U0010ffff]", text)
    assert text.count("�") >= 6


def test_titles_of_columns_are_printed_as_they_are():
    table = Table("t", ("name", "ucx[/]\x1b]0;x"), (("a", "1"),))
    assert "ucx[/]\N{REPLACEMENT CHARACTER}]0;x" in terminal.page("", (), [table])


@pytest.mark.parametrize("nasty", ["[bold]", "[/]", "[link=http://x]y[/link]", ":smile:"])
def test_markup_of_rich_is_printed_as_it_is(nasty, recorded):
    records = [failure(CASE, nasty), transport(CASE, contradiction=nasty)]
    text = rendered(recorded([CASE], records))
    assert text.count(nasty) == 2


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_on_a_terminal_without_no_color_only(variables, coloured, wide, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    plain = rendered(wide)
    assert "\x1b" not in plain
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = rendered(wide)
    assert ("\x1b[33m" in text) == coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == plain


def test_six_backends_fit_into_80_columns(recorded):
    names = [*LONG_NAMES, "ucx:tcp+nvlink+ib", "ucx:shm+nvlink+ib"]
    cases = [builders.case(name, "pingpong") for name in names]
    records = [message(case, 123.4e-6, size) for case in cases for size in (1, 1 << 20)]
    lines = rendered(recorded(cases, records)).splitlines()
    assert max(map(len, lines)) <= 80
    sizes = next(line for line in lines if line.startswith("1 MiB"))
    assert re.sub(r"\s+", " ", sizes) == "1 MiB" + " 123 µs" * 6
    head = lines[lines.index("pingpong, comm layer: latency") + 1 :][:3]
    ends = [match.end() for match in re.finditer(r"\S+( \S+)*", sizes)]
    folded = ["".join(line[a:b].strip() for line in head) for a, b in itertools.pairwise(ends)]
    assert folded == names

"""On the terminal no number is cut, wrapped or shortened, however narrow it is."""

from __future__ import annotations

import re
from collections.abc import Callable

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
)  # fmt: skip

from commbench.analysis.run import Run
from commbench.model import Record
from commbench.reports import terminal
from commbench.reports.sections import tables

Recorded = Callable[..., Run]
CASE = builders.case()
EVIDENCE = "ucp_ep_query: tcp/eth0 rc_mlx5/mlx5_0:1 cuda_ipc/cuda; log: intra-node cfg#1 tag(a/b)"
LONG_WORD = "/scratch/users/somebody/" + "long/" * 30 + "worker-0.log"


@pytest.fixture(scope="module")
def wide(recorded: Recorded) -> Run:
    """Return a run with every table, four backends, long names and numbers of all lengths."""
    # Two tasks make the labels of the pair tables longer still.
    merges = [
        builders.case(name, params={"rows": 1_000_000, "shuffle": shuffle}, n_workers=12)
        for shuffle in ("tasks", "p2p")
        for name in LONG_NAMES
    ]
    pingpongs = [builders.case(name, "pingpong") for name in LONG_NAMES]
    records: list[Record] = []
    for place, case in enumerate(merges):
        records += launches(case, [0.999 * 2.3**place + 0.03 * n for n in range(6)])
        for src, dst in (("10", "11"), ("11", "10"), ("0", "1")):
            for number in range(3):
                stop = number + 0.123456 * 2.3**place
                records.append(transfer(case, number, stop, 987_654_321, src=src, dst=dst))
            records.append(wire(case, 12_345_678_901 * 3**place, src=src, dst=dst))
        records += [wire(case, 987_654_321, src="1", dst="1"), network(case, 987_654_321_000)]
        records.append(log_count(case, n_started=123_456, n_busy=98_765, n_failed=1))
        records.append(transport(case, "rc_mlx5/mlx5_0:1", evidence=EVIDENCE))
    for place, case in enumerate(pingpongs):
        for launch in range(6):
            records.append(idle(case, 3.999, launch=launch))
            for size in (1, 1023, 65536, 1 << 30):
                seconds = (1e-6 + size / 9.87e9) * (1.9 + place)
                records.append(message(case, seconds, size, launch=launch))
    records.append(failure(merges[3], f"it died; its last words ({LONG_WORD}):\n  Error: 17"))
    return recorded([*merges, *pingpongs], records)


def rendered(content: Run, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the report for a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    return terminal.render(content)


def squeezed(text: str) -> str:
    """Return `text` without what folding may add."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_every_number_stands_whole_on_one_line(
    columns: int, wide: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell of numbers is found in one piece on the first line of its row."""
    lines = iter(rendered(wide, columns, monkeypatch).splitlines())
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
def test_nothing_is_cut_or_shortened(
    columns: int, wide: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line passes the terminal's edge, and no text ends in an ellipsis of rich's making."""
    text = rendered(wide, columns, monkeypatch)
    assert max(map(len, text.splitlines())) <= columns
    ours = sum(
        cell.count("…") for table in tables(wide) for row in table.rows for cell in row
    ) + sum(table.title.count("…") + table.note.count("…") for table in tables(wide))
    assert text.count("…") == ours


@pytest.mark.parametrize("columns", [80, 200])
def test_names_and_prose_are_folded_not_cut(
    columns: int, wide: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every name, evidence and message is there, to the last character, in the order it has."""
    text = rendered(wide, columns, monkeypatch)
    for name in LONG_NAMES:
        assert name.rpartition("+")[2] in text
    failures = text[text.index("Failures") : text.index("Provenance")]
    # The message is the last column: what stands right of its title is the message alone.
    edge = next(line.index("message") for line in failures.splitlines() if "message" in line)
    message = "".join(line[edge:] for line in failures.splitlines()[3:])
    assert squeezed(message) == squeezed(wide.failures["message"].iloc[0])


def test_a_wide_terminal_folds_no_name(wide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room, each backend stands on one line."""
    text = rendered(wide, 200, monkeypatch)
    for name in LONG_NAMES:
        assert re.search(rf"^{re.escape(name)}\s+\d", text, re.MULTILINE)


def test_a_narrow_terminal_is_passed_rather_than_a_number_cut(
    wide: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even the numbers have room, lines are longer than the terminal."""
    assert max(map(len, rendered(wide, 40, monkeypatch).splitlines())) > 40


def test_warnings_come_before_every_table(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line is the heading, the second the contradiction."""
    records = [*launches(CASE, [1.0] * 6), transport(CASE, contradiction="CASE moves over tcp/lo")]
    lines = rendered(recorded([CASE], records), 80, monkeypatch).splitlines()
    assert lines[0].startswith("made-up · 2025-01-01 00:00 UTC")
    assert lines[1] == "⚠ CASE moves over tcp/lo"


@pytest.mark.parametrize("nasty", ["\x1b[2J\x1b[31m", "\x07", "\x9b31m", "\r", "\x00"])
def test_a_results_file_does_not_steer_the_terminal(
    nasty: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control characters of messages, names and warnings don't reach the terminal."""
    case = builders.case(params={"name": nasty})
    records = [
        *launches(case, [1.0] * 6), failure(case, f"a{nasty}b"),
        transport(case, f"a{nasty}b", contradiction=f"a{nasty}b", evidence=f"a{nasty}b"),
        transfer(case, 0, 1, src=f"a{nasty}b"),
    ]  # fmt: skip
    text = rendered(recorded([case], records, started_at=f"a{nasty}b"), 80, monkeypatch)
    assert not re.search(r"[^\n -~\xa0-\U0010ffff]", text)
    assert text.count("�") >= 6


@pytest.mark.parametrize("nasty", ["[bold]", "[/]", "[link=http://x]y[/link]", ":smile:"])
def test_text_is_no_markup(nasty: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like rich's markup is printed as it is."""
    records = [failure(CASE, nasty), transport(CASE, contradiction=nasty)]
    text = rendered(recorded([CASE], records), 80, monkeypatch)
    assert text.count(nasty) == 2


def test_no_colour_where_there_is_no_terminal(wide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that is piped into a file has no escape sequences."""
    assert "\x1b" not in rendered(wide, 80, monkeypatch)


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_on_a_terminal_unless_unwanted(
    variables: dict[str, str], coloured: bool, wide: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal gets colours, and none where NO_COLOR is set; the text is the same."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    plain = rendered(wide, 80, monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = rendered(wide, 80, monkeypatch)
    assert ("\x1b[33m" in text) == coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == plain


def test_many_backends_have_room_side_by_side(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six columns with long names fit into 80, their titles on several lines."""
    names = [*LONG_NAMES, "ucx:tcp+nvlink+ib", "ucx:shm+nvlink+ib"]
    cases = [builders.case(name, "pingpong") for name in names]
    records = [message(case, 123.4e-6, size) for case in cases for size in (1, 1 << 20)]
    lines = rendered(recorded(cases, records), 80, monkeypatch).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.sub(r"\s+", " ", next(line for line in lines if line.startswith("1 MiB"))) == (
        "1 MiB" + " 123 µs" * 6
    )
    for name in names:
        assert any(name.rpartition("+")[2] in line for line in lines)

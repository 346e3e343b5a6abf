"""The Markdown report is GitHub's tables, and nothing in a results file becomes markup."""

from __future__ import annotations

import re
from collections.abc import Callable

import builders
import pytest
from builders import failure, launches, sample, transport

from commbench.analysis.run import Run
from commbench.reports import markdown
from commbench.reports.sections import tables

Recorded = Callable[..., Run]
CASE = builders.case(params={"rows_per_chunk": 1})

NASTY = [
    "<script>alert(1)</script>",
    "a | b || c",
    "one\ntwo\n\nthree\n# four\n- five\n```\nsix",
    "carriage\rreturn\r\nboth",
    "separators \x0b \x0c \x1c \x85 \u2028 \u2029",
    "[click](javascript:alert(1)) ![x](http://y)",
    "`code` *bold* _it_ ~~gone~~ $math$",
    "&lt;b&gt; &amp; &#60;b&#62;",
    "\\| backslash \\",
    "\x1b[31m",
]


def cells(line: str) -> list[str]:
    """Return the cells of a row as GitHub parses it: a backslash keeps a pipe in its cell."""
    assert line.startswith("| ")
    assert line.endswith(" |")
    return re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]


def read_back(cell: str) -> str:
    """Return the text that a reader sees in a cell."""
    text = cell.strip().replace("<br>", "\n")
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]|~$]", text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return re.sub(r"\\(.)", r"\1", text)


def seen(text: str) -> str:
    """Return what of `text` a report may show: lines, without what steers a terminal."""
    shown = re.sub(r"[^\t\n -~\xa0-\U0010ffff]", "�", text.replace("\r\n", "\n"))
    return "\n".join(line.strip() for line in shown.splitlines()).strip()


def test_every_table_is_a_table(recorded: Recorded) -> None:
    """Each line of a table has as many cells as its head; the second line says how to align."""
    cases = [builders.case(name) for name in builders.LONG_NAMES]
    records = [record for case in cases for record in launches(case, [1.0] * 6)]
    content = recorded(cases, [*records, transport(cases[0]), failure(cases[1])])
    text = markdown.render(content)
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(blocks) == len(list(tables(content)))
    for block, table in zip(blocks, tables(content), strict=True):
        head, rules, *rows = block.splitlines()
        assert len(rows) == len(table.rows)
        assert {len(cells(line)) for line in (head, rules, *rows)} == {len(table.columns)}
        assert all(re.fullmatch(r" (:--|--:) ", rule) for rule in cells(rules))
        for line, row in zip(rows, table.rows, strict=True):
            assert [read_back(cell) for cell in cells(line)] == list(row)


def test_titles_are_in_one_piece(recorded: Recorded) -> None:
    """What the terminal breaks into two lines is one title here, without hyphens in words."""
    text = markdown.render(recorded([CASE], [sample(CASE, 1.0), builders.wire(CASE, 1)]))
    assert "| time vs tcp |" in text
    assert "| coverage |" in text
    assert "-\n" not in re.sub(r"\|\n", "", text)


@pytest.mark.parametrize("nasty", NASTY)
def test_a_message_stays_in_its_cell_and_stays_text(nasty: str, recorded: Recorded) -> None:
    """Markup, pipes and line ends of a message don't leave its cell, and are not lost."""
    text = markdown.render(recorded([CASE], [failure(CASE, nasty)]))
    section = text[text.index("## Failures") : text.index("## Provenance")]
    (row,) = (line for line in section.split("\n") if line.startswith("| tcp"))
    assert seen(read_back(cells(row)[3])) == seen(nasty)
    assert len(section.strip().splitlines()) == 5


@pytest.mark.parametrize("nasty", NASTY)
def test_a_warning_stays_a_quotation(nasty: str, recorded: Recorded) -> None:
    """A contradiction, which comes from a file, can't begin a heading or a list of its own."""
    records = [transport(CASE, contradiction=nasty), transport(CASE, contradiction="second")]
    text = markdown.render(recorded([CASE], records))
    head = text[: text.index("\n## ")].strip().split("\n")
    assert head[0].startswith("# made-up")
    assert head[1] == ""
    assert all(line.startswith("> **Warning** ") for line in head[2::2])
    assert all(line == ">" for line in head[3::2])
    first, second = (line.removeprefix("> **Warning** ") for line in head[2:5:2])
    assert read_back(first) == seen(nasty).replace("\n", " ")
    assert second == "second"


@pytest.mark.parametrize("nasty", NASTY)
def test_names_stay_text(nasty: str, recorded: Recorded) -> None:
    """A parameter's value and a CPU's name can't leave their heading either."""
    case = builders.case(params={"name": nasty})
    content = recorded([case], [sample(case, 1.0)], environment={"cpu": {"model": nasty}})
    text = markdown.render(content)
    headings = [line for line in text.split("\n") if line.startswith("#")]
    assert len(headings) == 1 + len(list(tables(content)))
    for heading in headings[:2]:
        assert seen(nasty).replace("\n", " ") in read_back(heading.lstrip("#"))


def test_the_report_ends_in_one_newline(recorded: Recorded) -> None:
    """The file can be concatenated, and has no trailing blank lines."""
    text = markdown.render(recorded([CASE]))
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text

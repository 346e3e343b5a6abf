"""The Markdown report is GitHub's tables, and nothing in a results file becomes markup."""

import re

import builders
import pytest
from builders import failure, sample, transport

from commbench.reports import markdown
from commbench.reports.opening import opening
from commbench.reports.sections import Table, tables

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


def cells(line):
    assert line.startswith("| ")
    assert line.endswith(" |")
    return re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]


def read_back(cell):
    text = cell.strip().replace("<br>", "\n")
    assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]|~$]", text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return re.sub(r"\\(.)", r"\1", text)


def seen(text):
    """Return what of `text` a report may show: lines, without what steers a terminal."""
    shown = re.sub(r"[^\t\n -~\xa0-\U0010ffff]|[\u2028\u2029]", "�", text.replace("\r\n", "\n"))
    return "\n".join(line.strip() for line in shown.splitlines()).strip()


def test_tables_are_those_of_github(recorded):
    cases, records = builders.rivals(dict.fromkeys(builders.LONG_NAMES, [1.0] * 6))
    content = recorded(cases, [*records, transport(cases[0]), failure(cases[1])])
    text = markdown.render(content)
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    shown = [part for part in opening(content) if isinstance(part, Table)]
    for block, table in zip(blocks, [*shown, *tables(content)], strict=True):
        head, rules, *rows = block.splitlines()
        assert len(rows) == len(table.rows)
        assert {len(cells(line)) for line in (head, rules, *rows)} == {len(table.columns)}
        assert all(re.fullmatch(r" (:--|--:) ", rule) for rule in cells(rules))
        for line, row in zip(rows, table.rows, strict=True):
            assert [read_back(cell) for cell in cells(line)] == list(row)


@pytest.mark.parametrize(
    ("line", "shown"),
    [("1. a", r"1\. a"), ("12) a", r"12\) a"), ("# a", r"\# a"), ("- a", r"\- a"), ("1 a", "1 a")],
)
def test_a_line_begins_no_list_or_heading(line, shown):
    assert markdown.page("title", [line], [], []) == f"# title\n\n{shown}\n"


def test_titles_are_not_hyphenated(recorded):
    text = markdown.render(recorded([CASE], [sample(CASE, 1.0), builders.wire(CASE, 1)]))
    assert "| time vs tcp |" in text
    assert "| coverage |" in text
    assert "-\n" not in re.sub(r"\|\n", "", text)


@pytest.fixture(scope="module", params=NASTY)
def nasty_report(recorded, request):
    """Return a text and a report of a run that has it in names, messages and settings."""
    nasty = request.param
    case = builders.case(params={"name": nasty})
    records = [
        sample(case, 1.0), failure(case, nasty), transport(case, contradiction=nasty),
        transport(case, contradiction="second"),
    ]  # fmt: skip
    run = recorded([case], records, environment={"cpu": {"model": nasty}})
    return nasty, markdown.render(run), len(list(tables(run)))


def test_a_message_stays_text_in_its_cell(nasty_report):
    nasty, text, _ = nasty_report
    section = text[text.index("## Failures") : text.index("## Provenance")]
    (row,) = (line for line in section.split("\n") if line.startswith("| tcp"))
    assert seen(read_back(cells(row)[3])) == seen(nasty)
    assert len(section.strip().splitlines()) == 5


@pytest.mark.parametrize("nasty", NASTY)
def test_a_warning_stays_a_quotation(nasty):
    head = markdown.page("made-up", [], [nasty, "second"], []).strip().split("\n")
    assert head[:2] == ["# made-up", ""]
    quoted = head[head.index(next(line for line in head if line.startswith(">"))) :]
    assert all(line.startswith("> **Warning** ") for line in quoted[::2])
    assert all(line == ">" for line in quoted[1::2])
    first, second = (line.removeprefix("> **Warning** ") for line in quoted[:3:2])
    assert read_back(first) == seen(nasty).replace("\n", " ")
    assert second == "second"


def test_names_stay_text_in_their_heading(nasty_report):
    nasty, text, n_tables = nasty_report
    headings = [line for line in text.split("\n") if line.startswith("#")]
    assert len(headings) == 1 + n_tables
    for heading in (headings[0], headings[2]):
        assert seen(nasty).replace("\n", " ") in read_back(heading.lstrip("#"))


def test_a_report_ends_in_one_newline_and_has_no_two_blank_lines(recorded):
    text = markdown.render(recorded([CASE]))
    assert text.endswith("\n")
    assert "\n\n\n" not in f"{text}\n"

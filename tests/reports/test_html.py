"""The HTML report says what the terminal says, loads nothing and runs its own script only."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib.metadata import EntryPoint
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import builders
import pytest
from builders import end, failure, launches, sample, transfer, transport

from commbench.analysis.run import Run
from commbench.model import ClusterSpec, registry
from commbench.reports import figures, html
from commbench.reports.html import pair_matrix
from commbench.reports.sections import Table, heading, sections

Recorded = Callable[..., Run]
CASE = builders.case()
EMPTY = ("meta", "link", "img")
"""Elements without an end."""
NASTY = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "\" onmouseover=\"alert(1)",
    "' autofocus onfocus='alert(1)",
    "<!-- comment", "]]>", "&lt;b&gt; &amp; &#60;", "{{ 7 * 7 }} {% raw %}",
]  # fmt: skip


class _Page(HTMLParser):
    """Makes a tree of a page in which every element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = ElementTree.TreeBuilder()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), tag
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in EMPTY:
            self.builder.end(tag)
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.builder.data(data)


def parsed(text: str) -> Element:
    """Return the page as a tree."""
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page.builder.close()


def words(element: Element) -> str:
    """Return the text of an element and of those in it."""
    return "".join(element.itertext()).strip()


def data_tables(page: Element) -> dict[str, Element]:
    """Return the tables of numbers by their captions."""
    found = [table for table in page.iter("table") if table.get("class") == "data"]
    assert all(table[0].tag == "caption" for table in found)
    return {words(table[0]): table for table in found}


def cells(table: Element) -> list[list[Element]]:
    """Return the cells of a table's body, row by row."""
    body = table.find("tbody")
    assert body is not None
    return [list(row) for row in body]


def every_table(content: Run) -> list[Table]:
    """Return the tables that the HTML report should have."""
    made = ((section.page_tables or section.tables)(content) for section in sections())
    return list(itertools.chain(*made))


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the time of drawing, but for the tests of figures."""
    names = registry.names
    monkeypatch.setattr(registry, "names", lambda kind: [] if kind == "plot" else names(kind))


@pytest.fixture(scope="module")
def full(recorded: Recorded) -> Run:
    """Return a run with every table but all-to-all's."""
    merges = [builders.case(name, n_workers=3) for name in ("tcp", "ucx", "mpi")]
    pings = [builders.case(name, "pingpong") for name in ("tcp", "ucx")]
    records = []
    for place, case in enumerate(merges):
        records += launches(case, [0.5 * 1.7**place + 0.01 * n for n in range(6)])
        for src, dst in itertools.permutations("012", 2):
            seconds = 0.01 * (1 + place + int(src))
            records += [transfer(case, 0, seconds, src=src, dst=dst, launch=n) for n in range(6)]
            records.append(builders.wire(case, 8_000_000, src=src, dst=dst))
        records += [builders.log_count(case, n_started=18), transport(case, "sysv/memory")]
    for case in pings:
        for launch, size, layer in itertools.product(range(6), (1, 1 << 20), ("raw", "comm")):
            records.append(message(case, size, layer, launch))
    records.append(failure(merges[2], "it died\nof something", launch=6))
    return recorded([*merges, *pings], builders.ended(records))


def message(case: object, size: int, layer: str, launch: int) -> object:
    """Return a sample of a ping-pong whose layers and launches differ a little."""
    seconds = (1e-5 + size / 1e9) * (1 + 0.001 * launch) * (2 if layer == "comm" else 1)
    return builders.message(case, seconds, size, layer=layer, launch=launch)  # type: ignore[arg-type]


def test_every_table_has_the_terminals_numbers(full: Run) -> None:
    """Captions, titles, cells and notes are those of the tables that the terminal shows."""
    page = parsed(html.render(full))
    found, expected = data_tables(page), every_table(full)
    assert [*found] == [table.title for table in expected]
    notes = {element.get("id"): words(element) for element in page.iter("p")}
    for table, element in zip(expected, found.values(), strict=True):
        assert [words(title) for title in element.iter("th") if title.get("scope") == "col"] == [
            *table.titles
        ]
        shown = [[words(cell) for cell in row] for row in cells(element)]
        for row, wanted in zip(shown, table.rows, strict=True):
            assert row[1:] == [cell.strip() for cell in wanted[1:]]
            assert row[0] == wanted[0] or not wanted[0]
        if table.note:
            assert notes[element.get("aria-describedby")] == table.note.strip()
    assert words(next(page.iter("h1"))) == heading(full)


def test_a_cell_that_says_as_above_is_told_in_full(full: Run) -> None:
    """Rows can be sorted: what the terminal leaves out of the first column stands here."""
    (table,) = (t for c, t in data_tables(parsed(html.render(full))).items() if "each layer" in c)
    assert [words(row[0]) for row in cells(table)] == ["1 B", "1 B", "1 MiB", "1 MiB"]


def test_numbers_are_sorted_by_their_exact_values(full: Run) -> None:
    """Each number has the value that it was rounded from, or none where it is unknown."""
    found = data_tables(parsed(html.render(full)))
    (times,) = (table for title, table in found.items() if title.endswith("time per iteration"))
    medians = full.summaries.loc[full.summaries["layer"] == "workload", "median_s"]
    assert [float(row[1].get("data-value", "")) for row in cells(times)] == list(medians)
    (coverage,) = (table for title, table in found.items() if title.startswith("Coverage"))
    assert [words(row[3]) for row in cells(coverage)] == ["600.0%"] * 3
    assert {row[3].get("data-value") for row in cells(coverage)} == {"6.0"}
    assert {row[0].get("data-value") for row in cells(times)} == {None}


def test_an_unknown_number_has_no_value(recorded: Recorded) -> None:
    """What is a dash or has no interval is sorted last, not as zero."""
    page = parsed(html.render(recorded([CASE], builders.ended([sample(CASE, 1.0)]))))
    ((backend, median, interval, ratio, payload, cpu, idle),) = cells(
        next(table for title, table in data_tables(page).items() if "per iteration" in title)
    )
    assert [words(cell) for cell in (interval, cpu, idle)] == ["none", "—", "—"]
    assert [cell.get("data-value") for cell in (interval, cpu, idle)] == ["", "", ""]
    assert (words(backend), median.get("data-value"), ratio.get("data-value")) == (
        "tcp", "1.0", "1.0"
    )  # fmt: skip
    assert payload.get("data-value") == "800000000.0"


def test_the_file_needs_nothing_else(full: Run) -> None:
    """Nothing is loaded: addresses are images in the file or places on the page."""
    text = html.render(full)
    for element in parsed(text).iter():
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert re.match(r"data:|#", element.get(name, "#")), (element.tag, element.attrib)
        assert not any(name.startswith("on") for name in element.attrib)
    assert not re.search(r"@import|url\(|https?://|fetch\(|import\(", text)


def test_no_script_but_its_own_may_run(full: Run) -> None:
    """The page's policy allows one script, by its hash, and no address to load from."""
    page = parsed(html.render(full))
    (script,) = page.iter("script")
    digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    (policy,) = (
        meta.get("content", "") for meta in page.iter("meta") if "http-equiv" in meta.attrib
    )
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def nasty_run(recorded: Recorded, nasty: str) -> Run:
    """Return a run with `nasty` wherever a results file can bring it in."""
    case = builders.case(nasty, params={"name": nasty}, cluster=ClusterSpec(n_workers=2))
    src, dst = f"{nasty}0", f"{nasty}1"
    records = [
        *launches(case, [1.0] * 6), failure(case, nasty, launch=9),
        transfer(case, 0, 1, src=src, dst=dst), transfer(case, 0, 1, src=dst, dst=src),
        transport(case, nasty, src=src, dst=dst, evidence=nasty, contradiction=nasty),
    ]  # fmt: skip
    known = {"cpu": {"model": nasty}, "packages": {"dask": nasty}, "variables": {"UCX": nasty}}
    return recorded([case], records, environment=known, command=nasty)


@pytest.fixture(scope="module")
def plain(recorded: Recorded) -> Run:
    """Return the run that has harmless text in all of these places."""
    return nasty_run(recorded, "plain")


@pytest.mark.parametrize("nasty", NASTY)
def test_whatever_a_results_file_holds_stays_text(
    nasty: str, recorded: Recorded, plain: Run
) -> None:
    """Names of hosts and backends, messages and settings add no element and no attribute."""
    page, wanted = (parsed(html.render(made)) for made in (nasty_run(recorded, nasty), plain))
    assert [(element.tag, sorted(element.attrib)) for element in page.iter()] == [
        (element.tag, sorted(element.attrib)) for element in wanted.iter()
    ]
    assert nasty in words(next(page.iter("h1")))
    (failures,) = (table for title, table in data_tables(page).items() if title == "Failures")
    assert words(cells(failures)[0][3]) == nasty
    labels = {cell.get("aria-label", "") for cell in page.iter("td")}
    assert any(
        f"{nasty}0 → {nasty}1" in label and f"transport {nasty}" in label for label in labels
    )


def test_what_no_file_can_hold_is_replaced(recorded: Recorded, tmp_path: Path) -> None:
    """Control characters and halves of characters don't keep the report from being written."""
    known = {"cpu": {"model": "a\ud800b"}}
    text = html.render(recorded([CASE], [failure(CASE, "b\x00c\x1bd")], environment=known))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    assert "a\ufffdb" in text
    assert "b\ufffdc\ufffdd" in text


def levels(page: Element) -> Iterator[int]:
    """Yield the levels of the page's headings."""
    for element in page.iter():
        if re.fullmatch(r"h\d", element.tag):
            yield int(element.tag[1])


RUNS = {
    "empty": lambda: [],
    "failures only": lambda: [failure(CASE, launch=n) for n in range(2)] + [end(CASE, ok=False)],
    "single sample": lambda: builders.ended([sample(CASE, 1.0)]),
    "one transfer": lambda: [transfer(CASE, 0, 1)],
    "a transfer without duration": lambda: [transfer(CASE, 1, 1)],
}


@pytest.mark.parametrize("made", RUNS.values(), ids=RUNS)
def test_a_run_of_any_kind_is_a_sound_page(made: Callable[[], list], recorded: Recorded) -> None:
    """With little or nothing measured the page still has its parts, and nothing dangles."""
    check_structure(html.render(recorded([CASE], made())))


def test_a_full_run_is_a_sound_page(full: Run) -> None:
    """Headings, landmarks, captions and references are what assistive software goes by."""
    check_structure(html.render(full))


def check_structure(text: str) -> None:
    """Check what assistive software relies on."""
    assert text.startswith("<!DOCTYPE html>")
    page = parsed(text)
    assert page.get("lang") == "en"
    found = [*levels(page)]
    assert found[0] == 1
    assert found.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(found))
    for landmark in ("header", "nav", "main", "footer"):
        assert len([*page.iter(landmark)]) == 1
    ids = [element.get("id") for element in page.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for element in page.iter():
        named = element.get("aria-labelledby", "") + " " + element.get("aria-describedby", "")
        named += element.get("href", "").partition("#")[2] if element.tag == "a" else ""
        assert {*named.split()} <= {*ids}
        if element.tag == "th":
            assert element.get("scope") in ("row", "col")
        if element.tag == "table":
            assert words(element[0])
        if element.tag == "img":
            assert element.get("alt")
    titles = [words(title) for title in page.iter("h2")]
    assert titles[0] == "Warnings"
    assert titles[-1] == "Provenance"
    assert "Failures" not in titles or titles[-2] == "Failures"


def test_warnings_come_first(full: Run) -> None:
    """All warnings stand in the first section, and the list of sections counts them."""
    page = parsed(html.render(full))
    first = next(element for element in page.iter("section"))
    assert [words(item) for item in first.iter("li")] == [text.strip() for text in full.warnings]
    assert words(next(page.iter("li"))) == f"Warnings ({len(full.warnings)})"


def pair_cells(content: Run) -> dict[str, list[list[pair_matrix.Cell]]]:
    """Return the cells of the only block's matrices by backend."""
    (block,) = pair_matrix.blocks(content)
    return {found.backend: [list(row) for _, row in found.rows] for found in block.matrices}


def test_a_matrix_tells_of_every_pair(full: Run) -> None:
    """A cell has the numbers of the pair's row in the terminal, its direction and its transport."""
    found = pair_cells(full)
    assert [*found] == ["tcp", "ucx", "mpi"]
    (table,) = (t for t in every_table(full) if t.title.startswith("Bandwidth per pair"))
    assert len(table.rows) == 18
    for backend, pair, n, nbytes, q25, q50, q75, *_ in table.rows:
        src, dst = pair.split(" → ")
        cell = found[backend.split()[-1]][int(src)][int(dst)]
        transport_of = "sysv/memory" if (src, dst) == ("0", "1") else "not recorded"
        assert cell.description.splitlines() == [
            pair, f"median {q50} GB/s", f"25 %: {q25}, 75 %: {q75} GB/s",
            f"{n} transfers, {nbytes}", f"transport {transport_of}",
        ]  # fmt: skip
        assert cell.text == q50
    assert {rows[i][i].kind for rows in found.values() for i in range(3)} == {"self"}


def test_a_matrix_shows_what_is_missing(recorded: Recorded) -> None:
    """Pairs and backends without transfers, and unseen workers, are told and not left out."""
    cases = [builders.case(name, n_workers=4) for name in ("tcp", "ucx")]
    records = [transfer(cases[0], 0, 1), transfer(cases[0], 0, 0, src="0", dst="2")]
    content = recorded(cases, records)
    (block,) = pair_matrix.blocks(content)
    ((_, *_),) = (found.rows for found in block.matrices)
    rows = pair_cells(content)["tcp"]
    assert [[cell.kind for cell in row] for row in rows] == [
        ["self", "pair", "untimed"], ["none", "self", "none"], ["none", "none", "self"]
    ]  # fmt: skip
    assert rows[1][0].description == "1 → 0\nno transfer ≥ 1.00 MB"
    assert "median — GB/s" in rows[0][2].description
    assert block.silent == ("ucx",)
    assert "1 of 4 workers were seen in no transfer" in block.note
    assert "ucx: no such transfer was logged." in html.render(content)


def test_a_slow_pair_stands_out(recorded: Recorded) -> None:
    """The cell of a slow pair is marked, and says how slow it is."""
    case = builders.case(n_workers=4)
    records = [
        transfer(case, 0, 0.8 if (src, dst) == ("1", "3") else 0.1, src=src, dst=dst)
        for src, dst in itertools.permutations("0123", 2)
    ]
    rows = pair_cells(recorded([case], records))["tcp"]
    assert [
        (i, j) for i in range(4) for j in range(4) if rows[i][j].kind == "slow"
    ] == [(1, 3)]  # fmt: skip
    assert "slow: 8.0 × slower than the typical pair" in rows[1][3].description


def large(n_workers: int, recorded: Recorded, slow: tuple[int, int] = (3, 5)) -> Run:
    """Return a run in which each worker has fetched from its next three."""
    case = builders.case(n_workers=n_workers)
    records = [
        transfer(
            case, 0, 0.8 if (src, dst) == slow else 0.1 + 1e-5 * src, 10**7,
            src=f"w-{src}", dst=f"w-{dst}",
        )
        for src in range(n_workers)
        for dst in (src + 1, src + 2, src + 3)
        if dst < n_workers
    ]  # fmt: skip
    return recorded([case], records)


def test_up_to_64_workers_each_pair_has_a_cell(recorded: Recorded) -> None:
    """No cell is shared before it must be."""
    content = large(64, recorded)
    ((rows),) = pair_cells(content).values()
    assert len(rows) == 64
    assert sum(cell.kind in ("pair", "slow") for row in rows for cell in row) == len(content.pairs)


def test_beyond_64_workers_pairs_share_cells_and_none_is_lost(recorded: Recorded) -> None:
    """Each cell counts its pairs, with transfers and without, and names the slowest."""
    content = large(130, recorded)
    (block,) = pair_matrix.blocks(content)
    assert "130 workers: up to 3 × 3 pairs share a cell" in block.note
    assert "--format json" in block.note
    ((rows),) = pair_cells(content).values()
    assert len(rows) == 44
    told = "\n".join(cell.description for row in rows for cell in row)
    counted = [int(n) for n in re.findall(r"^(\d+) pairs?: ", told, re.MULTILINE)]
    assert sum(counted) == len(content.pairs) == 3 * 130 - 6
    fetched = re.findall(r"^\d+ pairs?: (\d+) transfer", told, re.MULTILINE)
    assert sum(map(int, fetched)) == content.pairs["n"].sum()
    first = rows[0][0]
    assert first.description.splitlines()[:4] == [
        "w-0 … w-2 → w-0 … w-2", "3 pairs: 3 transfers, 30.0 MB",
        "3 more without a transfer ≥ 1.00 MB", "the slowest is w-1 → w-2:",
    ]  # fmt: skip
    (slow,) = (cell for row in rows for cell in row if cell.kind == "slow")
    assert slow is rows[1][1]
    assert "1 of them slow\nthe slowest is w-3 → w-5:" in slow.description
    assert rows[0][20].description == "w-0 … w-2 → w-60 … w-62\nno transfer ≥ 1.00 MB"


def test_very_many_matrices_share_the_room(recorded: Recorded) -> None:
    """However many cases a run has, the file stays of a size that opens at once."""
    cases = [builders.case(params={"rows": n}, n_workers=40) for n in range(30)]
    records = [
        transfer(case, 0, 0.1, src=str(src), dst=str(src + 1))
        for case in cases
        for src in range(39)
    ]
    content = recorded(cases, records)
    found = pair_matrix.blocks(content)
    assert len(found) == 30
    n_cells = sum(
        len(m.rows) * len(row) for b in found for m in b.matrices for _, row in m.rows[:1]
    )
    assert n_cells <= 4 * 64**2
    assert len(html.render(content)) < 8_000_000


def test_more_pairs_have_rows_than_on_the_terminal(recorded: Recorded) -> None:
    """Whoever can sort sees 250 pairs, and is told of the others."""
    case = builders.case(n_workers=17)
    records = [
        transfer(case, 0, 0.1 + 0.01 * place, src=src, dst=dst)
        for place, (src, dst) in enumerate(itertools.permutations(map(str, range(17)), 2))
    ]
    page = parsed(html.render(recorded([case], records)))
    (table,) = (t for title, t in data_tables(page).items() if title.startswith("Bandwidth per"))
    assert len(cells(table)) == 250
    assert "The 250 slowest of 272 pairs. The format json has all." in words(page)


@pytest.fixture
def plotted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs these kinds of figure and no other."""

    def install(**kinds: str) -> None:
        points = {
            name.replace("_", "-"): EntryPoint(name, value, "commbench.plots")
            for name, value in kinds.items()
        }
        load, names = registry.load, registry.names
        monkeypatch.setattr(
            registry, "names", lambda kind: sorted(points) if kind == "plot" else names(kind)
        )
        monkeypatch.setattr(
            registry,
            "load",
            lambda kind, name: points[name].load() if kind == "plot" else load(kind, name),
        )

    return install


def fails(data: object) -> None:
    """Stand for a figure that can't be drawn."""
    raise ZeroDivisionError("no <data>")


def test_figures_are_images_in_the_file(recorded: Recorded, plotted: Callable[..., None]) -> None:
    """A figure stands in the section of its subject, as an image with its title in words."""
    plotted(workload_time="commbench.reports.figures.iteration_figures:plot_times")
    content = recorded([CASE], launches(CASE, [1.0] * 6))
    page = parsed(html.render(content))
    (section,) = (s for s in page.iter("section") if s.get("id") == "time-per-iteration")
    (image,) = section.iter("img")
    kind, _, encoded = image.get("src", "").partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(encoded) == figures.drawn(content)[0].svg
    assert "\n" not in image.get("alt", "\n")
    assert image.get("alt", "").startswith(figures.drawn(content)[0].figure.get_suptitle()[:20])


def test_a_figure_of_very_many_lines_is_shown_as_pixels(
    recorded: Recorded, plotted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a browser would draw for seconds is an image of pixels instead."""
    plotted(workload_time="commbench.reports.figures.iteration_figures:plot_times")
    monkeypatch.setattr(html, "_MAX_SVG", 100)
    (image,) = parsed(html.render(recorded([CASE], launches(CASE, [1.0] * 6)))).iter("img")
    assert image.get("src", "").startswith("data:image/png;base64,")


def test_a_figure_that_cannot_be_drawn_is_told(
    recorded: Recorded, plotted: Callable[..., None]
) -> None:
    """A plug-in's figure that fails costs itself alone, and is not left out in silence."""
    ours = "commbench.reports.figures.iteration_figures:plot_times"
    plotted(theirs=f"{__name__}:fails", workload_time=ours)
    page = parsed(html.render(recorded([CASE], launches(CASE, [1.0] * 6))))
    assert len([*page.iter("img")]) == 1
    (section,) = (s for s in page.iter("section") if s.get("id") == "more-figures")
    assert "the figure theirs could not be drawn: ZeroDivisionError('no <data>')" in words(section)


def test_the_same_run_gives_the_same_bytes(full: Run) -> None:
    """A report can be compared with an older one."""
    assert html.render(full) == html.render(full)

"""The HTML report says what the terminal says, loads nothing and runs its own script only."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import builders
import pytest
from builders import end, failure, launches, sample, transfer, transport

from commbench.model import ClusterSpec
from commbench.reports import figures, html
from commbench.reports.figures.iteration_figures import plot_times
from commbench.reports.html import pair_matrix
from commbench.reports.opening import opening
from commbench.reports.sections import heading, sections

pytestmark = pytest.mark.usefixtures("no_figures")
CASE = builders.case()
EMPTY = ("meta", "link", "img", "source")
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

    def __init__(self):
        super().__init__()
        self.builder = ElementTree.TreeBuilder()
        self.open = []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), tag
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in EMPTY:
            self.builder.end(tag)
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data):
        if self.open:
            self.builder.data(data)


def parsed(text):
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page.builder.close()


def words(element):
    return "".join(element.itertext()).strip()


def data_tables(page):
    """Return the tables of numbers by their captions, without those of the summary."""
    tables = [
        table
        for table in page.iter("table")
        if table.get("class") == "data" and not table.get("id").startswith("opening")
    ]
    assert all(table[0].tag == "caption" for table in tables)
    return {words(table[0]): table for table in tables}


def data_table(page, caption):
    (table,) = (table for title, table in data_tables(page).items() if caption in title)
    return table


def cells(table):
    body = table.find("tbody")
    assert body is not None
    return [list(row) for row in body]


def every_table(content):
    made = ((section.page_tables or section.tables)(content) for section in sections())
    return list(itertools.chain(*made))


@pytest.fixture(scope="module")
def full(recorded):
    """Return a run with every table but all-to-all's."""
    merges = [builders.case(name, n_workers=3) for name in ("tcp", "ucx", "mpi")]
    pings = [builders.case(name, "pingpong") for name in ("tcp", "ucx")]
    records = [failure(merges[2], "it died\nof something", launch=6)]
    for i, case in enumerate(merges):
        records += launches(case, [0.5 * 1.7**i + 0.01 * n for n in range(6)])
        for src, dst in itertools.permutations("012", 2):
            seconds = 0.01 * (1 + i + int(src))
            records += [transfer(case, 0, seconds, src=src, dst=dst, launch=n) for n in range(6)]
            records.append(builders.wire(case, 8_000_000, src=src, dst=dst))
        records += [builders.log_count(case, n_started=18), transport(case, "sysv/memory")]
    sizes, layers = (1, 1 << 20), {"raw": 1, "comm": 2}
    for case, launch, size, layer in itertools.product(pings, range(6), sizes, layers):
        seconds = (1e-5 + size / 1e9) * (1 + 0.001 * launch) * layers[layer]
        records.append(builders.message(case, seconds, size, layer=layer, launch=launch))
    return recorded([*merges, *pings], builders.ended(records))


@pytest.fixture(scope="module")
def page(full):
    return parsed(html.render(full))


def test_every_table_has_the_numbers_of_the_terminal(full, page):
    tables, expected = data_tables(page), every_table(full)
    assert [*tables] == [table.title for table in expected]
    notes = {element.get("id"): words(element) for element in page.iter("p")}
    for table, element in zip(expected, tables.values(), strict=True):
        columns = [words(title) for title in element.iter("th") if title.get("scope") == "col"]
        assert columns == [*table.titles]
        rows = [[words(cell) for cell in row] for row in cells(element)]
        for row, wanted in zip(rows, table.rows, strict=True):
            assert row[1:] == [cell.strip() for cell in wanted[1:]]
            assert row[0] == wanted[0] or not wanted[0]
        if table.note:
            assert notes[element.get("aria-describedby")] == table.note.strip()
    assert words(next(page.iter("h1"))) == heading(full)


def test_blank_first_cells_are_filled_because_rows_can_be_sorted(page):
    rows = cells(data_table(page, "each layer"))
    assert [words(row[0]) for row in rows] == ["1 B", "1 B", "1 MiB", "1 MiB"]


def test_sort_keys_are_exact_values(full, page):
    times = cells(data_table(page, "time per iteration"))
    medians = full.summaries.loc[full.summaries["layer"] == "workload", "median_s"]
    assert [float(row[1].get("data-value", "")) for row in times] == list(medians)
    assert {row[0].get("data-value") for row in times} == {None}
    coverage = cells(data_table(page, "Coverage"))
    assert [words(row[3]) for row in coverage] == ["100.0%"] * 3
    assert {row[3].get("data-value") for row in coverage} == {"1.0"}


def test_an_unknown_number_has_an_empty_sort_key(recorded):
    page = parsed(html.render(recorded([CASE], builders.ended([sample(CASE, 1.0)]))))
    (row,) = cells(data_table(page, "per iteration"))
    assert [words(row[i]) for i in (0, 2, 4, 6)] == ["tcp", "none", "—", "—"]
    keys = [cell.get("data-value") for cell in row[1:]]
    assert keys == ["1.0", "", "1.0", "", "2.0", ""]


def test_the_page_loads_nothing(full, page):
    for element in page.iter():
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert re.match(r"data:|#", element.get(name, "#")), (element.tag, element.attrib)
        assert not any(name.startswith("on") for name in element.attrib)
    assert not re.search(r"@import|url\(|https?://|fetch\(|import\(", html.render(full))


def test_the_policy_allows_one_script_by_its_hash(page):
    (script,) = page.iter("script")
    digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    (policy,) = (meta.get("content") for meta in page.iter("meta") if "http-equiv" in meta.attrib)
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def nasty_run(recorded, nasty):
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
def plain_elements(recorded):
    return elements(parsed(html.render(nasty_run(recorded, "plain"))))


def elements(page):
    return [(element.tag, sorted(element.attrib)) for element in page.iter()]


@pytest.mark.parametrize("nasty", NASTY)
def test_text_of_a_results_file_adds_no_element_and_no_attribute(nasty, recorded, plain_elements):
    page = parsed(html.render(nasty_run(recorded, nasty)))
    assert elements(page) == plain_elements
    assert nasty in words(next(page.iter("h1")))
    assert words(cells(data_table(page, "Failures"))[0][3]) == nasty
    labels = {cell.get("aria-label", "") for cell in page.iter("td")}
    pair, carrier = f"{nasty}0 → {nasty}1", f"transport {nasty}"
    assert any(pair in label and carrier in label for label in labels)


def test_surrogates_and_control_characters_are_replaced(recorded, tmp_path):
    known = {"cpu": {"model": "a\ud800b"}}
    text = html.render(recorded([CASE], [failure(CASE, "b\x00c\x1bd")], environment=known))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    assert "a\ufffdb" in text
    assert "b\ufffdc\ufffdd" in text


@pytest.mark.parametrize(
    "records",
    [
        [], [failure(CASE), failure(CASE, launch=1), end(CASE, ok=False)],
        builders.ended([sample(CASE, 1.0)]), [transfer(CASE, 0, 1)], [transfer(CASE, 1, 1)],
    ],
    ids=["empty", "failures only", "single sample", "one transfer", "untimed transfer"],
)  # fmt: skip
def test_structure_of_the_page_of_a_small_run(records, recorded):
    check_structure(parsed(html.render(recorded([CASE], records))))


def test_structure_of_the_page_of_a_full_run(page):
    check_structure(page)


def check_structure(page):
    """Check what assistive software relies on."""
    assert page.get("lang") == "en"
    tags = [element.tag for element in page.iter()]
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert tags.count(landmark) == 1
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
    assert titles[0] in ("Summary", "Warnings")
    assert titles[-1] == "Provenance"
    assert "Failures" not in titles or titles[-2] == "Failures"


def test_the_verdict_and_the_warnings_come_first(full, page):
    assert html.render(full).startswith("<!DOCTYPE html>")
    verdict = next(element for element in page.iter("p") if element.get("class") == "verdict")
    first, *more = next(opening(full)).splitlines()
    assert words(verdict) == first
    assert all(line in words(page) for line in more)
    summary, warnings, *_ = page.iter("section")
    assert summary.get("id") == "opening"
    assert [words(item) for item in warnings.iter("li")] == [text.strip() for text in full.warnings]
    assert not any(text in words(summary) for text in full.warnings)


def test_the_summary_repeats_no_table_of_a_section(recorded):
    case = builders.case(workload="all-to-all", n_workers=3)
    records = [sample(case, 1.0, layer="alone", launch=n) for n in range(6)]
    records += [transfer(case, 0, 1, launch=n) for n in range(6)]
    run = recorded([case], builders.ended(records))
    titles = [words(title) for title in parsed(html.render(run)).iter("caption")]
    assert titles.count("all-to-all, one pair at a time") == 1


def pair_cells(content):
    (block,) = pair_matrix.blocks(content)
    return {matrix.backend: [list(row) for _, row in matrix.rows] for matrix in block.matrices}


def test_cells_of_a_matrix_have_the_numbers_of_their_pair(full):
    matrices = pair_cells(full)
    assert [*matrices] == ["tcp", "ucx", "mpi"]
    (table,) = (t for t in every_table(full) if t.title.startswith("Bandwidth per pair"))
    assert len(table.rows) == 18
    for backend, pair, n, nbytes, q25, q50, q75, *_ in table.rows:
        src, dst = pair.split(" → ")
        cell = matrices[backend.split()[-1]][int(src)][int(dst)]
        carrier = "sysv/memory" if (src, dst) == ("0", "1") else "not recorded"
        assert cell.description.splitlines() == [
            pair, f"median {q50} GB/s", f"25 %: {q25}, 75 %: {q75} GB/s",
            f"{n} transfers, {nbytes}", f"transport {carrier}",
        ]  # fmt: skip
        assert cell.text == q50
    assert {rows[i][i].kind for rows in matrices.values() for i in range(3)} == {"self"}


def test_a_matrix_shows_pairs_and_backends_without_transfers(recorded):
    cases = [builders.case(name, n_workers=4) for name in ("tcp", "ucx")]
    records = [transfer(cases[0], 0, 1), transfer(cases[0], 0, 0, src="0", dst="2")]
    content = recorded(cases, records)
    (block,) = pair_matrix.blocks(content)
    rows = pair_cells(content)["tcp"]
    assert [[cell.kind for cell in row] for row in rows] == [
        ["self", "pair", "untimed"], ["none", "self", "none"], ["none", "none", "self"]
    ]  # fmt: skip
    assert rows[1][0].description == "1 → 0\nno transfer ≥ 1.00 MB"
    assert "median — GB/s" in rows[0][2].description
    assert block.silent == ("ucx",)
    assert "1 of 4 workers were seen in no transfer" in block.note
    assert "ucx: no such transfer was logged." in html.render(content)


def large(n_workers, recorded, slow=(3, 5)):
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
    return recorded([case], 3 * records)


def test_up_to_64_workers_each_pair_has_a_cell(recorded):
    content = large(64, recorded)
    ((rows),) = pair_cells(content).values()
    assert len(rows) == 64
    assert sum(cell.kind in ("pair", "slow") for row in rows for cell in row) == len(content.pairs)


def test_beyond_64_workers_several_pairs_share_a_cell(recorded):
    content = large(130, recorded)
    (block,) = pair_matrix.blocks(content)
    assert "130 workers: up to 3 × 3 pairs share a cell" in block.note
    assert "--format json" in block.note
    ((rows),) = pair_cells(content).values()
    assert len(rows) == 44
    text = "\n".join(cell.description for row in rows for cell in row)
    counts = re.findall(r"^(\d+) pairs?: (\d+) transfer", text, re.MULTILINE)
    assert sum(int(n_pairs) for n_pairs, _ in counts) == len(content.pairs) == 3 * 130 - 6
    assert sum(int(n_transfers) for _, n_transfers in counts) == content.pairs["n"].sum()
    first = rows[0][0]
    assert first.description.splitlines()[:4] == [
        "w-0 … w-2 → w-0 … w-2", "3 pairs: 9 transfers, 90.0 MB",
        "3 more without a transfer ≥ 1.00 MB", "the slowest is w-1 → w-2:",
    ]  # fmt: skip
    (slow,) = (cell for row in rows for cell in row if cell.kind == "slow")
    assert slow is rows[1][1]
    assert "1 of them slow\nthe slowest is w-3 → w-5:" in slow.description
    assert rows[0][20].description == "w-0 … w-2 → w-60 … w-62\nno transfer ≥ 1.00 MB"


def test_the_number_of_cells_of_many_matrices_is_limited(recorded):
    cases = [builders.case(params={"rows": n}, n_workers=40) for n in range(12)]
    assert len(cases) * 40**2 > 4 * 64**2
    records = [
        transfer(case, 0, 0.1, src=str(src), dst=str(src + 1))
        for case, src in itertools.product(cases, range(39))
    ]
    content = recorded(cases, records)
    matrices = [matrix for block in pair_matrix.blocks(content) for matrix in block.matrices]
    assert len(matrices) == 12
    assert sum(len(row) for matrix in matrices for _, row in matrix.rows) <= 4 * 64**2
    # As many cells of 30 matrices are a file that opens at once.
    assert len(html.render(content)) < 8_000_000


def test_the_250_slowest_pairs_have_rows(recorded):
    case = builders.case(n_workers=17)
    records = [
        transfer(case, 0, 0.1 + 0.01 * i, src=src, dst=dst)
        for i, (src, dst) in enumerate(itertools.permutations(map(str, range(17)), 2))
    ]
    page = parsed(html.render(recorded([case], records)))
    assert len(cells(data_table(page, "Bandwidth per"))) == 250
    assert "The 250 slowest of 272 pairs. The format json has all." in words(page)


@pytest.fixture
def plotted(installed, recorded):
    """Return a function that renders a run with these kinds of figure and no other."""

    def render(kinds):
        installed("plot", kinds)
        run = recorded([CASE], launches(CASE, [1.0] * 6))
        return run, parsed(html.render(run))

    return render


def fails(data):
    raise ZeroDivisionError("no <data>")


def test_figures_are_images_the_first_in_the_summary_others_in_their_section(plotted):
    run, page = plotted({"workload-time": plot_times, "theirs": plot_times})
    images = {
        section.get("id"): image
        for section in page.iter("section")
        for image in section.iter("img")
    }
    assert [*images] == ["opening", "more-figures"]
    assert "█" not in words(page)
    image = images["opening"]
    kind, _, encoded = image.get("src", "").partition(",")
    assert kind == "data:image/svg+xml;base64"
    drawing = next(each for each in figures.drawn(run) if each.name == "workload-time")
    assert base64.b64decode(encoded) == drawing.svg
    assert "\n" not in image.get("alt", "\n")
    assert image.get("alt", "").startswith(drawing.figure.get_suptitle()[:20])


def test_a_run_that_was_killed_in_its_first_launch_has_its_figure(installed, recorded):
    installed("plot", {"workload-time": plot_times})
    run = recorded([CASE], [sample(CASE, 1.0)])
    assert not [*opening(run)]
    assert len([*parsed(html.render(run)).iter("img")]) == 1


# A browser would draw millions of lines for seconds.
def test_a_figure_of_very_many_lines_is_an_image_of_pixels(plotted, monkeypatch):
    monkeypatch.setattr(html, "_MAX_SVG", 100)
    (image,) = plotted({"workload-time": plot_times})[1].iter("img")
    assert image.get("src", "").startswith("data:image/png;base64,")


def test_a_figure_that_cannot_be_drawn_is_named(plotted):
    _, page = plotted({"theirs": fails, "workload-time": plot_times})
    assert len([*page.iter("img")]) == 1
    (section,) = (s for s in page.iter("section") if s.get("id") == "more-figures")
    assert "the figure theirs could not be drawn: ZeroDivisionError('no <data>')" in words(section)


def test_a_slow_pair_is_marked(recorded):
    case = builders.case(n_workers=4)
    records = builders.exchanges(case, lambda src, dst: 0.8 if src + dst == "13" else 0.1)
    rows = pair_cells(recorded([case], 3 * records))["tcp"]
    assert [cell for row in rows for cell in row if cell.kind == "slow"] == [rows[1][3]]
    assert "slow: takes 8.0 times as long as the typical pair" in rows[1][3].description

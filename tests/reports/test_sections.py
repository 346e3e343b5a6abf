import re

import builders
import pytest
from matplotlib.figure import Figure

from commbench.errors import ResultsError, UnavailableError, UnknownNameError
from commbench.model import USER_CODE, ClusterSpec, registry
from commbench.reports import html, markdown, terminal
from commbench.reports.figures import Drawing
from commbench.reports.html import pair_matrix
from commbench.reports.html.timeline import Bar, Timeline
from commbench.reports.sections import Section, Table, heading, reading, sections

CASE = builders.case(launches=1, iterations=1)
TABLE = Table("Fetches", ("worker", "number"), (("0", "17"),))


pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module")
def run(recorded):
    return recorded([CASE], [builders.sample(CASE, 1.0)])


@pytest.fixture
def install(installed):
    """Return a function that adds a section."""
    fields = {"title": "Fetches", "position": 25, "tables": lambda _: [TABLE]}
    return lambda **given: installed("section", {"mine": Section(**fields | given)})


@pytest.mark.parametrize("report", [terminal.render_all, markdown.render, html.render])
def test_sections_are_ordered_by_position(install, run, report):
    install()
    titles = [section.title for section in sections()]
    assert titles[titles.index("Fetches") - 1] == "Time per iteration"
    text = report(run)
    assert text.rindex("time per iteration") < text.rindex("Fetches") < text.rindex("Provenance")
    assert "17" in text


def fail(run):
    yield TABLE
    raise ZeroDivisionError("no fetches")


BROKEN = {
    "ZeroDivisionError": fail,
    "expected text in a cell, got 17": lambda _: [Table("Fetches", ("number",), ((17,),))],
    "expected tables, got": lambda _: ["Fetches"],
}


@pytest.mark.parametrize("report", [terminal.render_all, markdown.render, html.render])
@pytest.mark.parametrize(("error", "tables"), BROKEN.items())
def test_a_section_that_fails_is_replaced_by_the_error(install, run, report, error, tables):
    install(tables=tables)
    text = " ".join(report(run).split())
    assert "this section could not be made:" in text
    assert error in text
    assert "Provenance" in text


def test_a_section_says_what_to_read_and_what_not_to_conclude(install, run):
    install(to_read="Read <this>.", not_to_conclude="That it is all.")
    page = html.render(run)
    assert "<b>What to read.</b> Read &lt;this&gt;." in page
    assert "<b>What not to conclude.</b> That it is all." in page


@pytest.mark.parametrize("problem", ["", "it could not be drawn"])
def test_advice_on_figures_that_were_not_drawn_is_left_out(install, run, monkeypatch, problem):
    monkeypatch.setattr(html, "drawn", lambda _: [Drawing("mine", Figure(), problem)])
    install(to_read="Read <this>.", figures=("mine",))
    assert ("Read &lt;this&gt;." in html.render(run)) is (not problem)
    install(to_read="Read <this>.", figures=("message-size",))
    assert "Read &lt;this&gt;." not in html.render(run)


def test_a_section_brings_its_matrices_and_time_lines(install, run):
    bar = Bar(0, 50, "load", "load\n1 s", "#8dd3c7", "black")
    lane = Timeline("An iteration", ((0, "0 s"),), (("worker-0", (bar,)),), "One of one.")
    cell = pair_matrix.Cell("pair", "a to b: 1 GB/s", "1", "#fde725", "black")
    matrix = pair_matrix.Matrix("tcp", "1", (("a", (cell,)),))
    block = pair_matrix.Block(
        "Mine", ("b",), (matrix,), (), ("0.5", "2"), ("#440154", "#fde725"), "", "roomy", "median"
    )
    install(matrices=lambda _run: [block], timelines=lambda _run: iter([lane]))
    page = html.render(run)
    assert 'aria-label="a to b: 1 GB/s"' in page
    assert 'title="load\n1 s">load</i>' in page


def test_matrices_that_fail_are_replaced_by_the_error(monkeypatch, run):
    monkeypatch.setattr(pair_matrix, "blocks", lambda _: 1 / 0)
    page = html.render(run)
    assert "this section could not be made: ZeroDivisionError" in page


def test_sections_with_the_same_title_have_different_ids(install, run):
    install(title="Time per iteration")
    ids = re.findall(r' id="([^"]*)"', html.render(run))
    assert {"time-per-iteration", "time-per-iteration-2"} < set(ids)
    assert len(ids) == len(set(ids))


def test_a_section_that_can_t_be_loaded_is_named(installed, run):
    installed("section", {"mine": UnavailableError("section mine", "no such module", "install it")})
    text = " ".join(terminal.render_all(run).split())
    assert text.index("Provenance") < text.index("mine problem")
    assert "no such module" in text


def test_unreadable_records_end_the_report(install, run, monkeypatch):
    def unreadable(run):
        raise ResultsError("a part is cut")

    install(tables=unreadable)
    with pytest.raises(ResultsError):
        terminal.render_all(run)
    install()
    monkeypatch.setattr(pair_matrix, "blocks", unreadable)
    with pytest.raises(ResultsError):
        html.render(run)


@pytest.mark.parametrize(("host", "words"), [("node1", "· Some"), ("login", "· started on Some")])
def test_the_heading_says_where_a_cluster_of_other_hosts_was_started(host, words):
    case = builders.case(cluster=ClusterSpec(launcher=USER_CODE))
    machine = {"host": {"name": host}, "cpu": {"model": "Some CPU"}}
    run = builders.in_memory([case], [builders.place(case)], environment=machine)
    assert words in heading(run)


def test_a_check_that_fails_costs_its_warning_alone(recorded, installed):
    class Strange:
        def remote(self, cluster):
            raise ZeroDivisionError("no hosts")

    case = builders.case(cluster=ClusterSpec(launcher="strange"))
    installed("launcher", {"strange": Strange()})
    machine = {"cpu": {"usable_cores": 1}}
    run = recorded([case], builders.launches(case, [1.0] * 6), environment=machine)
    assert any("oversubscription could not be made: ZeroD" in text for text in run.warnings)
    assert "ZeroDivisionError" in " ".join(terminal.render_all(run).split())


def test_the_reading_of_a_figure_is_that_of_its_section(installed):
    fields = {"title": "Mine", "position": 5, "tables": lambda _: (), "figures": ("mine",)}
    texts = {"to_read": "This.", "not_to_conclude": "That."}
    installed("section", {"mine": Section(**fields, **texts)})
    text = reading("mine")
    assert text._repr_markdown_().endswith("This.\n\n**What not to conclude.** That.")
    with pytest.raises(UnknownNameError, match="workload-time"):
        reading("nobody's")


@pytest.mark.parametrize("name", sorted({*registry.names("plot")} - {"published"}))
def test_every_figure_of_a_run_has_a_reading(name):
    assert len(reading(name)) > 100

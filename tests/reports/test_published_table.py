import dataclasses

import builders
import pytest
from shown import titled, titles

from commbench.model import published
from commbench.reports import terminal
from commbench.reports.sections import heading

ENVIRONMENT = {
    "cpu": {"model": "Some CPU", "usable_cores": 4},
    "gpus": [{"name": "A100", "driver": "1"}, {"name": "A100", "driver": "1"}],
}


@pytest.fixture
def reproduced(recorded):
    """Return a function that makes a report's content of a run that reproduces a figure."""

    def build(figure, cases, records, scale=1.0):
        data = recorded(cases, records, environment=ENVIRONMENT)
        suite = dataclasses.replace(data.suite, reproduces=figure, scale=scale)
        return data.replace(dataclasses.replace(data.manifest, suite=suite))

    return build


def merges(*backends):
    return builders.rivals(dict.fromkeys(backends, [1.0] * 6), n_workers=8)


def test_published_and_measured_value_are_in_one_row(reproduced):
    table = titled(
        reproduced("rapids_blog.merge_dgx1", *merges("tcp", "ucx:shm"), 0.25),
        "Compared with the published",
    )
    assert table.columns[:3] == ("what", "published", "here")
    rows = {row[0]: row[1:] for row in table.rows}
    theirs, here, comparable = rows["throughput: tcp"]
    assert (theirs, theirs.value) == ("970 MB/s", pytest.approx(970e6))
    assert here.startswith("800 MB/s")
    assert here.value == pytest.approx(800e6)
    assert comparable.startswith("no: 25 % of the size; memory of CPUs, not GPUs; ")
    assert rows["throughput: ucx:ib"] == ("12.6 GB/s", "—", "not measured in this run")
    assert rows["throughput: ucx:shm"][0] == "—"
    assert rows["throughput: ucx:shm"][2] == "nothing was published"
    figure = published.published_figure("rapids_blog.merge_dgx1")
    for words in (figure.source.title, "2021", "DGX-1, 8 × P100", "Some CPU, 4 cores, 25 %",
                  "25 % of the published size", "throughput: the workload's payload"):  # fmt: skip
        assert words in table.note


def test_the_heading_says_that_a_run_was_scaled_down(reproduced):
    for scale, words in ((0.005, "made-up at 0.5 % of its full size ·"), (1.0, "made-up ·")):
        assert heading(reproduced("mpi4dask.merge_ri2", *merges("mpi"), scale)).startswith(words)


def test_an_ordinary_run_has_no_published_table(reproduced):
    run = reproduced("", *merges("tcp"))
    assert not [title for title in titles(run) if "published" in title]


def test_an_unknown_figure_is_a_warning_without_a_table(reproduced):
    run = reproduced("mine.of_all", *merges("tcp"))
    assert any("the suite reproduces mine.of_all" in text for text in run.warnings)
    assert not [title for title in titles(run) if "published" in title]


@pytest.mark.parametrize("figure", published.names())
def test_the_published_table_fits_the_page(figure, reproduced, monkeypatch):
    run = reproduced(figure, *merges("tcp", "mpi", "ucx:polling"), 0.01)
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = terminal.render_all(run)
        assert max(map(len, text.splitlines())) <= columns
        for value in published.published_figure(figure).values:
            assert value.text in text

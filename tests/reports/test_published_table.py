import dataclasses
import json

import builders
import pytest
from builders import launches

from commbench.model import published
from commbench.reports import json as as_json
from commbench.reports import terminal
from commbench.reports.sections import heading, tables

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
    cases = [builders.case(name, n_workers=8) for name in backends]
    return cases, [record for case in cases for record in launches(case, [1.0] * 6)]


def table(content):
    (found,) = (t for t in tables(content) if t.title.startswith("Compared with the published"))
    return found


def test_both_values_stand_in_one_row_under_their_names(reproduced):
    found = table(reproduced("rapids_blog.merge_dgx1", *merges("tcp", "ucx:shm"), 0.25))
    assert found.columns[:3] == ("what", "published", "here")
    rows = {row[0]: row[1:] for row in found.rows}
    theirs, here, comparable = rows["throughput: tcp"]
    assert theirs == "970 MB/s"
    assert here.startswith("800 MB/s")
    assert comparable.startswith("no: 25 % of the size; memory of CPUs, not GPUs; ")
    assert rows["throughput: ucx:ib"] == ("12.6 GB/s", "—", "not measured in this run")
    assert rows["throughput: ucx:shm"][0] == "—"
    assert rows["throughput: ucx:shm"][2] == "nothing was published"
    figure = published.published_figure("rapids_blog.merge_dgx1")
    for words in (figure.source.title, "2021", "DGX-1, 8 × P100", "Some CPU, 4 cores, 2 × A100",
                  "25 % of the published size", "throughput: the workload's payload"):  # fmt: skip
        assert words in found.note


def test_the_heading_says_that_a_run_was_scaled_down(reproduced):
    for scale, words in ((0.005, "made-up at 0.5 % of its full size ·"), (1.0, "made-up ·")):
        assert heading(reproduced("mpi4dask.merge_ri2", *merges("mpi"), scale)).startswith(words)


def test_an_ordinary_run_has_no_such_table(reproduced):
    assert not [t for t in tables(reproduced("", *merges("tcp"))) if "published" in t.title]


def test_a_figure_that_is_not_known_is_told(reproduced):
    found = reproduced("mine.of_all", *merges("tcp"))
    assert any("the suite reproduces mine.of_all" in text for text in found.warnings)
    assert not [t for t in tables(found) if "published" in t.title]


def test_json_has_both_and_says_whether_they_compare(reproduced):
    told = json.loads(as_json.render(reproduced("rapids_blog.merge_dgx1", *merges("tcp"))))
    rows = {row["backend"]: row for row in told["published"]}
    assert rows["tcp"]["value"]["low"] == 0.97e9
    assert rows["tcp"]["here"] == pytest.approx(0.8e9)
    assert rows["tcp"]["unit"] == "B/s"
    assert rows["tcp"]["comparable"] is False
    assert rows["ucx:ib"]["here"] is None
    assert rows["ucx:ib"]["comparable"] is False


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("figure", published.names())
def test_the_table_fits_the_page(figure, columns, reproduced, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = terminal.render(reproduced(figure, *merges("tcp", "mpi", "ucx:polling"), 0.01))
    assert max(map(len, text.splitlines())) <= columns
    for value in published.published_figure(figure).values:
        assert value.text in text

import importlib
import itertools
import json
from dataclasses import replace

import builders
import pytest
from builders import place, transfer
from click.testing import CliRunner

from commbench.cli.main import main
from commbench.model import ClusterSpec, Placement
from commbench.reports.sections import tables

CASE = builders.case(n_workers=3)
FAR = {"host": "node2", "host_id": "another", "cpus": "0-3", "numa_nodes": "0-1", "nic": "eth0"}


def measured(*places):
    pairs = itertools.permutations("012", 2)
    return [*places, *(transfer(CASE, 0, 0.1, src=src, dst=dst) for src, dst in pairs)]


TWO_HOSTS = measured(place(CASE, "0"), place(CASE, "1"), place(CASE, "2", **FAR))
ONE_HOST = measured(*(place(CASE, worker) for worker in "012"))


def titled(content, words):
    return [table for table in tables(content) if table.title.startswith(words)]


def test_several_classes_have_a_table_and_a_column(recorded):
    content = recorded([CASE], TWO_HOSTS)
    (classes,) = titled(content, "Bandwidth per class of link")
    assert classes.columns[:4] == ("backend", "link", "pairs", "n")
    assert [row[:6] for row in classes.rows] == [
        ("tcp", "same NUMA", "2", "2", "16.0 MB", "0.08"),
        ("tcp", "network", "4", "4", "32.0 MB", "0.08"),
    ]
    (pairs,) = titled(content, "Bandwidth per pair of workers")
    assert pairs.columns[2] == "link"
    assert {row[1]: row[2] for row in pairs.rows}["0 → 2"] == "network"
    titles = [table.title for table in tables(content)]
    assert titles.index(classes.title) < titles.index(pairs.title)


def test_a_single_class_stands_below_the_pairs(recorded):
    content = recorded([CASE], ONE_HOST)
    assert titled(content, "Bandwidth per class") == []
    (pairs,) = titled(content, "Bandwidth per pair of workers")
    assert "link" not in pairs.columns
    assert pairs.note.endswith("Class of all links: same NUMA.")


def test_what_is_not_known_is_not_said(recorded):
    content = recorded([CASE], measured())
    (pairs,) = titled(content, "Bandwidth per pair of workers")
    assert "Class of all links" not in pairs.note
    assert titled(content, "Where the workers were") == []


def test_places_of_workers_are_grouped(recorded):
    again = [place(CASE, worker, launch=1, pid=1) for worker in "10"]
    (table,) = titled(recorded([CASE], [*TWO_HOSTS, *again]), "Where the workers were")
    assert table.titles == ("backend", "workers", "host", "CPUs", "NUMA nodes", "NIC")
    assert table.rows == (
        ("tcp", "0, 1", "node1", "0-1", "0", "lo"),
        ("tcp", "2", "node2", "0-3", "0-1", "eth0"),
    )


def test_many_places_are_cut(recorded):
    case = builders.case(n_workers=30)
    records = [place(case, str(i), host_id=str(i), gpu="0") for i in range(30)]
    (table,) = titled(recorded([case], records), "Where the workers were")
    assert len(table.rows) == 24
    assert [row[1] for row in table.rows[:3]] == ["0", "1", "2"]
    assert "GPU" in table.columns
    assert "24 of 30 locations." in table.note


def test_json_has_classes_and_places(recorded):
    render = importlib.import_module("commbench.reports.json").render
    report = json.loads(render(recorded([CASE], ONE_HOST)))
    assert {pair["link"] for pair in report["pairs"]} == {"same NUMA"}
    (link,) = report["links"]
    assert (link["link"], link["n_pairs"], link["q50_Bps"]) == (
        "same NUMA", 6, pytest.approx(80e6, rel=1e-5),
    )  # fmt: skip
    assert [found["worker"] for found in report["places"]] == ["0", "1", "2"]


def test_a_cell_of_the_html_matrix_tells_the_class(recorded):
    render = importlib.import_module("commbench.reports.html").render
    assert "link network\n" in render(recorded([CASE], TWO_HOSTS))
    assert "link unknown" not in render(recorded([CASE], measured()))


def test_a_placed_case_says_so(recorded):
    placement = (Placement(cpus="0"), Placement(cpus="1", gpu=2, nic="eth0"))
    free = builders.case()
    placed = replace(free, cluster=ClusterSpec(placement=placement))
    records = [record for case in (free, placed) for record in builders.launches(case, [1.0, 1.0])]
    content = recorded([free, placed], records)
    assert {*content.case_labels.values()} == {
        "merge (placement=none)", "merge (placement=CPUs 0 / CPUs 1, GPU 2, eth0)",
    }  # fmt: skip
    assert any("cpu, placed: time" in table.title for table in tables(content))
    (provenance,) = titled(content, "Provenance")
    assert dict(provenance.rows)["placement"] == (
        "none · worker 0: CPUs 0; worker 1: CPUs 1, GPU 2, eth0"
    )
    (alone,) = titled(recorded([free], builders.launches(free, [1.0])), "Provenance")
    assert "placement" not in dict(alone.rows)


def test_the_placement_of_a_large_cluster_is_cut(recorded):
    cluster = ClusterSpec(n_workers=20, placement=(Placement(cpus="0"),) * 20)
    case = replace(CASE, cluster=cluster)
    (provenance,) = titled(recorded([case], builders.launches(case, [1.0])), "Provenance")
    said = dict(provenance.rows)["placement"]
    assert said.endswith("worker 15: CPUs 0; 4 more in run.json")


def test_a_report_takes_racks(recorded, tmp_path):
    run = recorded([CASE], TWO_HOSTS)
    file = tmp_path / "racks.toml"
    file.write_text('[racks]\nr1 = ["node*"]\n')
    words = ["report", str(run.path), "--format", "json"]
    before, after = (
        json.loads(CliRunner().invoke(main, [*words, *more]).stdout)
        for more in ([], ["--racks", str(file)])
    )
    assert {pair["link"] for pair in before["pairs"]} == {"same NUMA", "network"}
    assert {pair["link"] for pair in after["pairs"]} == {"same NUMA", "same rack"}
    assert after["run"]["racks"] == {"r1": ["node*"]}


def test_racks_that_cannot_be_read_are_a_usage_error(recorded, tmp_path):
    run = recorded([CASE], TWO_HOSTS)
    ended = CliRunner().invoke(main, ["report", str(run.path), "--racks", str(tmp_path / "no")])
    assert ended.exit_code == 2
    assert "a file of racks" in " ".join(ended.output.split())


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "html"])
def test_every_format_takes_a_run_with_places(form, recorded):
    render = importlib.import_module(f"commbench.reports.{form}").render
    assert render(recorded([CASE], TWO_HOSTS))

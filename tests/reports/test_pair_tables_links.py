import json
from dataclasses import replace

import builders
import processes
import pytest
from builders import place
from shown import titled, titles

from commbench.model import ClusterSpec, Placement
from commbench.reports import html

pytestmark = pytest.mark.usefixtures("no_figures")
CASE = builders.case(n_workers=3)
FAR = {"host": "node2", "host_id": "another", "cpus": "0-3", "numa_nodes": "0-1", "nic": "eth0"}


def measured(*places):
    return [*places, *builders.exchanges(CASE, 0.1)]


TWO_HOSTS = measured(place(CASE, "0"), place(CASE, "1"), place(CASE, "2", **FAR))
ONE_HOST = measured(*(place(CASE, worker) for worker in "012"))


def test_several_link_classes_have_a_table_and_a_column(recorded):
    content = recorded([CASE], TWO_HOSTS)
    classes = titled(content, "Bandwidth per class of link")
    assert classes.columns[:4] == ("backend", "link", "pairs", "n")
    assert [row[:6] for row in classes.rows] == [
        ("tcp", "same NUMA", "2", "2", "16.0 MB", "—"),
        ("tcp", "network", "4", "4", "32.0 MB", "0.08"),
    ]
    pairs = titled(content, "Bandwidth per pair of workers")
    assert pairs.columns[2] == "link"
    assert {row[1]: row[2] for row in pairs.rows}["0 → 2"] == "network"
    assert titles(content).index(classes.title) < titles(content).index(pairs.title)


def test_a_single_link_class_is_in_the_note(recorded):
    content = recorded([CASE], ONE_HOST)
    assert not any("Bandwidth per class" in title for title in titles(content))
    pairs = titled(content, "Bandwidth per pair of workers")
    assert "link" not in pairs.columns
    assert pairs.note.endswith("Class of all links: same NUMA.")


def test_unknown_link_classes_and_places_are_not_shown(recorded):
    content = recorded([CASE], measured())
    pairs = titled(content, "Bandwidth per pair of workers")
    assert "Class of all links" not in pairs.note
    assert "Where the workers were" not in titles(content)


def test_workers_are_grouped_by_location(recorded):
    again = [place(CASE, worker, launch=1, pid=1) for worker in "10"]
    table = titled(recorded([CASE], [*TWO_HOSTS, *again]), "Where the workers were")
    assert table.titles == ("backend", "workers", "host", "CPUs", "NUMA nodes", "NIC")
    assert table.rows == (
        ("tcp", "0, 1", "node1", "0-1", "0", "lo"),
        ("tcp", "2", "node2", "0-3", "0-1", "eth0"),
    )


def test_24_locations_are_shown_at_most(recorded):
    case = builders.case(n_workers=30)
    records = [place(case, str(i), host_id=str(i), gpu="0") for i in range(30)]
    table = titled(recorded([case], records), "Where the workers were")
    assert len(table.rows) == 24
    assert [row[1] for row in table.rows[:3]] == ["0", "1", "2"]
    assert "GPU" in table.columns
    assert "24 of 30 locations." in table.note


def test_cells_of_the_html_matrix_have_the_link_class(recorded):
    assert "link network\n" in html.render(recorded([CASE], TWO_HOSTS))
    assert "link unknown" not in html.render(recorded([CASE], measured()))


def test_a_placement_is_named(recorded):
    placement = (Placement(cpus="0"), Placement(cpus="1", gpu=2, nic="eth0"))
    free = builders.case()
    placed = replace(free, cluster=ClusterSpec(placement=placement))
    content = recorded([free, placed], builders.launches([free, placed], [1.0, 1.0]))
    assert {*content.case_labels.values()} == {
        "merge (placement=none)", "merge (placement=CPUs 0 / CPUs 1, GPU 2, eth0)",
    }  # fmt: skip
    assert any("cpu, placed: time" in title for title in titles(content))
    provenance = titled(content, "Provenance")
    assert dict(provenance.rows)["placement"] == (
        "none · worker 0: CPUs 0; worker 1: CPUs 1, GPU 2, eth0"
    )
    alone = titled(recorded([free], builders.launches(free, [1.0])), "Provenance")
    assert "placement" not in dict(alone.rows)


def test_placements_of_16_workers_are_shown_at_most(recorded):
    cluster = ClusterSpec(n_workers=20, placement=(Placement(cpus="0"),) * 20)
    case = replace(CASE, cluster=cluster)
    provenance = titled(recorded([case], builders.launches(case, [1.0])), "Provenance")
    placement = dict(provenance.rows)["placement"]
    assert placement.endswith("worker 15: CPUs 0; 4 more in run.json")


def test_a_report_takes_racks(recorded, tmp_path):
    run = recorded([CASE], TWO_HOSTS)
    file = tmp_path / "racks.toml"
    file.write_text('[racks]\nr1 = ["node*"]\n')
    words = ["report", str(run.path), "--format", "json"]
    before, after = (
        json.loads(processes.invoke(*words, *more).stdout) for more in ([], ["--racks", str(file)])
    )
    assert {pair["link"] for pair in before["pairs"]} == {"same NUMA", "network"}
    assert {pair["link"] for pair in after["pairs"]} == {"same NUMA", "same rack"}
    assert after["run"]["racks"] == {"r1": ["node*"]}


def test_racks_that_cannot_be_read_are_a_usage_error(recorded, tmp_path):
    run = recorded([CASE], TWO_HOSTS)
    ended = processes.invoke("report", run.path, "--racks", tmp_path / "no")
    assert ended.exit_code == 2
    assert "a file of racks" in " ".join(ended.output.split())

"""asv reads the exported medians, each at the commit that was measured."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import builders
import pytest
from processes import invoke, usage_error
from repositories import Repository

from commbench import load, stats

MERGES = tuple(builders.case(name, params={"rows": 1}) for name in ("tcp", "ucx"))
PINGPONG = builders.case(workload="pingpong", params={"sizes": (1, 8), "layers": ("comm",)})
MEDIANS = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]


class Project(Repository):
    """A project with some commits, and runs that were measured in its checkout."""

    def __init__(self, folder, checkout):
        shutil.copytree(checkout.path, folder / checkout.path.name)
        super().__init__(folder)
        self.runs, self.commits = folder / "runs", checkout.commits
        self.configure_asv(benchmark_dir=str(folder / "none"))

    def run(self, commit, factor=1.0, cases=MERGES, *, records=None, dirty=False):
        """Return a run of `commit` in which everything takes `factor` times as long."""
        checkout = {"commit": commit, "dirty": dirty} if commit else None
        environment = {
            "host": {"name": "node1", "kernel": "Linux 6.1 #1 SMP", "architecture": "x86_64"},
            "cpu": {"model": "A", "logical_cores": 4}, "memory": {"total_bytes": 16_384_000},
            "python": "CPython 3.11.7", "git": {"commbench": None, "working_directory": checkout},
        }  # fmt: skip
        if records is None:
            medians = [factor * median for median in MEDIANS]
            records = builders.launches(cases, medians)
        run_id = f"run-{len(list(self.runs.glob('*')))}"
        store = builders.written(self.runs, cases, records, id=run_id, environment=environment)
        return store.path

    def export(self, run, *arguments):
        where = ("--output", self.results, "--repository", self.path)
        return invoke("export", run, *where, *arguments)

    def asv(self, *arguments):
        command = [sys.executable, "-m", "asv", "--config", str(self.config), *arguments]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
            check=False, env={**os.environ, "HOME": str(self.path)},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def graphs(self, benchmark):
        (file,) = (
            file
            for file in (self.html / "graphs").rglob(f"{benchmark}.json")
            if "summary" not in file.parts
        )
        return json.loads(file.read_text())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    repository = Repository(tmp_path_factory.mktemp("checkout"))
    for number in range(3):
        repository.commit(file=str(number))
    return repository


@pytest.fixture
def project(tmp_path, checkout):
    return Project(tmp_path, checkout)


def test_asv_publishes_the_same_medians(project):
    runs = [project.run(c, 1 + n) for n, c in enumerate(project.commits)]
    for run in runs:
        assert project.export(run).exit_code == 0
    assert "Couldn't find" not in project.asv("publish", "--no-pull")
    # asv's list of machines in the user's home.
    assert not (project.path / ".asv-machine.json").exists()
    points = project.graphs("workloads.track_merge")
    assert [revision for revision, _ in points] == [0, 1, 2]
    for run, (_, values) in zip(runs, points, strict=True):
        assert values == stats.summaries(load(run))["median_s"].tolist()
    index = json.loads((project.html / "index.json").read_text())
    benchmark = index["benchmarks"]["workloads.track_merge"]
    assert benchmark["param_names"] == ["backend", "layer", "payload_bytes", "settings"]
    assert benchmark["params"][:3] == [["'tcp'", "'ucx'"], ["'workload'"], ["None"]]
    assert (benchmark["unit"], benchmark["type"]) == ("seconds", "track")
    assert index["revision_to_hash"] == dict(zip("012", project.commits, strict=True))
    assert index["params"]["machine"] == ["node1"]
    assert index["params"]["cpu"] == ["A"]
    assert index["params"]["ram"] == ["16384000"]


def test_asv_shows_medians_and_quartiles(project):
    project.export(project.run(project.commits[-1], cases=MERGES[:1]))
    assert "1.25±0.1s" in project.asv("show", project.commits[-1])


def test_file_has_medians_of_launches_and_their_interval(project):
    case = MERGES[0]
    records = builders.launches(case, [*MEDIANS, 1.6, 1.7])
    run = project.run(project.commits[0], cases=(case,), records=records)
    file = Path(project.export(run).stdout.strip())
    assert file == project.results / "node1" / f"{project.commits[0][:8]}-commbench-py3.11.json"
    content = json.loads(file.read_text())
    assert (content["version"], content["commit_hash"]) == (2, project.commits[0])
    assert content["date"] == 1735689600000
    (row,) = content["results"].values()
    cells = dict(zip(content["result_columns"], row, strict=True))
    assert cells["samples"] == [pytest.approx([*MEDIANS, 1.6, 1.7])]
    assert (cells["stats_ci_99_a"], cells["stats_ci_99_b"]) == ([1.0], [1.7])
    assert (cells["stats_repeat"], cells["stats_number"], cells["version"]) == ([8], [1], "1")
    assert cells["duration"] == 8 * 9.0


def test_runs_of_one_commit_are_joined(project):
    commit = project.commits[0]
    project.export(project.run(commit))
    project.export(project.run(commit, 2.0, (MERGES[1], builders.case("mpi", params={"rows": 1}))))
    file = Path(project.export(project.run(commit, cases=(PINGPONG,))).stdout.strip())
    content = json.loads(file.read_text())
    rows = {
        name: dict(zip(content["result_columns"], row, strict=True))
        for name, row in content["results"].items()
    }
    assert {*rows} == {"workloads.track_merge", "workloads.track_pingpong"}
    merges = rows["workloads.track_merge"]
    assert merges["params"][0] == ["'tcp'", "'ucx'", "'mpi'"]
    assert merges["result"] == pytest.approx([1.25, 2.5, 2.5])
    assert len(json.loads((project.results / "benchmarks.json").read_text())) == 3


def test_exporting_a_run_again_changes_nothing(project):
    run = project.run(project.commits[0], cases=(*MERGES, PINGPONG))
    contents = []
    for _ in range(2):
        assert project.export(run).exit_code == 0
        files = sorted(file for file in project.results.rglob("*") if file.is_file())
        contents.append([(file.name, file.read_text()) for file in files])
    assert contents[0] == contents[1]
    assert len(contents[0]) == 3


def test_known_machine_keeps_its_description(project):
    folder = project.results / "node1"
    folder.mkdir(parents=True)
    known = {"machine": "node1", "os": "mine", "cpu": "B", "version": 1}
    (folder / "machine.json").write_text(json.dumps(known))
    result = project.export(project.run(project.commits[0]))
    assert json.loads((folder / "machine.json").read_text()) == known
    content = json.loads(Path(result.stdout.strip()).read_text())
    assert content["params"] == {"machine": "node1", "os": "mine", "cpu": "B", "python": "3.11"}


def test_failed_case_is_left_out_and_named(project):
    good, bad = MERGES
    records = [
        *builders.launches(good, MEDIANS), builders.sample(bad, 1.0), builders.failure(bad),
        builders.end(bad, ok=False),
    ]  # fmt: skip
    result = project.export(project.run(project.commits[0], records=records))
    assert result.exit_code == 0
    assert result.stderr == "left out: merge over ucx: none of its launches ended well\n"
    benchmarks = json.loads((project.results / "benchmarks.json").read_text())
    assert benchmarks["workloads.track_merge"]["params"][0] == ["'tcp'"]


def test_uncommitted_changes_are_refused(project):
    run = project.run(project.commits[0], dirty=True)
    error = usage_error(project.export(run))
    assert f"changes that are not in {project.commits[0][:12]}" in error
    assert "Commit them and measure again" in error
    assert not project.results.exists()
    assert project.export(run, "--commit", project.commits[0]).exit_code == 2
    assert project.export(run, "--force").exit_code == 0


def test_commit_of_a_run_outside_of_a_checkout_is_named_by_the_user(project):
    run = project.run(None)
    error = usage_error(project.export(run))
    assert "it was not started in a git checkout, or git gave no answer. Name the" in error
    result = project.export(run, "--commit", "main~1")
    assert Path(result.stdout.strip()).name.startswith(project.commits[1][:8])


@pytest.mark.parametrize("name", ["0" * 40, "no-such-branch", "--all"])
def test_commit_that_the_repository_lacks_is_refused(project, name):
    error = usage_error(project.export(project.run(None), f"--commit={name}"))
    assert f"{project.path} has no commit '{name}'" in error
    assert "--repository" in error
    assert not project.results.exists()


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b", ".hidden", None])
def test_machine_name_that_is_a_path_is_refused(project, name):
    run = project.run(project.commits[0])
    description = json.loads((run / "run.json").read_text())
    description["environment"]["host"]["name"] = name
    (run / "run.json").write_text(json.dumps(description))
    error = usage_error(project.export(run))
    assert "name the machine in letters, digits, '.' and '-': --machine NAME" in error
    assert not project.results.exists()
    assert project.export(run, "--machine", "ci-1").exit_code == 0
    assert (project.results / "ci-1" / "machine.json").exists()


def test_another_benchmark_of_that_name_is_not_overwritten(project):
    project.results.mkdir()
    name, file = "workloads.track_merge", project.results / "benchmarks.json"
    entry = {"name": name, "param_names": ["n"], "params": [["1"]], "version": "1"}
    file.write_text(json.dumps({"version": 2, name: entry}))
    error = usage_error(project.export(project.run(project.commits[0])))
    assert f"{file} has another benchmark {name}: its param_names" in error


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_file_of_asv_is_named_and_kept(project, content):
    project.results.mkdir()
    file = project.results / "benchmarks.json"
    file.write_text(content)
    assert str(file) in usage_error(project.export(project.run(project.commits[0])))
    assert file.read_text() == content


def test_launches_that_others_disturbed_are_not_exported(project):
    (case,) = MERGES[:1]
    records = [*builders.disturbed(case), *builders.launches(case, [1.0] * 6)]
    result = project.export(project.run(project.commits[0], cases=(case,), records=records))
    assert "left out, because others had over 10%" in result.stderr
    assert "of the cores: launches of merge over tcp 6, 7" in result.stderr
    assert "9.0" not in Path(result.stdout.strip()).read_text()

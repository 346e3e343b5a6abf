"""asv reads what is exported to it, and nothing is recorded for a commit that it isn't of."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import builders
import pytest
from click.testing import CliRunner

from commbench import load, stats
from commbench.cli.main import main

MERGES = tuple(builders.case(name, params={"rows": 1}) for name in ("tcp", "ucx"))
PINGPONG = builders.case(workload="pingpong", params={"sizes": (1, 8), "layers": ("comm",)})
MEDIANS = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]


def commbench(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


class Project:
    """A git repository of a project with some commits, and asv's configuration beside it."""

    def __init__(self, folder, n_commits=3):
        self.repository, self.results = folder / "project", folder / "asv-results"
        self.html, self.runs = folder / "html", folder / "runs"
        self.config = folder / "asv.conf.json"
        self.repository.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commits = [self.commit(number) for number in range(n_commits)]
        self.config.write_text(
            json.dumps(
                {
                    "version": 1, "project": "project", "repo": str(self.repository),
                    "branches": ["main"], "results_dir": str(self.results),
                    "html_dir": str(self.html), "environment_type": "existing",
                    "benchmark_dir": str(folder / "none"),
                }
            )
        )  # fmt: skip

    def git(self, *arguments, **environ):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.check_output(
            command, cwd=self.repository, text=True, env={**os.environ, **environ}
        ).strip()

    def commit(self, number):
        (self.repository / "file").write_text(str(number))
        self.git("add", "file")
        date = f"2025-01-01T{number:02d}:00:00+00:00"
        self.git(
            "commit", "--quiet", "-m", str(number), GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date
        )
        return self.git("rev-parse", "HEAD")

    def provenance(self, commit, *, dirty=False):
        checkout = {"commit": commit, "dirty": dirty} if commit else None
        return {
            "host": {"name": "node1", "kernel": "Linux 6.1 #1 SMP", "architecture": "x86_64"},
            "cpu": {"model": "A", "logical_cores": 4}, "memory": {"total_bytes": 16_384_000},
            "python": "CPython 3.11.7", "git": {"commbench": None, "working_directory": checkout},
        }  # fmt: skip

    def run(
        self, commit, factor = 1.0, cases = MERGES,
        *, dirty = False,
    ):  # fmt: skip
        records = [
            record
            for case in cases
            for record in builders.launches(case, [factor * median for median in MEDIANS])
        ]
        number = len(list(self.runs.iterdir())) if self.runs.exists() else 0
        return builders.written(
            self.runs, cases, records, id=f"run-{number}",
            environment=self.provenance(commit, dirty=dirty),
        ).path  # fmt: skip

    def export(self, run, *arguments):
        where = ("--output", self.results, "--repository", self.repository)
        return commbench("export", run, "--to", "asv", *where, *arguments)

    def asv(self, *arguments):
        command = [sys.executable, "-m", "asv", "--config", str(self.config), *arguments]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
            check=False, env={**os.environ, "HOME": str(self.repository)},
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


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_asv_publishes_the_same_medians(project):
    runs = [project.run(c, 1 + n) for n, c in enumerate(project.commits)]
    for run in runs:
        assert project.export(run).exit_code == 0
    said = project.asv("publish", "--no-pull")
    assert "Couldn't find" not in said
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
    said = project.asv("show", project.commits[-1])
    assert "1.25±0.1s" in said


def test_a_step_is_attributed_to_its_commit(tmp_path):
    project = Project(tmp_path, n_commits=10)
    for number, commit in enumerate(project.commits):
        wobble = 1 + 0.01 * math.sin(number)
        project.export(project.run(commit, wobble * (1.3 if number >= 6 else 1.0)))
    project.asv("publish", "--no-pull")
    found = json.loads((project.html / "regressions.json").read_text())["regressions"]
    assert [name.partition(",")[0] for name, *_ in found] == [
        "workloads.track_merge('tcp'", "workloads.track_merge('ucx'",
    ]  # fmt: skip
    for *_, jumps in found:
        assert [(jump[0], jump[1]) for jump in jumps] == [(None, 6)]


def test_the_file_is_asvs(project):
    case = MERGES[0]
    records = builders.launches(case, [*MEDIANS, 1.6, 1.7])
    environment = project.provenance(project.commits[0])
    run = builders.written(project.runs, (case,), records, environment=environment).path
    result = project.export(run)
    file = Path(result.stdout.strip())
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


def test_runs_of_one_commit_join(project):
    commit = project.commits[0]
    project.export(project.run(commit))
    project.export(project.run(commit, 2.0, (MERGES[1], builders.case("mpi", params={"rows": 1}))))
    project.export(project.run(commit, cases=(PINGPONG,)))
    project.asv("publish", "--no-pull")
    ((_, values),) = project.graphs("workloads.track_merge")
    assert values == pytest.approx([1.25, 2.5, 2.5])
    assert len(json.loads((project.results / "benchmarks.json").read_text())) == 3


def test_to_export_a_run_again_changes_nothing(project):
    run = project.run(project.commits[0], cases=(*MERGES, PINGPONG))
    contents = []
    for _ in range(2):
        assert project.export(run).exit_code == 0
        files = sorted(file for file in project.results.rglob("*") if file.is_file())
        contents.append([(file.name, file.read_text()) for file in files])
    assert contents[0] == contents[1]
    assert len(contents[0]) == 3


def test_a_machine_that_asv_knows_keeps_its_description(project):
    folder = project.results / "node1"
    folder.mkdir(parents=True)
    told = {"machine": "node1", "os": "mine", "cpu": "B", "version": 1}
    (folder / "machine.json").write_text(json.dumps(told))
    result = project.export(project.run(project.commits[0]))
    assert json.loads((folder / "machine.json").read_text()) == told
    content = json.loads(Path(result.stdout.strip()).read_text())
    assert content["params"] == {"machine": "node1", "os": "mine", "cpu": "B", "python": "3.11"}


def test_asv_is_never_asked_for_the_machine(project):
    assert not (project.repository / ".asv-machine.json").exists()
    assert project.export(project.run(project.commits[0])).exit_code == 0
    project.asv("publish", "--no-pull")
    assert not (project.repository / ".asv-machine.json").exists()


def test_a_case_that_failed_is_told_and_left_out(project):
    good, bad = MERGES
    records = [
        *builders.launches(good, MEDIANS), builders.sample(bad, 1.0), builders.failure(bad),
        builders.end(bad, ok=False),
    ]  # fmt: skip
    environment = project.provenance(project.commits[0])
    run = builders.written(project.runs, MERGES, records, environment=environment).path
    result = project.export(run)
    assert result.exit_code == 0
    assert result.stderr == "left out: merge over ucx: none of its launches ended well\n"
    listed = json.loads((project.results / "benchmarks.json").read_text())
    entry = listed["workloads.track_merge"]
    assert entry["params"][0] == ["'tcp'"]


def test_uncommitted_changes_are_no_commits(project):
    run = project.run(project.commits[0], dirty=True)
    result = project.export(run)
    assert result.exit_code == 2
    assert f"changes that are not in {project.commits[0][:12]}" in result.stderr
    assert "Commit them and measure again" in result.stderr
    assert not project.results.exists()
    assert project.export(run, "--commit", project.commits[0]).exit_code == 2
    assert project.export(run, "--force").exit_code == 0


def test_the_commit_can_be_named(project):
    run = project.run(None)
    result = project.export(run)
    assert result.exit_code == 2
    assert "it was not started in a git checkout. Name the commit: --commit" in result.stderr
    result = project.export(run, "--commit", "main~1")
    assert Path(result.stdout.strip()).name.startswith(project.commits[1][:8])


@pytest.mark.parametrize("name", ["0" * 40, "no-such-branch", "--all"])
def test_a_commit_that_the_repository_lacks_is_told(project, name):
    result = project.export(project.run(None), f"--commit={name}")
    assert result.exit_code == 2
    assert f"{project.repository} has no commit '{name}'" in result.stderr
    assert "--repository" in result.stderr
    assert not project.results.exists()


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b", ".hidden", None])
def test_a_machine_has_a_name_that_is_no_path(project, name):
    run = project.run(project.commits[0])
    description = json.loads((run / "run.json").read_text())
    description["environment"]["host"]["name"] = name
    (run / "run.json").write_text(json.dumps(description))
    result = project.export(run)
    assert result.exit_code == 2
    assert "name the machine in letters, digits, '.' and '-': --machine NAME" in result.stderr
    assert not project.results.exists()
    assert project.export(run, "--machine", "ci-1").exit_code == 0
    assert (project.results / "ci-1" / "machine.json").exists()


def test_somebody_elses_benchmark_is_not_overwritten(project):
    project.results.mkdir()
    entry = {
        "name": "workloads.track_merge",
        "param_names": ["n"],
        "params": [["1"]],
        "version": "1",
    }
    file = project.results / "benchmarks.json"
    file.write_text(json.dumps({"version": 2, entry["name"]: entry}))
    result = project.export(project.run(project.commits[0]))
    assert result.exit_code == 2
    assert f"{file} has another benchmark workloads.track_merge: its param_names" in result.stderr


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_file_of_asvs_is_told(project, content):
    project.results.mkdir()
    file = project.results / "benchmarks.json"
    file.write_text(content)
    result = project.export(project.run(project.commits[0]))
    assert result.exit_code == 2
    assert str(file) in result.stderr
    assert file.read_text() == content

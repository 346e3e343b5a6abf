"""``make asv`` records this commit on a machine that asv knows."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import builders
import pytest
from repositories import Repository

from commbench import load
from commbench.harness.suite import read_suite
from commbench.studies import asv

ROOT = Path(__file__).parents[2]


class Checkout(Repository):
    """A git repository with the suite and the Makefile, and a home in which asv knows nothing."""

    def __init__(self, folder):
        super().__init__(folder)
        self.home = folder / "home"
        self.home.mkdir()
        shutil.copytree(ROOT / "suites", self.path / "suites")
        for name in ("asv.conf.json", "Makefile"):
            shutil.copy(ROOT / name, self.path)
        self.commit()

    def run(self, *command, **environ):
        return self.start(sys.executable, *command, **environ)

    def make_asv(self, *variables):
        """Run ``make asv`` with the environment of this process."""
        options = ("--no-print-directory", "--old-file", f"{sys.prefix}/.ready")
        return self.start("make", *options, f"VENV={sys.prefix}", "asv", *variables)

    def start(self, *command, **environ):
        return subprocess.run(
            command, cwd=self.path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
            env={**os.environ, "HOME": str(self.home), **environ},
        )  # fmt: skip


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_uncommitted_changes_are_not_recorded(checkout):
    """Its times would be taken for those of a commit that lacks the changes."""
    (checkout.path / "asv.conf.json").write_text("{}")
    ended = checkout.make_asv()
    assert ended.returncode == 2
    assert "the tree has changes that HEAD lacks" in ended.stdout
    assert not (checkout.path / "results").exists()


@pytest.mark.parametrize(
    ("said", "status", "recorded"), [("a report\n/the/run", 0, True), ("", 1, False)]
)
def test_make_asv_records_the_run_that_it_has_measured(checkout, said, status, recorded):
    """Another run may be newer, and a full disk leaves no run at all."""
    (checkout.path / "bin").mkdir()
    fake = checkout.path / "bin" / "commbench"
    fake.write_text(
        f"#!/bin/sh\nif [ $1 = run ]; then printf '%s' '{said}'; exit {status}; fi\necho $*\n"
    )
    fake.chmod(0o755)
    options = ("--no-print-directory", "--old-file", "./.ready")
    ended = checkout.start("make", *options, "VENV=.", "asv")
    assert (ended.returncode == 0) == recorded
    assert ("export /the/run --output results/asv" in ended.stdout) == recorded
    assert ("export" in ended.stdout) == recorded


@pytest.fixture(scope="module", name="workloads")
def _workloads():
    spec = importlib.util.spec_from_file_location("workloads", ROOT / "suites/asv/workloads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_suite_that_measured_nothing_says_so(workloads, monkeypatch):
    ended = subprocess.CompletedProcess([], 1, stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match="status 1, without a run"):
        workloads.setup_cache()


def measured(recorded):
    cases = read_suite(ROOT / "suites/asv/suite.toml").cases
    records = [
        builders.sample(case, 1.0, layer=layer, payload_bytes=size or 7)
        for case in cases
        for layer in case.params.get("layers", ["workload"])
        for size in case.params.get("sizes", [None])
    ]
    return recorded(cases, builders.ended(records))


def test_benchmarks_and_exports_have_the_same_names(workloads, recorded):
    exported = asv.medians(measured(recorded))
    assert len(exported) == 3
    for name, medians in exported.items():
        params = getattr(workloads, name.removeprefix("workloads.")).params
        assert [set(axis) for axis in zip(*medians, strict=True)] == [set(axis) for axis in params]
        assert len(medians) == math.prod(map(len, params))


def test_benchmark_has_samples_nan_if_absent_or_an_error(workloads, recorded):
    run = measured(recorded)
    medians = asv.medians(run)
    (key, *_) = medians["workloads.track_merge"]
    results = {"run": "run", "medians": medians, "attempted": set()}
    assert workloads.track_merge(results, *key) == {"samples": [1.0], "number": 1}
    absent = ("ucx:ib", *key[1:])
    assert math.isnan(workloads.track_merge(results, *absent))
    results["attempted"] = {("workloads.track_merge", "ucx:ib", key[-1])}
    with pytest.raises(RuntimeError, match=r"no launch ended well; see run/report.md"):
        workloads.track_merge(results, *absent)
    results["attempted"] = {("workloads.track_merge", "ucx:ib", "iterations=3")}
    with pytest.raises(RuntimeError, match=r"the settings of suite.toml, .* to iterations=3;"):
        workloads.track_merge(results, *absent)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_asv_records_the_medians_of_the_run(checkout):
    assert checkout.run("-m", "asv", "machine", "--yes", "--machine", "node1").returncode == 0
    options = {"COMMBENCH_ASV_OPTIONS": "--backends tcp --launches 2"}
    (commit,) = checkout.commits
    command = ["-m", "asv", "run", "--environment", "existing:same", "--set-commit-hash", commit]
    command += ["--machine", "node1", "--record-samples", "--bench", "track_merge"]
    ended = checkout.run(*command, **options)
    assert ended.returncode == 0, ended
    (path,) = (folder for folder in (checkout.path / "results").iterdir() if folder.name != "asv")
    medians = asv.medians(load(path))
    (file,) = (checkout.path / "results" / "asv" / "node1").glob(f"{commit[:8]}-*.json")
    content = json.loads(file.read_text())
    (row,) = content["results"].values()
    cells = dict(zip(content["result_columns"], row, strict=False))
    recorded = [samples for samples in cells["samples"] if samples]
    assert recorded == list(medians["workloads.track_merge"].values())
    assert cells["version"] == asv.VERSION


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_make_asv_records_the_commit(checkout):
    ended = checkout.make_asv("ARGS=--backends tcp --launches 1", "EXPORT=--machine node1")
    assert ended.returncode == 0, ended
    file = checkout.path / ended.stdout.splitlines()[-1]
    (commit,) = checkout.commits
    assert json.loads(file.read_text())["commit_hash"] == commit
    assert checkout.run("-m", "asv", "publish", "--no-pull").returncode == 0

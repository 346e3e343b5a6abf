"""``commbench run``: the plan is validated before anything starts, run, reported and resumed.

The launches are simulated in this process; those in end_to_end have processes.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import builders
import commbench_fake
import processes
import pytest
from processes import draw_only, invoke, usage_error

from commbench.errors import VerificationError
from commbench.harness import runner
from commbench.machine import environment


def run(output, *arguments, workload="merge"):
    return invoke("run", workload, *arguments, "--output", output)


def report(path, *arguments):
    return json.loads(invoke("report", path, "--format", "json", *arguments).stdout)


@pytest.fixture(scope="module", autouse=True)
def simulated():
    """Simulate launches in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_plan", builders.simulate_plan)
        patch.setattr(commbench_fake, "time", SimpleNamespace(sleep=lambda _: None))
        yield


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return the result of a good run of two backends, and its folder."""
    output = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        draw_only(patch, "workload-time", "communication")
        result = run(output, "--backends", "fake,fake:slow", "--launches", 2, "--iterations", 2)
    (path,) = output.iterdir()
    return result, path


@pytest.fixture(autouse=True)
def no_figures(good, monkeypatch):
    """Save the time of drawing, except for the run that the tests share."""
    draw_only(monkeypatch)


@pytest.fixture
def never_launched(monkeypatch):
    def run_plan(plan, logs):
        raise AssertionError("something was launched")

    monkeypatch.setattr(runner, "run_plan", run_plan)


def test_run_prints_its_report_and_its_folder_last(good):
    result, path = good
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(path)
    assert "fake:slow" in result.stdout
    assert "[4/4]" in result.stderr
    assert "failed" not in result.stderr


def test_run_leaves_records_reports_and_figures(good):
    _, path = good
    names = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    figures = {
        f"figures/{n}.{s}" for n in ("workload-time", "communication") for s in ("png", "svg")
    }
    assert names == figures | {
        "run.json", "samples.jsonl", "transfers/merged-1.parquet", "tasks/merged-1.parquet",
        "wire/merged-1.parquet", "transports/merged-1.parquet", "report.md", "report.html",
    }  # fmt: skip
    text = (path / "report.md").read_text()
    assert all(name in text for name in figures if name.endswith(".png"))
    assert len(processes.records(path, "Sample")) == 2 * 2 * 3
    assert len(processes.records(path, "LaunchEnd")) == 4


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "csv"])
def test_every_format_reports_every_backend(good, form):
    result = invoke("report", good[1], "--format", form)
    assert result.exit_code == 0, result.output
    assert "fake:slow" in result.stdout


def test_json_report_has_cases_failures_and_pairs(good):
    content = report(good[1])
    assert [case["n_samples"] for case in content["cases"]] == [4, 4]
    assert content["failures"] == []
    assert len(content["pairs"]) == 4


def test_report_leaves_out_transfers_below_min_transfer(good):
    content = report(good[1], "--min-transfer", "8.1MB")
    assert content["pairs"] == []
    assert content["run"]["min_transfer_bytes"] == 8_100_000


def test_report_printed_in_pieces_is_complete(good, monkeypatch):
    arguments = ("report", good[1], "--format", "json")
    whole = invoke(*arguments).stdout
    monkeypatch.setattr("commbench.cli.results._AT_ONCE", 7)
    assert invoke(*arguments).stdout == whole


def test_resuming_a_complete_run_launches_nothing(good):
    before = processes.records(good[1], "LaunchEnd")
    result = invoke("run", "--resume", good[1])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(good[1])
    assert processes.records(good[1], "LaunchEnd") == before


def test_failed_launch_is_status_1_and_does_not_end_the_run(tmp_path):
    result = run(tmp_path, "--backends", "fake,fake:wrong", "--launches", 1)
    assert result.exit_code == 1
    assert result.stderr.count("fake: expected 1, found 2") == 1
    assert "FAILED" in result.stderr
    assert "[2/2]" in result.stderr
    assert "expected 1, found 2" in result.stdout
    (path,) = tmp_path.iterdir()
    content = report(path)
    assert [failure["backend"] for failure in content["failures"]] == ["fake:wrong"]
    assert "fake" in [case["backend"] for case in content["cases"]]


USAGE = {
    "workload": ("", "merg", "unknown workload or suite 'merg' (did you mean 'merge'?)"),
    "backend": ("--backends fake,tpc", "merge", "unknown backend 'tpc' (did you mean 'tcp'?)"),
    "twice": ("--backends fake,fake", "merge", "merge over fake with the same parameters"),
    "rows": ("--rows 1.5e3.2", "merge", "--rows"),
    "too few rows": ("--rows 0", "merge", "rows is 0; it must be at least"),
    "frac-match": ("--frac-match 2", "merge", "frac_match is 2.0; it must be above 0"),
    "size 0": ("--sizes 1,0", "pingpong", "a size of 0 B; it must be at least 1"),
    "layers": ("--layers comm,wires", "pingpong", "unknown layer 'wires'"),
    "seconds per size": ("--seconds-per-size 0", "pingpong", "must be above 0"),
    "iterations": ("--iterations 0", "merge", "iterations is 0; it must be at least 1"),
    "launches": ("--launches -2", "merge", "launches is -2; it must be at least 1"),
    "timeout 0": ("--timeout 0s", "merge", "timeout is 0"),
    "workers": ("--workers 0", "merge", "worker"),
    "device": ("--device tpu", "merge", "'auto', 'cpu', 'gpu'"),
    "option": ("--row 10", "merge", "--row"),
    "suite file": ("", "no-such.toml", "can't read no-such.toml"),
}


@pytest.mark.parametrize(("arguments", "workload", "message"), USAGE.values(), ids=USAGE)
def test_bad_name_or_value_is_refused(arguments, workload, message, tmp_path, never_launched):
    output = tmp_path / "results"
    assert message in usage_error(run(output, *arguments.split(), workload=workload))
    assert not output.exists()


def test_damaged_manifest_is_named(good, tmp_path):
    description = json.loads((good[1] / "run.json").read_text())
    file = tmp_path / "run.json"
    for content, message in (
        ("{", f"can't read {file}"),
        (json.dumps({**description, "schema_version": 99}), "schema version 99"),
        (json.dumps({**description, "surprise": 1}), "is damaged"),
    ):
        file.write_text(content)
        assert message in usage_error(invoke("report", tmp_path))


ABSENT = {
    "ucx:ib": ("no RDMA device is present", "InfiniBand or RoCE"),
    "ucx:nvlink": ("no NVIDIA GPU is visible", "run on a machine with GPUs"),
}


@pytest.fixture(params=ABSENT)
def absent(request):
    """Return a backend that this machine lacks, the reason and the remedy."""
    if not importlib.util.find_spec("ucxx"):
        pytest.skip("ucxx is not installed, which is reported first")
    if environment.rdma_devices() if request.param == "ucx:ib" else environment.gpus():
        pytest.skip(f"this machine may have {request.param}")
    return request.param, *ABSENT[request.param]


def test_absent_backend_is_refused_with_a_remedy(absent, tmp_path, never_launched):
    name, reason, remedy = absent
    output = tmp_path / "results"
    error = usage_error(run(output, "--backends", f"fake,{name}", "--device", "cpu"))
    assert error.startswith(f"backend {name} is unavailable: {reason}")
    assert remedy in error
    assert "--skip-unavailable" in error
    assert not output.exists()


def test_absent_backend_can_be_skipped(absent, tmp_path):
    name, reason, _ = absent
    options = ("--device", "cpu", "--launches", 1, "--iterations", 1, "--skip-unavailable")
    result = run(tmp_path, "--backends", f"{name},fake", *options)
    assert result.exit_code == 0, result.output
    assert f"skipped: backend {name} is unavailable: {reason}" in result.stderr
    (path,) = tmp_path.iterdir()
    assert len(processes.records(path, "LaunchEnd")) == 1


def test_run_with_every_backend_skipped_is_refused(absent, tmp_path, never_launched):
    output = tmp_path / "results"
    result = run(output, "--backends", absent[0], "--device", "cpu", "--skip-unavailable")
    assert "no backend is left to measure" in usage_error(result)
    assert not output.exists()


def test_options_override_a_suite_file(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(
        'backends = ["fake"]\nlaunches = 5\niterations = 1\nwarmups = 0\n'
        '[[case]]\nworkload = "merge"\nparams = { rows = 77 }\n'
        '[[case]]\nworkload = "svd"\n'
    )
    result = run(tmp_path / "results", "--launches", 1, workload=file)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "results").iterdir()
    assert path.name.endswith("-small")
    suite = json.loads((path / "run.json").read_text())["suite"]
    assert [case["workload"] for case in suite["cases"]] == ["merge", "svd"]
    assert suite["cases"][0]["params"]["rows"] == 77
    assert len(processes.records(path, "LaunchEnd")) == 2


def test_resuming_repeats_failed_launches_under_new_numbers(tmp_path, monkeypatch):
    simulate = commbench_fake.FakeBackend.simulate

    def fail_twice(self, launch):
        if self.options and launch.index in (1, 2):
            raise VerificationError("not in the mood")
        return simulate(self, launch)

    monkeypatch.setattr(commbench_fake.FakeBackend, "simulate", fail_twice)
    result = run(tmp_path, "--backends", "fake:slow,fake", "--launches", 3, "--iterations", 1)
    assert result.exit_code == 1
    (path,) = tmp_path.iterdir()
    result = invoke("run", "--resume", path)
    assert result.exit_code == 0, result.output
    assert [*tmp_path.iterdir()] == [path]
    outcomes = defaultdict(list)
    for end in processes.records(path, "LaunchEnd"):
        outcomes[end["case_id"]].append((end["launch"], end["ok"]))
    slow, fake = sorted(outcomes.values(), key=len, reverse=True)
    assert slow == [(0, True), (1, False), (2, False), (3, True), (4, True)]
    assert fake == [(0, True), (1, True), (2, True)]
    assert [case["n_launches"] for case in report(path)["cases"]] == [3, 3]


def test_output_that_cannot_be_made_is_status_1(tmp_path, never_launched):
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file" / "results", "--backends", "fake")
    assert f"{tmp_path}/file/results" in result.stderr
    assert "--output" in result.stderr
    assert result.exit_code == 1


def test_all_tables_of_a_run_are_printed_on_request(good):
    assert "Provenance" not in invoke("report", good[1]).stdout
    for arguments in (("-v",), ("--format", "tables")):
        assert "Provenance" in invoke("report", good[1], *arguments).stdout
    result = invoke("report", good[1], "-v", "--format", "json")
    assert result.exit_code == 2
    assert "--format json has all tables" in " ".join(result.output.split())


def test_latest_is_the_newest_run_in_results(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("report", "latest")
    assert result.exit_code == 2
    assert "there is no run in results/ yet" in result.output
    results = tmp_path / "results"
    for name in ("20260101-000000-merge", "20260102-000000-merge"):
        shutil.copytree(good[1], results / name, ignore=shutil.ignore_patterns("figures", "logs"))
    assert str(Path("results/20260102-000000-merge")) in invoke("report", "latest").stdout

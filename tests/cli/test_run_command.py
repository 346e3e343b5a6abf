"""``commbench run``: the plan is validated before anything starts, run, reported and resumed.

The launches are simulated in this process; those in end_to_end have processes.
"""

import errno
import json
import os
import shutil
from collections import defaultdict
from pathlib import Path

import commbench_fake
import processes
import pytest
from click.shell_completion import ShellComplete
from processes import invoke, only, report, usage_error

from commbench import load
from commbench.backends.backend import Unavailability
from commbench.cli import run_command
from commbench.cli.main import main
from commbench.errors import (
    CommbenchError,
    LaunchError,
    ResultsError,
    UnavailableError,
    UnwritableError,
    VerificationError,
)
from commbench.harness import cases, options, runner
from commbench.machine import environment
from commbench.model import Stopping
from commbench.reports import opening
from commbench.store import directory, parts
from commbench.store.directory import RunStore


def run(output, *arguments, workload="merge"):
    return invoke("run", workload, *arguments, "--output", output)


@pytest.fixture(scope="module")
def good(tmp_path_factory, simulated):
    """Return the result of a good run of two backends, and its folder."""
    output = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        only(patch, "plot", "workload-time", "communication")
        result = run(output, "--backends", "fake,fake:slow", "--launches", 2, "--iterations", 2)
    (path,) = output.iterdir()
    return result, path


@pytest.fixture(autouse=True)
def plain(good, monkeypatch):
    """Save the time of drawing and concluding, except for the run that the tests share."""
    only(monkeypatch, "plot")
    only(monkeypatch, "rule")


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
        "graphs/merged-1.parquet",
        "line_times/merged-1.parquet",
        "wire/merged-1.parquet", "transports/merged-1.parquet", "report.md", "report.html",
    }  # fmt: skip
    text = (path / "report.md").read_text()
    assert all(name in text for name in figures if name.endswith(".png"))
    assert len(processes.records(path, "Sample")) == 2 * 2 * 3
    assert len(processes.records(path, "LaunchEnd")) == 4


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


def test_a_run_that_cannot_be_written_can_be_resumed(tmp_path, monkeypatch):
    """But not a side of an A/B, nor the profile of a script, whose stores are the same."""

    def append(store, record):
        with parts.writing(store.path, store.path / "samples.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunStore, "append", append)
    text = " ".join(run(tmp_path, "--backends", "fake").stderr.split())
    (path,) = tmp_path.iterdir()
    kept = f"{path}/samples.jsonl: No space left on device. What was measured before is kept in"
    resume = f"{kept} {path}. Make room, then go on with commbench run --resume {path}"
    assert resume in text
    monkeypatch.setenv("COMMBENCH_AB", "1")
    text = run(tmp_path, "--backends", "fake").stderr
    assert "No space left on device" in text
    assert "--resume" not in text


RESUMED = {
    "a workload": ("merge", "a run goes on with its options: commbench run --resume RUN"),
    "fewer launches": ("--launches 1", "--launches is 1, and the run has 2"),
    "a suite": ("suites/smoke.toml", "a run goes on with its options"),
    "no time": ("--timeout 0", "timeout is 0.0 s; it must be above 0"),
    "much and little output": ("-v -q", "--verbose prints all tables, and --quiet none"),
    "no budget": ("--detect 2", "--detect is 2; it must be above 0 and below 1"),
}


@pytest.mark.parametrize(("arguments", "message"), RESUMED.values(), ids=RESUMED)
def test_resuming_refuses_what_it_would_ignore(arguments, message, good, never_launched):
    manifest = (good[1] / "run.json").read_text()
    assert message in usage_error(invoke("run", *arguments.split(), "--resume", good[1]))
    assert (good[1] / "run.json").read_text() == manifest


def test_a_run_of_another_commit_does_not_go_on(good, monkeypatch, never_launched, tmp_path):
    run, git = shutil.copytree(good[1], tmp_path / "a run") / "run.json", {}
    described = json.loads(run.read_text())
    git["working_directory"] = {"commit": 40 * "a", "dirty": False}
    described["environment"]["git"] = git
    run.write_text(json.dumps(described))
    real = environment.collect()
    git = {"working_directory": {"commit": 40 * "a", "dirty": True}}
    monkeypatch.setattr(environment, "collect", lambda: real | {"git": git})
    message = usage_error(invoke("run", "--resume", run.parent, "--launches", 3))
    assert "git.working_directory: aaaaaaaaaa against aaaaaaaaaa, changed" in message


def test_a_run_goes_on_where_it_began(good, monkeypatch, never_launched):
    monkeypatch.setenv("UCX_TLS", "tcp")
    message = usage_error(invoke("run", "--resume", good[1], "--launches", 3))
    assert "began in another environment: variables.UCX_TLS: unknown against tcp" in message


def test_only_a_command_with_the_option_advises_to_skip(good, tmp_path, monkeypatch):
    lacking = Unavailability("it is worn out", "mend it")
    monkeypatch.setattr(
        "commbench.harness.cases.unmet", lambda case: lacking if "slow" in case.backend else None
    )
    arguments = ("--backends", "fake,fake:slow")
    assert "over fake: --skip-unavailable" in usage_error(run(tmp_path / "new", *arguments))
    message = usage_error(invoke("run", "--resume", good[1], "--launches", 3))
    assert message == "backend fake:slow is unavailable: it is worn out. To have it: mend it\n"


def test_a_run_that_is_measured_is_not_resumed(good, tmp_path, never_launched):
    path = shutil.copytree(good[1], tmp_path / "run")
    store = RunStore.reopen(path, to_measure=True)
    message = usage_error(invoke("run", "--resume", path, "--launches", 3))
    assert f"another process measures {path}" in message
    store.close()


def test_a_run_is_not_measured_by_others_while_its_records_are_read_and_merged(
    good, tmp_path, monkeypatch
):
    path = shutil.copytree(good[1], tmp_path / "run")
    refused = []

    def watched(function):
        def call(*args):
            with pytest.raises(ResultsError, match="another process measures"):
                RunStore.reopen(path, to_measure=True)
            refused.append(function.__name__)
            return function(*args)

        return call

    for owner, name in ((options, "resumed"), (parts, "merge")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    result = invoke("run", "--resume", path)
    assert result.exit_code == 0, result.output
    assert {*refused} == {"resumed", "merge"}
    RunStore.reopen(path, to_measure=True).close()


def test_options_before_a_workload_are_refused(good):
    result = invoke("run", "--launches", 3, "merge")
    assert result.exit_code == 2
    assert "write --launches after merge" in result.output
    result = invoke("run", "--resume", good[1], "merge")
    assert result.exit_code == 2
    assert "name none with --resume" in result.output


def test_a_resumed_run_can_have_more_launches(good, tmp_path):
    path = shutil.copytree(good[1], tmp_path / "run")
    result = invoke("run", "--resume", path, "--launches", 3, "--timeout", "10m")
    assert result.exit_code == 0, result.output
    assert len(processes.records(path, "LaunchEnd")) == 6
    cases = json.loads((path / "run.json").read_text())["suite"]["cases"]
    assert {(case["launches"], case["timeout_s"]) for case in cases} == {(3, 600.0)}


def test_quiet_prints_the_folder_and_verbose_all_tables(tmp_path):
    once = ("--backends", "fake", "--launches", 1, "--iterations", 1)
    result = run(tmp_path / "quiet", *once, "--quiet")
    (path,) = (tmp_path / "quiet").iterdir()
    assert (result.stdout, result.stderr) == (f"{path}\n", "")
    assert "Provenance" in run(tmp_path / "verbose", *once, "--verbose").stdout
    result = run(tmp_path / "failed", "--backends", "fake:wrong", "--launches", 1, "-q")
    assert result.exit_code == 1
    assert "expected 1, found 2" in result.stderr


def test_a_quick_run_has_a_small_problem_and_says_so(tmp_path):
    result = run(tmp_path, "--backends", "fake,fake:slow", "--quick", "--iterations", 1)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.iterdir()
    manifest = json.loads((path / "run.json").read_text())
    assert manifest["suite"]["cases"][0]["params"]["rows"] == 100_000
    assert manifest["stopping"]["budget_s"] <= 40
    assert 4 <= len(processes.records(path, "LaunchEnd")) <= 30
    assert "Its problem is small (--quick)" in " ".join(result.stdout.split())


@pytest.mark.parametrize(("given", "seed"), [((), 7), (("--seed", 8), 8)])
def test_the_seed_of_a_suite_file_is_that_of_the_order(given, seed, tmp_path, monkeypatch):
    planned, plan = [], cases.plan
    monkeypatch.setattr(cases, "plan", lambda *args, **_: planned.append(args) or plan(*args))
    file = tmp_path / "suite.toml"
    file.write_text('seed = 7\nbackends = ["fake"]\nlaunches = 1\n[[case]]\nworkload = "merge"\n')
    result = run(tmp_path / "results", *given, workload=file)
    manifest = load(result.stdout.splitlines()[-1]).manifest
    assert [seed for _, seed in planned] == [manifest.seed] == [seed]
    assert manifest.suite.cases[0].seed == seed


TWO = "--backends fake,fake:slow "


@pytest.mark.parametrize(
    ("workload", "arguments", "budget_s"),
    [
        ("merge", TWO, 300.0),
        ("merge", TWO + "--timeout 200", 300.0),
        ("merge", "--backends " + ",".join(["fake", *(f"fake@{n}" for n in range(8))]), 960.0),
        ("merge", "--vary threads=1|2", 300.0),
        ("merge", TWO + "--budget 50s", 50.0),
        ("merge", "", None),
        ("merge", TWO + "--iterations 3", None),
        ("merge", TWO + "--launches 6", None),
        ("merge", "--backends fake,ucx --skip-unavailable", None),
        # Efficiencies need launches, not verdicts.
        ("merge", "--workers 1..4", None),
        ("all-to-all", TWO, None),
    ],
)
def test_a_comparison_has_a_budget_unless_its_design_is_fixed(
    workload, arguments, budget_s, tmp_path, monkeypatch
):
    rules = []
    monkeypatch.setattr(
        run_command, "_execute", lambda store, *_: rules.append(store.manifest.stopping) or 0
    )
    unmet = Unavailability("no library", "install it", what="backend")
    monkeypatch.setattr(cases, "unmet", lambda case: unmet if case.backend == "ucx" else None)
    result = run(tmp_path, *arguments.split(), workload=workload)
    assert result.exit_code == 0, result.output
    assert rules == [budget_s and Stopping(budget_s=budget_s)]


@pytest.mark.parametrize("option", [("--rigorous",), ("--launches", "3")])
def test_a_quick_run_has_no_other_design(option, tmp_path, never_launched):
    assert "--quick" in usage_error(run(tmp_path / "results", "--quick", *option))


def test_the_duration_is_estimated_before_anything_starts(tmp_path, never_launched):
    arguments = ("--backends", "fake", "--workers", 500, "--sizes", "1GiB", "--timeout", "100s")
    result = run(tmp_path, *arguments, workload="all-to-all")
    assert "6 launches, about " in result.stderr
    text = " ".join(result.stderr.split())
    assert "warning: 500 workers share" in text
    assert "its deadline is 1.7 min: --timeout" in text


def test_a_second_interrupt_leaves_the_hint_and_the_status(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    def run_plan(plan, path):
        yield None
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_plan", run_plan)
    monkeypatch.setattr("commbench.cli.run_command.write_report", interrupted)
    result = run(tmp_path, "--backends", "fake")
    (path,) = tmp_path.iterdir()
    assert result.exit_code == 130
    assert f"interrupted; to go on: commbench run --resume {path}" in result.stderr
    assert result.stdout == f"{path}\n"


def test_an_interrupt_before_the_first_launch_has_no_report(tmp_path, monkeypatch):
    def run_plan(plan, path):
        yield None
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_plan", run_plan)
    result = run(tmp_path, "--backends", "fake")
    (path,) = tmp_path.iterdir()
    assert (result.exit_code, result.stdout) == (130, f"{path}\n")
    shown = invoke("report", path).stdout
    assert f"{opening.NEXT}\n  measure the rest: commbench run --resume {path}\n" in shown


def test_an_interrupt_anywhere_else_is_status_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("commbench.harness.suite.cases_for", interrupted)
    result = invoke("run", "merge")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


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
    "cluster of a pair": ("--hosts a", "pingpong", "is for the other workloads, such as"),
    "workload": ("", "merg", "unknown workload or suite 'merg' (did you mean 'merge'?)"),
    "rows": ("--rows 1.5e3.2", "merge", "--rows"),
    "seconds per size": ("--seconds-per-size 0", "pingpong", "must be above 0"),
    "iterations": ("--iterations 0", "merge", "iterations is 0; it must be at least 1"),
    "device": ("--device tpu", "merge", "'auto', 'cpu', 'gpu'"),
    "option": ("--row 10", "merge", "--row"),
    "suite file": ("", "no-such.toml", "can't read no-such.toml"),
    "racks": ("--racks no-such.toml", "merge", "can't read no-such.toml"),
}


@pytest.mark.parametrize(("arguments", "workload", "message"), USAGE.values(), ids=USAGE)
def test_bad_name_or_value_is_refused(arguments, workload, message, tmp_path, never_launched):
    output = tmp_path / "results"
    assert message in usage_error(run(output, *arguments.split(), workload=workload))
    assert not output.exists()


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


def test_processes_that_survive_a_launch_are_status_1(tmp_path, monkeypatch):
    def run_plan(plan, path):
        raise LaunchError("processes survive SIGKILL")
        yield

    monkeypatch.setattr(runner, "run_plan", run_plan)
    result = run(tmp_path, "--backends", "fake")
    assert result.exit_code == 1
    assert result.stderr.endswith("Error: processes survive SIGKILL\n")


def test_all_tables_of_a_run_are_printed_on_request(good):
    assert "Provenance" not in invoke("report", good[1]).stdout
    for arguments in (("-v",), ("--format", "tables")):
        assert "Provenance" in invoke("report", good[1], *arguments).stdout
    result = invoke("report", good[1], "-v", "--format", "json")
    assert result.exit_code == 2
    assert "--format json has all tables" in " ".join(result.output.split())


@pytest.fixture
def results(good, tmp_path, monkeypatch):
    """Return the folder ``results`` of the working directory, with two runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("20260101-000000-merge", "20260102-000000-merge"):
        ignored = shutil.ignore_patterns("figures", "logs", "report.html")
        run = shutil.copytree(good[1], tmp_path / "results" / name, ignore=ignored) / "run.json"
        run.write_text(json.dumps(json.loads(run.read_text()) | {"id": name}))
    return Path("results")


@pytest.mark.parametrize(
    "arguments",
    ["report latest", "run --resume latest", "model latest",
     "compare latest latest", "check latest --reference no", "export latest --output asv"],
)  # fmt: skip
def test_latest_is_the_newest_run_in_results(arguments, results, monkeypatch):
    text = invoke(*arguments.split()).output
    assert "20260101" not in text
    assert "there is no run in results/" not in text
    assert load("latest").manifest.id == "20260102-000000-merge"
    monkeypatch.setattr("commbench.store.directory.runs_in", lambda _: [])
    result = invoke(*arguments.split())
    assert result.exit_code == 2
    assert "there is no run in results/ yet" in result.output
    for wrong in ("latest", None):
        with pytest.raises(CommbenchError, match=r"a run's directory|the directory of a run"):
            load(wrong)


def test_a_folder_of_runs_is_no_run_and_the_newest_is_offered(results):
    result = invoke("report", results)
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert "results has 2 runs; the newest is results/20260102-000000-merge" in text


def test_a_copy_of_an_old_run_is_not_the_newest(results):
    old, new = sorted(results.iterdir())
    copy = json.loads((shutil.copytree(old, results / "baseline") / "run.json").read_bytes())
    copy["started_at"] = "2026-01-01T00:00:00+00:00"
    (results / "baseline" / "run.json").write_text(json.dumps(copy))
    assert directory.runs_in(results)[-1] == new


def test_open_writes_and_shows_the_page_of_the_latest_run(results, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = results / "20260102-000000-merge" / "report.html"
    for _ in range(2):
        assert invoke("open").stdout == f"{page}\n"
    assert opened == [page.absolute().as_uri()] * 2
    assert "fake:slow" in page.read_text()
    # A run that went on has a new page.
    page.write_text("an old page")
    os.utime(page, ns=(0, 0))
    assert str(page) not in invoke("report", page.parent).stdout
    assert invoke("open").stdout == f"{page}\n"
    assert "fake:slow" in page.read_text()
    assert str(page) in invoke("report", page.parent).stdout
    # One that can't be written is shown as it is.
    os.utime(page, ns=(0, 0))

    def refuse(path, _content):
        raise UnwritableError(f"can't write {path}: Read-only file system")

    monkeypatch.setattr("commbench.store.files.write", refuse)
    assert invoke("open").stdout == f"{page}\n"
    assert "holds no run" in usage_error(invoke("open", "nowhere"))


def completed(words, incomplete):
    complete = ShellComplete(main, {}, "commbench", "_COMMBENCH_COMPLETE")
    return {item.value for item in complete.get_completions(words.split(), incomplete)}


def test_a_workload_that_cannot_be_imported_hides_no_other(installed):
    problem = UnavailableError("workload broken", "its library is missing", "install it")
    installed("workload", {"broken": problem})
    result = invoke("run", "--help")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert " broken workload broken is unavailable: its library is missing. To have it: in" in text
    assert " merge inner join of two data frames" in text
    assert "merge" in completed("run", "")
    assert "broken" not in completed("run", "")
    assert completed("run broken", "--backe") == completed("run missing.py", "--backe")
    assert "its library is missing" in usage_error(invoke("run", "broken", "--rows", 5))


def test_commands_names_and_options_are_completed():
    assert {"merge", "pingpong"} <= completed("run", "")
    assert "merge" in completed("run unknown --backends", "")
    assert "run" in completed("unknown --backends", "")
    assert completed("run merge", "--backe") == {"--backends"}
    assert completed("run", "my_job.p") == {"my_job.p"}  # a file, by the shell


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_of_an_import_in_a_report_is_one(error, tmp_path, monkeypatch):
    class Descriptor:
        def __set_name__(self, *_):
            raise error

    monkeypatch.setattr(
        run_command, "write_report", lambda *_: type("", (), {"name": Descriptor()})
    )
    once = ("--backends", "fake", "--launches", 1, "--iterations", 1)
    result = run(tmp_path, *once)
    assert ("to go on: commbench run --resume" in result.stderr) == (error is KeyboardInterrupt)

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from click.testing import CliRunner

from commbench import __version__
from commbench.cli.main import main
from commbench.harness import runner
from commbench.machine import environment
from commbench.model import registry

PLUG_IN = '''
import os
from pathlib import Path
from commbench_fake import FakeBackend

class Moody(FakeBackend):
    """Fails as long as a file is not there."""
    head = "moody"

    def simulate(self, launch):
        if launch.index > 0 and not Path(os.environ["MOODY_FILE"]).exists():
            raise RuntimeError("not in the mood")
        yield from super().simulate(launch)
'''


def commbench(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run(output, *arguments, workload="merge"):
    return commbench("run", workload, *arguments, "--output", output)


def message(result):
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line.removeprefix("Error: ")


def runs_in(output):
    return sorted(output.iterdir()) if output.exists() else []


@pytest.fixture
def never_launched(monkeypatch):
    def run_plan(plan, logs):
        raise AssertionError("something was launched")

    monkeypatch.setattr(runner, "run_plan", run_plan)


@pytest.fixture(autouse=True)
def no_figures(good, monkeypatch):
    names = registry.names
    monkeypatch.setattr(registry, "names", lambda kind: [] if kind == "plot" else names(kind))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    output = tmp_path_factory.mktemp("results")
    result = run(output, "--backends", "fake,fake:slow", "--launches", 2, "--iterations", 2)
    (path,) = runs_in(output)
    return result, path


def test_a_run_reports_and_names_its_directory_last(good):
    result, path = good
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[-1] == str(path)
    assert "fake:slow" in result.stdout
    assert "[4/4]" in result.stderr
    assert "failed" not in result.stderr


def test_a_run_leaves_its_records_and_reports(good):
    _, path = good
    names = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    figures = {name for name in names if name.startswith("figures/")}
    assert names - figures == {
        "run.json", "samples.jsonl", "transfers/merged-1.parquet", "tasks/merged-1.parquet",
        "wire/merged-1.parquet", "transports/merged-1.parquet", "report.md", "report.html",
    }  # fmt: skip
    assert figures
    text = (path / "report.md").read_text()
    for name in figures:
        if name.endswith(".png"):
            assert name in text
    assert len(processes.records(path, "Sample")) == 2 * 2 * 3
    assert len(processes.records(path, "LaunchEnd")) == 4


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "csv", "json"])
def test_a_run_can_be_reported_again(good, form):
    result = commbench("report", good[1], "--format", form)
    assert result.exit_code == 0, result.output
    assert "fake:slow" in result.stdout
    if form == "json":
        report = json.loads(result.stdout)
        assert [case["n_samples"] for case in report["cases"]] == [4, 4]
        assert report["failures"] == []
        assert len(report["pairs"]) == 4


def test_the_smallest_transfer_that_counts_can_be_changed(good):
    result = commbench("report", good[1], "--format", "json", "--min-transfer", "8.1MB")
    report = json.loads(result.stdout)
    assert report["pairs"] == []
    assert report["run"]["min_transfer_bytes"] == 8_100_000


def test_a_report_in_pieces_is_whole(good, monkeypatch):
    whole = commbench("report", good[1], "--format", "json").stdout
    monkeypatch.setattr("commbench.cli.results._AT_ONCE", 7)
    assert commbench("report", good[1], "--format", "json").stdout == whole
    assert json.loads(whole)["run"]["id"] == good[1].name


def test_resuming_a_run_that_is_complete_launches_nothing(good):
    before = processes.records(good[1], "LaunchEnd")
    result = commbench("run", "--resume", good[1])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(good[1])
    assert processes.records(good[1], "LaunchEnd") == before


def test_a_failed_launch_is_status_1_and_one_message(tmp_path):
    result = run(tmp_path, "--backends", "fake,fake:wrong", "--launches", 1)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert result.stderr.count("fake: expected 1, found 2") == 1
    assert "FAILED" in result.stderr
    assert "[2/2]" in result.stderr
    assert "expected 1, found 2" in result.stdout
    path = Path(result.stdout.splitlines()[-1])
    report = json.loads(commbench("report", path, "--format", "json").stdout)
    assert [failure["backend"] for failure in report["failures"]] == ["fake:wrong"]
    assert "fake" in [case["backend"] for case in report["cases"]]


USAGE = {
    "workload": ((), "merg", "unknown workload 'merg' (did you mean 'merge'?); known: "),
    "backend": (("--backends", "fake,tpc"), "merge", "unknown backend 'tpc' (did you mean 'tcp'?)"),
    "transport": (("--backends", "ucx:warp"), "merge", "unknown transport 'warp' in backend"),
    "tcp's options": (("--backends", "tcp:shm"), "merge", "backend tcp takes no options"),
    "twice": (("--backends", "fake,fake"), "merge", "merge over fake with the same parameters"),
    "twice in other words": (
        ("--backends", "ucx:shm+tcp,ucx:tcp+shm"), "merge", "is asked for twice",
    ),
    "rows": (("--rows", "1.5e3.2"), "merge", "--rows"),
    "too few rows": (("--rows", "0"), "merge", "rows is 0; it must be at least"),
    "frac-match": (("--frac-match", "2"), "merge", "frac_match is 2.0; it must be above 0"),
    "shuffle": (("--shuffle", "disk"), "merge", "'tasks', 'p2p'"),
    "sizes": (("--sizes", "1,zz"), "pingpong", "zz"),
    "no sizes": (("--sizes", ","), "pingpong", "',' names nothing"),
    "size 0": (("--sizes", "1,0"), "pingpong", "a message size of 0 B can't be sent"),
    "layers": (("--layers", "comm,wires"), "pingpong", "unknown layer 'wires'"),
    "seconds per size": (("--seconds-per-size", "0"), "pingpong", "must be above 0"),
    "iterations": (("--iterations", "0"), "merge", "iterations is 0; it must be at least 1"),
    "launches": (("--launches", "-2"), "merge", "launches is -2; it must be at least 1"),
    "warmups": (("--warmups", "-1"), "merge", "warmups is -1; it must be at least 0"),
    "seed": (("--seed", "-1"), "merge", "seed is -1; it must be at least 0"),
    "timeout": (("--timeout", "soon"), "merge", "soon"),
    "timeout 0": (("--timeout", "0s"), "merge", "timeout is 0"),
    "workers": (("--workers", "0"), "merge", "worker"),
    "device": (("--device", "tpu"), "merge", "'auto', 'cpu', 'gpu'"),
    "min-transfer": (("--min-transfer", "much"), "merge", "much"),
    "option": (("--row", "10"), "merge", "--row"),
    "suite file": ((), "no-such.toml", "can't read the suite no-such.toml"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "workload", "words"), USAGE.values(), ids=USAGE)
def test_a_wrong_name_or_value_is_told_before_anything_starts(
    arguments, workload, words, tmp_path, never_launched
):
    result = run(tmp_path / "results", *arguments, workload=workload)
    assert words in message(result)
    assert runs_in(tmp_path / "results") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "name a workload, a suite file or a run to --resume"),
        (("run", "--resume", "nowhere"), "nowhere holds no run"),
        (("run", "merge", "--resume", "nowhere"), "nowhere holds no run"),
        (("report", "nowhere"), "nowhere holds no run"),
        (("report", "nowhere", "--format", "yaml"), "unknown report 'yaml'"),
        (("reprot",), "unknown command 'reprot' (did you mean 'report'?)"),
    ],
)
def test_a_command_that_makes_no_sense_is_told(arguments, words, never_launched):
    assert words in message(commbench(*arguments))


def test_a_damaged_description_is_told(good, tmp_path):
    description = json.loads((good[1] / "run.json").read_text())
    file = tmp_path / "run.json"
    for content, words in (
        ("{", f"can't read {file}"),
        (json.dumps({**description, "schema_version": 99}), "schema version 99"),
        (json.dumps({**description, "surprise": 1}), "is damaged"),
        ("[]", "schema version None"),
    ):
        file.write_text(content)
        assert words in message(commbench("report", tmp_path))


ABSENT = {
    "ucx:ib": ("no RDMA device is present", "InfiniBand or RoCE"),
    "ucx:nvlink": ("no NVIDIA GPU is visible", "run on a machine with GPUs"),
}


@pytest.fixture(params=ABSENT)
def absent(request):
    if not importlib.util.find_spec("ucxx"):
        pytest.skip("ucxx is not installed, which is told first")
    has = environment.rdma_devices() if request.param == "ucx:ib" else environment.gpus()
    if has:
        pytest.skip(f"this machine may well have {request.param}")
    return request.param, ABSENT[request.param]


def test_an_absent_backend_is_told_before_anything_starts(absent, tmp_path, never_launched):
    name, words = absent
    told = message(run(tmp_path / "results", "--backends", f"fake,{name}", "--device", "cpu"))
    assert told.startswith(f"backend {name} is unavailable: {words[0]}")
    assert words[1] in told
    assert "--skip-unavailable" in told
    assert runs_in(tmp_path / "results") == []


def test_an_absent_backend_can_be_skipped(absent, tmp_path):
    name, words = absent
    options = ("--device", "cpu", "--launches", 1, "--iterations", 1, "--skip-unavailable")
    result = run(tmp_path, "--backends", f"{name},fake", *options)
    assert result.exit_code == 0, result.output
    assert f"skipped: backend {name} is unavailable: {words[0]}" in result.stderr
    (path,) = runs_in(tmp_path)
    assert len(processes.records(path, "LaunchEnd")) == 1


def test_nothing_to_measure_is_an_error(absent, tmp_path, never_launched):
    options = ("--device", "cpu", "--skip-unavailable", "--output", tmp_path / "results")
    result = commbench("run", "merge", "--backends", absent[0], *options)
    assert result.exit_code == 2
    assert "no backend is left to measure" in result.stderr
    assert runs_in(tmp_path / "results") == []


def test_a_suite_file_runs_with_overrides(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(
        'backends = ["fake"]\nlaunches = 5\niterations = 1\nwarmups = 0\n'
        '[[case]]\nworkload = "merge"\nparams = { rows = 77 }\n'
        '[[case]]\nworkload = "svd"\n'
    )
    result = commbench("run", file, "--launches", 1, "--output", tmp_path / "results")
    assert result.exit_code == 0, result.output
    (path,) = runs_in(tmp_path / "results")
    assert path.name.endswith("-small")
    suite = json.loads((path / "run.json").read_text())["suite"]
    assert [case["workload"] for case in suite["cases"]] == ["merge", "svd"]
    assert suite["cases"][0]["params"]["rows"] == 77
    assert len(processes.records(path, "LaunchEnd")) == 2


def test_a_failed_launch_is_run_again_on_resume(tmp_path, monkeypatch):
    folder = processes.plug_in(
        tmp_path / "plugged", "moody_backend", PLUG_IN, backends={"moody": "Moody"}
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("MOODY_FILE", str(tmp_path / "mood"))
    output = tmp_path / "results"
    result = run(output, "--backends", "moody,fake", "--launches", 3, "--iterations", 1)
    assert result.exit_code == 1
    (path,) = runs_in(output)
    (tmp_path / "mood").touch()
    result = commbench("run", "--resume", path)
    assert result.exit_code == 0, result.output
    assert runs_in(output) == [path]
    ends = processes.records(path, "LaunchEnd")
    by_case = {}
    for end in ends:
        by_case.setdefault(end["case_id"], []).append((end["launch"], end["ok"]))
    moody, fake = sorted(by_case.values(), key=len, reverse=True)
    assert moody == [(0, True), (1, False), (2, False), (3, True), (4, True)]
    assert fake == [(0, True), (1, True), (2, True)]
    report = json.loads(commbench("report", path, "--format", "json").stdout)
    assert [case["n_launches"] for case in report["cases"]] == [3, 3]


def test_results_that_cannot_be_written_are_status_1(tmp_path, never_launched):
    (tmp_path / "file").write_text("")
    result = run(tmp_path / "file" / "results", "--backends", "fake")
    assert f"{tmp_path}/file/results" in result.stderr
    assert "--output" in result.stderr
    assert "Traceback" not in result.output
    assert result.exit_code == 1


def test_list_names_what_there_is():
    result = commbench("list")
    assert result.exit_code == 0
    for name in ("merge", "pingpong", "tcp", "ucx", "markdown", "local"):
        assert name in result.stdout


@pytest.mark.parametrize("workload", ["all-to-all", "merge", "pingpong", "svd", "transpose-sum"])
def test_every_workload_explains_its_options(workload):
    result = commbench("run", workload, "--help")
    assert result.exit_code == 0
    own = {"merge": "--frac-match", "pingpong": "--sizes", "svd": "--rows",
           "all-to-all": "--sizes"}  # fmt: skip
    for option in (own.get(workload, "--chunk"), "--backends", "--launches", "--resume"):
        assert option in result.stdout


def test_the_version_is_the_packages():
    assert __version__ in commbench("--version").stdout


@pytest.mark.parametrize("command", [["-m", "commbench.cli"], ["-m", "dask", "commbench"]])
def test_it_can_be_called_as_a_module_and_from_dask(command):
    ended = subprocess.run(
        [sys.executable, *command, "run", "merge", "--help"],
        capture_output=True, text=True, check=True, timeout=processes.PATIENCE_SECONDS,
    )  # fmt: skip
    assert "--frac-match" in ended.stdout
    assert ended.stderr == ""


def test_the_orchestrator_loads_no_library_that_it_does_not_need(tmp_path):
    code = (
        "import sys; from commbench.cli import main as cli; from commbench.harness import runner\n"
        "def run_plan(plan, logs):\n"
        "    heavy = {'dask', 'distributed', 'numpy', 'pandas', 'ucxx', 'mpi4py', 'matplotlib'}\n"
        "    print('loaded:', sorted(heavy & set(sys.modules)), flush=True)\n"
        "    sys.exit(0)\n"
        "    yield\n"
        "runner.run_plan = run_plan\n"
        f"cli.main(['run', 'merge', '--backends', 'tcp,fake', '--output', {str(tmp_path)!r}])\n"
    )
    text = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=processes.PATIENCE_SECONDS
    )
    assert text == "loaded: []\n"

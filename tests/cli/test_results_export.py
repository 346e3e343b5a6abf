"""A run is handed over to other programs in formats that these read."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import builders
import pyperf
import pytest
from click.testing import CliRunner

from commbench.cli.main import main
from commbench.reports import pyperf as pyperf_report

MACHINE = {
    "host": {"name": "node1", "kernel": "Linux 6.1\n#1 SMP"},
    "cpu": {"model": "A", "logical_cores": 4},
    "python": "CPython 3.11.7",
    "packages": {"commbench": "0.1", "distributed": "2026.7.1"},
}
MERGES = tuple(builders.case(name, params={"rows": 1}) for name in ("tcp", "ucx"))
PINGPONG = builders.case(workload="pingpong", params={"sizes": (1, 8), "mode": "latency"})


def commbench(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result


def messages(case, n_launches=6):
    records = []
    for launch in range(n_launches):
        for size in (1, 8):
            for iteration in range(-1, 4):
                seconds = 1e-6 * (size + launch + iteration / 10)
                records.append(
                    builders.message(
                        case,
                        seconds,
                        size,
                        launch=launch,
                        iteration=iteration,
                        started_at_s=builders.EPOCH + 100 * launch + iteration,
                    )
                )
        records.append(builders.end(case, launch=launch))
    return records


@pytest.fixture
def path(tmp_path):
    records = [
        r for case in MERGES for r in builders.launches(case, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    ]
    records += messages(PINGPONG)
    return builders.written(
        tmp_path / "runs", (*MERGES, PINGPONG), records, environment=MACHINE
    ).path


def exported(path, form):
    file = path.parent / f"out.{form}"
    result = commbench("export", path, "--to", form, "--output", file)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{file}\n"
    return file


@pytest.mark.parametrize("form", ["csv", "osu", "junit", "pyperf"])
def test_an_export_is_the_report_in_a_file(path, form):
    report = commbench("report", path, "--format", form)
    assert report.exit_code == 0, report.output
    assert exported(path, form).read_text() == report.stdout


def test_without_a_file_it_is_printed(path):
    result = commbench("export", path, "--to", "csv")
    assert result.exit_code == 0
    assert result.stdout == exported(path, "csv").read_text()


def test_pyperf_reads_the_samples(path):
    suite = pyperf.BenchmarkSuite.load(str(exported(path, "pyperf")))
    names = suite.get_benchmark_names()
    assert len(names) == 4
    benchmark = suite.get_benchmark(names[0])
    assert names[0].startswith("merge over tcp (rows=1, workers=2, ")
    assert benchmark.get_nrun() == 6
    assert [len(run.values) for run in benchmark.get_runs()] == [3] * 6
    assert [len(run.warmups) for run in benchmark.get_runs()] == [1] * 6
    assert benchmark.get_runs()[0].warmups == ((1, 50.0),)
    assert benchmark.median() == pytest.approx(1.25, rel=0.01)
    metadata = benchmark.get_metadata()
    assert (metadata["hostname"], metadata["python_version"]) == ("node1", "3.11.7")
    assert metadata["platform"] == "Linux 6.1 #1 SMP"
    small = suite.get_benchmark(next(name for name in names if " comm 1 B " in name))
    assert statistics.median(small.get_values()) == pytest.approx(3.65e-6)


@pytest.mark.parametrize("command", ["stats", "compare_to"])
def test_pyperfs_own_commands_take_it(path, tmp_path, command):
    slower = [
        r for case in MERGES for r in builders.launches(case, [2.0 + n / 10 for n in range(6)])
    ]
    other = builders.written(tmp_path / "other", MERGES, slower, environment=MACHINE).path
    files = [exported(path, "pyperf")]
    if command == "compare_to":
        files.append(exported(other, "pyperf"))
    ended = subprocess.run(
        [sys.executable, "-m", "pyperf", command, *files],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    words = "Total number of values: 18" if command == "stats" else "1.80x slower"
    assert words in ended.stdout


def test_pyperf_gets_no_value_of_zero(tmp_path):
    """What the clock was too coarse for is left out, since pyperf takes no 0."""
    case = builders.case()
    records = builders.ended(
        [builders.sample(case, s, iteration=n) for n, s in enumerate((0.0, 2.0))]
    )
    path = builders.written(tmp_path, (case,), records).path
    suite = pyperf.BenchmarkSuite.load(str(exported(path, "pyperf")))
    assert suite.get_benchmarks()[0].get_values() == (2.0,)


def test_launches_that_failed_are_not_exported(tmp_path):
    good, bad = MERGES
    records = [
        *builders.launches(good, [1.0] * 2), builders.sample(good, 9.0, launch=2),
        builders.end(good, launch=2, ok=False), builders.sample(bad, 9.0),
        builders.failure(bad), builders.end(bad, ok=False),
    ]  # fmt: skip
    path = builders.written(tmp_path, MERGES, records).path
    suite = pyperf.BenchmarkSuite.load(str(exported(path, "pyperf")))
    assert [b.get_metadata()["backend"] for b in suite.get_benchmarks()] == ["tcp"]
    assert max(suite.get_benchmarks()[0].get_values()) < 2


@pytest.mark.parametrize("form", ["pyperf", "asv"])
def test_a_run_without_a_good_launch_has_nothing_to_export(tmp_path, form):
    case = builders.case()
    path = builders.written(tmp_path, (case,), [builders.failure(case)], environment=MACHINE).path
    asv = ("--output", tmp_path / "asv", "--commit", "HEAD", "--repository", Path(__file__).parent)
    result = commbench("export", path, "--to", form, *(asv if form == "asv" else ()))
    assert result.exit_code == 2
    assert "no launch of 20250101-000000-made-up ended well" in result.stderr


def test_the_settings_are_in_the_names(recorded):
    cases = [builders.case(params={"rows": rows}) for rows in (1, 2)]
    content = recorded(cases, [r for case in cases for r in builders.launches(case, [1.0] * 2)])
    suite = json.loads(pyperf_report.render(content))
    first, second = (benchmark["metadata"]["name"] for benchmark in suite["benchmarks"])
    assert first.replace("rows=1", "rows=2") == second


def test_junit_tells_which_case_failed(tmp_path):
    cases = (*MERGES, builders.case("mpi"))
    records = [
        *builders.launches(cases[0], [1.0] * 2),
        *builders.launches(cases[1], [1.0]),
        builders.failure(cases[1], "it <broke>\nin two lines", launch=1),
        builders.end(cases[1], launch=1, ok=False),
    ]
    path = builders.written(tmp_path, cases, records).path
    suite = ElementTree.fromstring(exported(path, "junit").read_text())
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["3", "0", "1", "1"]
    good, bad, none = suite.findall("testcase")
    assert good.get("classname") == "commbench.merge"
    assert good.get("time") == "18"
    assert "median 1.00 s of 2 launches, 6 samples" in (good.findtext("system-out") or "")
    error = bad.find("error")
    assert error is not None
    assert error.get("message") == "1 of 2 launches failed: it <broke>"
    assert "in two lines" in (error.text or "")
    assert none.find("skipped") is not None


BAD = {
    "format": (
        ("--to", "asw"),
        "unknown export format 'asw' (did you mean 'asv'?); known: asv, csv",
    ),
    "no format": ((), "Missing option '--to'"),
    "asv's option": (
        ("--to", "csv", "--commit", "HEAD"),
        "--commit: only an export --to asv takes",
    ),
    "asv's flag": (
        ("--to", "csv", "--force"),
        "--force: only an export --to asv takes that, not csv",
    ),
    "no results_dir": (
        ("--to", "asv"),
        "give asv's results_dir, as asv.conf.json has it: --output",
    ),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_an_export_that_makes_no_sense_is_told(path, arguments, words):
    result = commbench("export", path, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr


def test_a_file_that_can_t_be_written_is_told(path, tmp_path):
    file = tmp_path / "no" / "such" / "out.csv"
    result = commbench("export", path, "--to", "csv", "--output", file)
    assert result.exit_code == 1
    assert f"can't write {file}" in result.stderr

"""Formats of ``commbench report`` that other programs read."""

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import builders
import pyperf
import pytest
from processes import invoke, usage_error

from commbench.model import USER_CODE, ClusterSpec
from commbench.reports import pyperf as pyperf_report

MACHINE = {
    "host": {"name": "node1", "kernel": "Linux 6.1\n#1 SMP"},
    "cpu": {"model": "A", "logical_cores": 4},
    "python": "CPython 3.11.7",
    "packages": {"commbench": "0.1", "distributed": "2026.7.1"},
}
MERGES = tuple(builders.case(name, params={"rows": 1}) for name in ("tcp", "ucx"))
PINGPONG = builders.case(workload="pingpong", params={"sizes": (1, 8), "mode": "latency"})


def merges(first_s):
    """Return six launches of each merge, each a tenth of a second slower than the one before."""
    medians = [first_s + n / 10 for n in range(6)]
    return builders.launches(MERGES, medians)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a run of two merges, and of ping-pongs of two sizes, microseconds apart."""
    records = merges(1.0)
    for launch, size, iteration in itertools.product(range(6), (1, 8), range(-1, 4)):
        seconds = 1e-6 * (size + launch + iteration / 10)
        start = builders.EPOCH + 100 * launch + iteration
        message = {"launch": launch, "iteration": iteration, "started_at_s": start}
        records.append(builders.message(PINGPONG, seconds, size, **message))
    records += [builders.end(PINGPONG, launch=launch) for launch in range(6)]
    output = tmp_path_factory.mktemp("runs")
    return builders.written(output, (*MERGES, PINGPONG), records, environment=MACHINE).path


def exported(path, form):
    file = path.parent / f"out.{form}"
    result = invoke("report", path, "--format", form)
    assert result.exit_code == 0, result.output
    file.write_text(result.stdout, encoding="utf-8")
    return file


def test_pyperf_reads_samples_and_metadata(path):
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


def test_pyperf_compares_exported_runs(path, tmp_path):
    slower = builders.written(tmp_path, MERGES, merges(2.0), environment=MACHINE).path
    files = [exported(path, "pyperf"), exported(slower, "pyperf")]
    command = [sys.executable, "-m", "pyperf", "compare_to", *files]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert "1.80x slower" in ended.stdout


def test_times_of_zero_are_not_exported_to_pyperf(tmp_path):
    """A coarse clock may measure 0, which pyperf refuses."""
    case = builders.case()
    samples = [builders.sample(case, s, iteration=n) for n, s in enumerate((0.0, 2.0))]
    records = builders.ended(samples)
    path = builders.written(tmp_path, (case,), records).path
    suite = pyperf.BenchmarkSuite.load(str(exported(path, "pyperf")))
    assert suite.get_benchmarks()[0].get_values() == (2.0,)


def test_failed_launches_are_not_exported(tmp_path):
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
def test_run_without_a_good_launch_is_refused(tmp_path, form):
    case = builders.case()
    path = builders.written(tmp_path, (case,), [builders.failure(case)], environment=MACHINE).path
    asv = ("--output", tmp_path / "asv", "--commit", "HEAD", "--repository", Path(__file__).parent)
    command = ("export", path, *asv) if form == "asv" else ("report", path, "--format", form)
    result = invoke(*command)
    assert "no launch of 20250101-000000-made-up ended well" in usage_error(result)


def test_pyperf_names_have_the_parameters(recorded):
    cases = [builders.case(params={"rows": rows}) for rows in (1, 2)]
    run = recorded(cases, builders.launches(cases, [1.0] * 2))
    suite = json.loads(pyperf_report.render(run))
    first, second = (benchmark["metadata"]["name"] for benchmark in suite["benchmarks"])
    assert first.replace("rows=1", "rows=2") == second


def test_pyperf_names_have_the_exact_size_of_a_message(recorded):
    ping = builders.case(workload="pingpong")
    every = builders.case(workload="all-to-all", n_workers=3)
    sizes = {8191: (ping, "comm"), 8193: (ping, "comm"), 6 << 20: (every, "together")}
    records = [
        builders.message(case, 1e-3, size, launch=launch, layer=layer)
        for size, (case, layer) in sizes.items()
        for launch in range(2)
    ]
    text = pyperf_report.render(recorded([ping, every], builders.ended(records)))
    names = [benchmark["metadata"]["name"] for benchmark in json.loads(text)["benchmarks"]]
    for words in ("comm 8,191 B", "comm 8,193 B", "together 1 MiB"):
        assert sum(words in name for name in names) == 1


def test_junit_has_failed_and_skipped_cases(tmp_path):
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


def test_junit_has_the_seconds_of_regions_and_no_failure_of_their_one_launch(tmp_path):
    cases = [
        builders.case(workload=name, cluster=ClusterSpec(launcher=USER_CODE))
        for name in ("load", "train")
    ]
    records = [builders.failure(cases[0], "12 tasks of the region train are not recorded")]
    for n, (case, seconds) in enumerate(zip(cases, (1.0, 5.0), strict=True)):
        records.append(builders.region(case, seconds, iteration=n))
        records.append(builders.sample(case, seconds, iteration=n, tool="your code"))
        records.append(builders.end(case))
    path = builders.written(tmp_path, cases, records).path
    first, second = ElementTree.fromstring(exported(path, "junit").read_text()).iter("testcase")
    assert (first.get("time"), second.get("time")) == ("1", "5")
    error = first.find("error")
    assert error is not None
    assert error.get("message") == "12 tasks of the region train are not recorded"


def test_junit_has_the_size_of_one_pair_of_those_that_fetch_at_once(tmp_path):
    case = builders.case(workload="all-to-all")
    records = [builders.message(case, 1.0, 2 << 20, layer="together"), builders.end(case)]
    path = builders.written(tmp_path, [case], records).path
    assert "together 1 MiB: median 1.00 s" in exported(path, "junit").read_text()


def test_an_export_without_a_folder_is_refused(path):
    assert "Missing option '--output'" in usage_error(invoke("export", path))

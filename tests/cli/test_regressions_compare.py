"""Two runs are compared case by case, or it is said why they can't be."""

from __future__ import annotations

import json

import builders
import pytest
from click.testing import CliRunner

from commbench import load
from commbench.cli.main import main
from commbench.model import ClusterSpec

STEADY = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]
MACHINE = {
    "host": {"name": "node1", "kernel": "Linux 6.1"},
    "cpu": {"model": "A", "usable_cores": 4},
    "memory": {"total_bytes": 16_000_000_000},
    "python": "CPython 3.11.7",
    "packages": {"commbench": "0.1", "dask": "2026.7.1", "ucxx": None},
    "gpus": [{"name": "H100", "driver": "550"}],
    "variables": {},
}
CASES = (builders.case("tcp", params={"rows": 1}), builders.case("ucx", params={"rows": 1}))


def commbench(*arguments):
    environ = {"COLUMNS": "160"}
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env=environ)
    assert "Traceback" not in result.output
    return result


def run(
    folder, name, factor = 1.0, cases = CASES,
    environment = None, records = None,
):  # fmt: skip
    if records is None:
        records = [
            record
            for case in cases
            for record in builders.launches(case, [factor * value for value in STEADY])
        ]
    given = {"id": name, "environment": MACHINE if environment is None else environment}
    return builders.written(folder, cases, records, **given).path


def test_a_regression_is_status_3(tmp_path):
    result = commbench("compare", run(tmp_path, "old"), run(tmp_path, "new", 1.3))
    assert result.exit_code == 3
    assert result.stdout.count("slower") >= 2
    assert "1.30×" in result.stdout
    assert "Slower: 2 of 2." in result.stdout
    assert "old" in result.stdout.splitlines()[0]


@pytest.mark.parametrize(("factor", "verdict"), [(0.7, "faster"), (1.0, "same")])
def test_no_regression_is_status_0(factor, verdict, tmp_path):
    old, new = run(tmp_path, "old"), run(tmp_path, "new", factor)
    result = commbench("compare", old, new, "--min-effect", "10%", "--format", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [c["verdict"] for c in told["comparisons"]] == [verdict] * 2
    assert [c["candidate"] for c in told["comparisons"]] == ["tcp", "ucx"]
    assert told["comparisons"][0]["min_effect"] == 0.1
    assert (told["differences"], told["alone"]) == ([], [])


def test_a_run_compared_with_itself_is_not_surer_than_it_is(tmp_path):
    path = run(tmp_path, "old")
    told = json.loads(commbench("compare", path, path, "--format", "json").stdout)
    assert all(c["ci_low"] < 1 < c["ci_high"] for c in told["comparisons"])


OTHER = {
    "host": ({"host": {"name": "node2", "kernel": "Linux 6.1"}}, "host.name: node1 against node2"),
    "kernel": ({"host": {"name": "node1"}}, "host.kernel: Linux 6.1 against unknown"),
    "cpu": ({"cpu": {"model": "B", "usable_cores": 4}}, "cpu.model: A against B"),
    "cores": ({"cpu": {"model": "A", "usable_cores": 2}}, "cpu.usable_cores: 4 against 2"),
    "memory": (
        {"memory": {"total_bytes": 8_000_000_000}}, "memory.total_bytes: 16.0 GB against 8.00 GB",
    ),
    "python": ({"python": "CPython 3.12.1"}, "python: CPython 3.11.7 against CPython 3.12.1"),
    "package": (
        {"packages": {"commbench": "0.1", "dask": "2026.8.0"}},
        "packages.dask: 2026.7.1 against 2026.8.0",
    ),
    "commbench": (
        {"packages": {"commbench": "0.2", "dask": "2026.7.1"}}, "packages.commbench: 0.1 against",
    ),
    "driver": ({"gpus": [{"name": "H100", "driver": "560"}]}, "driver 550"),
    "variable": ({"variables": {"UCX_TLS": "tcp"}}, "variables.UCX_TLS: unknown against tcp"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), OTHER.values(), ids=OTHER)
def test_another_machine_or_version_is_refused(change, words, tmp_path):
    old, new = run(tmp_path, "old"), run(tmp_path, "new", environment=MACHINE | change)
    result = commbench("compare", old, new)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert "--force" in result.stderr
    forced = commbench("compare", old, new, "--force", "--format", "json")
    assert forced.exit_code == 0
    (difference,) = json.loads(forced.stdout)["differences"]
    assert words.startswith(difference["key"]) or difference["key"] == "gpus"
    assert "not the same: " in commbench("compare", old, new, "--force").stdout


def test_memory_may_differ_by_a_few_pages(tmp_path):
    change = {"memory": {"total_bytes": 16_000_010_000}}
    old, new = run(tmp_path, "old"), run(tmp_path, "new", environment=MACHINE | change)
    assert commbench("compare", old, new).exit_code == 0


CHANGED = {
    "parameter": ({"params": {"rows": 2}}, "merge over tcp: params.rows: 1 against 2"),
    "cluster": (
        {"params": {"rows": 1}, "cluster": ClusterSpec(n_workers=3)},
        "merge over tcp: cluster.n_workers: 2 against 3",
    ),
    "iterations": ({"params": {"rows": 1}, "iterations": 9}, "tcp: iterations: 3 against 9"),
    "warm-ups": ({"params": {"rows": 1}, "warmups": 0}, "tcp: warmups: 1 against 0"),
}


@pytest.mark.parametrize(("change", "words"), CHANGED.values(), ids=CHANGED)
def test_other_parameters_are_refused(change, words, tmp_path):
    old = run(tmp_path, "old", cases=CASES[:1])
    new = run(tmp_path, "new", cases=(builders.case("tcp", **change),))
    result = commbench("compare", old, new)
    assert result.exit_code == 2
    assert words in result.stderr
    forced = commbench("compare", old, new, "--force", "--format", "json")
    assert len(json.loads(forced.stdout)["comparisons"]) == 1


def test_more_launches_are_no_other_parameters(tmp_path):
    case = builders.case("tcp", params={"rows": 1}, launches=9, seed=7, timeout_s=9.0)
    old, new = run(tmp_path, "old", cases=CASES[:1]), run(tmp_path, "new", cases=(case,))
    assert commbench("compare", old, new).exit_code == 0


def test_a_case_of_one_run_alone_is_told(tmp_path):
    old, new = run(tmp_path, "old"), run(tmp_path, "new", cases=CASES[:1])
    result = commbench("compare", old, new)
    assert result.exit_code == 0
    assert "merge over ucx is in old alone" in result.stdout


def test_runs_without_a_case_in_common_are_told(tmp_path):
    old, new = run(tmp_path, "old", cases=CASES[:1]), run(tmp_path, "new", cases=CASES[1:])
    result = commbench("compare", old, new)
    assert result.exit_code == 2
    assert "merge over tcp is in old alone; merge over ucx is in new alone" in result.stderr


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_run_of_failures_only_is_told(force, tmp_path):
    failures = [builders.failure(case) for case in CASES]
    failures += [builders.end(case, ok=False) for case in CASES]
    old, new = run(tmp_path, "old"), run(tmp_path, "new", records=failures)
    result = commbench("compare", old, new, *force)
    assert result.exit_code == 2
    assert "no launch of a case ended well in both" in result.stderr


def test_too_few_launches_for_so_many_cases_are_told(tmp_path):
    case = builders.case("tcp", "pingpong")
    records = [
        record
        for launch in range(6)
        for record in [
            *(builders.message(case, 1.0 + launch, 1 + size, launch=launch) for size in range(40)),
            builders.end(case, launch=launch),
        ]
    ]
    paths = [run(tmp_path, name, cases=(case,), records=records) for name in ("old", "new")]
    text = " ".join(commbench("compare", *paths).stdout.split())
    assert "6 launches can't tell 40 cases apart at 5 %, whatever their times: it takes 7" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "nowhere"), "nowhere holds no run"),
        (("nowhere", "nowhere", "--min-effect", "much"), "'much' is not a share"),
        (("nowhere", "nowhere", "--min-effect", "-1"), "--min-effect is -1; it must be 0 or more"),
        (("nowhere",), "Missing argument 'RUN_B'"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_told(arguments, words):
    result = commbench("compare", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_what_disturbed_one_run_stands_beside_the_verdict(tmp_path):
    """A difference may be that of the load which one of the runs had beside it."""
    records = [
        record
        for case in CASES
        for record in (
            *(builders.core_use(case, launch=launch, others=0.4) for launch in range(6)),
            *builders.launches(case, [1.3 * value for value in STEADY]),
        )
    ]
    old, new = run(tmp_path, "old"), run(tmp_path, "new", records=records)
    said = " ".join(commbench("compare", old, new).stdout.split())
    assert "the second run: other processes used the cores in" in said
    assert "the first run: other processes" not in said
    told = json.loads(commbench("compare", old, new, "--format", "json").stdout)["warnings"]
    assert any(text.startswith("the second run: other processes") for text in told)


def test_what_is_wrong_with_a_run_alone_is_not_beside_the_verdict(tmp_path):
    records = [
        record
        for case in CASES
        for record in (builders.transfer(case, 1.0, 1.0), *builders.launches(case, STEADY))
    ]
    old, new = run(tmp_path, "old"), run(tmp_path, "new", records=records)
    assert any("they are in no bandwidth" in text for text in load(new).warnings)
    said = commbench("compare", old, new, "--format", "json").stdout
    assert "they are in no bandwidth" not in said

"""Two environments are measured in turns, and compared block by block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import processes
import pytest
from click.testing import CliRunner

from commbench import load
from commbench.cli.main import main

# What stands for an environment's Python: its ``-m commbench.cli run`` makes up a run at once, in
# which blocks differ by half, as on a machine that others use.
PYTHON = """#!{python}
import json, os, sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
import builders
given = sys.argv[1:]
assert given[:3] == ["-m", "commbench.cli", "run"], given
assert os.environ["PYTHONSAFEPATH"] == "1" and "PYTHONPATH" not in os.environ
def value(option):
    return given[len(given) - 1 - given[::-1].index(option) + 1]
seed = int(value("--seed"))
with open({log!r}, "a") as log:
    log.write(json.dumps([{name!r}, seed, given[3:-6]]) + "\\n")
{special}
case = builders.case("tcp", params={params!r}, launches=int(value("--launches")))
records = builders.launches(case, [{factor} * (1 + 0.5 * (seed * 7919 % 10) / 10)])
if {many}:
    records += [builders.transfer(case, 0.0, 0.5), builders.task(case, 0.0, 0.5),
                builders.wire(case, 1000), builders.transport(case)]
git = {{"working_directory": {{"commit": "a"}}}}
environment = {{"packages": {{"project": {name!r}}}, "git": git}}
print(builders.written(Path(value("--output")), [case], records, environment=environment).path)
"""
FAILS = """
if seed == 1:
    case = builders.case("tcp", params={"rows": 1}, launches=1)
    records = [builders.failure(case), builders.end(case, ok=False)]
    store = builders.written(Path(value("--output")), [case], records)
    (store.path / "logs").mkdir()
    (store.path / "logs" / "launch.log").write_text("why")
    sys.exit(1)
"""


def python(
    folder, name, factor = 1.0, *, special = "", rows = 1,
    many = False,
):  # fmt: skip
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    file = folder / f"python-{name}"
    file.write_text(
        PYTHON.format(
            python=sys.executable,
            paths=paths,
            log=str(folder / "log"),
            name=name,
            factor=factor,
            special=special,
            many=many,
            params={"rows": rows},
        )
    )
    file.chmod(0o755)
    return file


def ab(folder, base, head, *arguments, launches=6):
    given = ["--base", base, "--head", head, "--launches", launches, "--output", folder / "results"]
    given += [*arguments] or ["merge"]
    result = CliRunner().invoke(main, ["ab", *map(str, given)], env={"COLUMNS": "160"})
    assert "Traceback" not in result.output
    return result


def log(folder):
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def test_a_slower_environment_is_status_3(tmp_path):
    base, head = python(tmp_path, "base"), python(tmp_path, "head", 1.1)
    result = ab(tmp_path, base, head, "merge", "--rows", "1")
    assert result.exit_code == 3, result.output
    assert "1.10×" in result.stdout
    assert "Slower: 1 of 1." in result.stdout
    assert "not the same: packages.project: base against head" in result.stdout
    old, new = (load(path) for path in result.stdout.splitlines()[-2:])
    assert (old.manifest.id[-5:], new.manifest.id[-5:]) == ("-base", "-head")
    assert [len(run.ends) for run in (old, new)] == [6, 6]
    # Apart from each other, the same runs tell nothing.
    apart = ["compare", "--force", "--format", "json", str(old.path), str(new.path)]
    (found,) = json.loads(CliRunner().invoke(main, apart).stdout)["comparisons"]
    assert found["verdict"] == "inconclusive"


def test_what_is_no_slower_is_status_0(tmp_path):
    base, head = python(tmp_path, "base"), python(tmp_path, "head", 1.1)
    result = ab(tmp_path, base, head, "--min-effect", "20%", "--format", "json", "merge")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["comparisons"]
    assert (found["verdict"], found["test"]) == ("same", "Wilcoxon signed-rank")


def test_every_block_has_both_sides_in_shuffled_order(tmp_path):
    base, head = python(tmp_path, "base"), python(tmp_path, "head")
    ab(tmp_path, base, head, "--seed", "40", "merge", "--backends", "tcp", launches=5)
    blocks = [log(tmp_path)[2 * n : 2 * n + 2] for n in range(5)]
    assert [{side for side, _, _ in block} for block in blocks] == [{"base", "head"}] * 5
    assert [{seed for _, seed, _ in block} for block in blocks] == [{40 + n} for n in range(5)]
    assert all(given == ["merge", "--backends", "tcp"] for block in blocks for *_, given in block)
    assert len(Counter(block[0][0] for block in blocks)) == 2


def test_the_runs_are_like_any_other(tmp_path):
    base, head = (python(tmp_path, name, many=True) for name in ("base", "head"))
    result = ab(tmp_path, base, head, launches=2)
    path = Path(result.stdout.splitlines()[-1])
    run = load(path)
    assert run.notes == ()
    assert run.ends["block"].tolist() == run.ends["launch"].tolist() == [0, 1]
    for frame in (run.transfers, run.tasks, run.wire, run.transports):
        assert frame["launch"].tolist() == [0, 1]
    assert run.suite.cases[0].launches == 2
    assert run.manifest.command.split()[0] == "commbench"
    # Whose commit the current folder has says nothing of either side.
    assert run.manifest.environment["git"]["working_directory"] is None
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert CliRunner().invoke(main, ["report", str(path)]).exit_code == 0


def test_a_launch_that_failed_is_status_1(tmp_path):
    base, head = python(tmp_path, "base"), python(tmp_path, "head", special=FAILS)
    result = ab(tmp_path, base, head, launches=2)
    assert result.exit_code == 1
    assert result.stderr.count("a launch FAILED") == 1
    path = Path(result.stdout.splitlines()[-1])
    assert len(load(path).failures) == 1
    assert (path / "logs" / "block-1" / "launch.log").read_text() == "why"


def test_an_environment_that_can_t_measure_ends_it(tmp_path):
    bad = "sys.exit('Error: unknown workload')"
    result = ab(tmp_path, python(tmp_path, "base"), python(tmp_path, "head", special=bad))
    assert result.exit_code == 2
    assert f"the commbench of --head {tmp_path}/python-head can't measure this" in result.stderr
    assert "unknown workload" in result.stderr


def test_cases_that_differ_are_not_compared(tmp_path):
    base, head = python(tmp_path, "base"), python(tmp_path, "head", rows=2)
    result = ab(tmp_path, base, head, launches=1)
    assert result.exit_code == 2
    assert "merge over tcp: params.rows: 1 against 2" in result.stderr
    assert "commbench compare --force " in result.stderr
    assert len(list((tmp_path / "results").iterdir())) == 2


BAD = {
    "no python": (("--base", "nowhere/python", "merge"), "--base nowhere/python is no Python"),
    "nothing to run": ((), "Missing argument 'WORKLOAD|SUITE.toml"),
    "resume": (
        ("merge", "--resume", "x"),
        "--resume is not for the runs within an A/B; leave it out",
    ),
    "launches": (
        ("merge", "--launches=3"),
        "--launches is not for the runs within an A/B; write it",
    ),
    "rigorous": (("merge", "--rigorous"), "--rigorous is not for the runs within an A/B"),
    "effect": (("--min-effect", "-1", "merge"), "--min-effect is -1; it must be 0 or more"),
    "none": (("--launches", "0", "merge"), "--launches"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_an_experiment_that_makes_no_sense_is_told(tmp_path, arguments, words):
    both = ["--base", sys.executable, "--head", sys.executable, "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, ["ab", *both, *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_that_can_t_be_made_is_told(tmp_path):
    (tmp_path / "results").write_text("")
    result = ab(tmp_path, python(tmp_path, "base"), python(tmp_path, "head"))
    assert result.exit_code == 1
    assert f"can't write to {tmp_path}/results" in result.stderr


def test_ctrl_c_ends_what_is_running_and_keeps_the_rest(tmp_path, tag):
    waits = "if seed == 2:\n    Path({!r}).touch()\n    time.sleep(600)".format(
        str(tmp_path / "waits")
    )
    base, head = (python(tmp_path, name, special=waits) for name in ("base", "head"))
    command = [
        sys.executable, "-m", "commbench.cli", "ab", "--base", base, "--head", head,
        "--output", tmp_path / "results", "merge",
    ]  # fmt: skip
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    processes.until((tmp_path / "waits").exists, "the third block")
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=processes.PATIENCE_SECONDS)
    assert child.returncode == 130, said
    assert tag.processes() == []
    assert "interrupted; what was measured is kept: " in said
    runs = [load(path) for path in (tmp_path / "results").iterdir()]
    assert sorted(len(run.ends) for run in runs) == [2, 2]

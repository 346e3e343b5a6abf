"""``commbench ab``: two environments are measured in turns, and compared block by block."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import builders
import processes
import pytest
from processes import invoke, usage_error

from commbench import load
from commbench.cli import regressions
from commbench.errors import UnwritableError
from commbench.store import parts
from commbench.studies import ab as study
from commbench.studies import commits
from commbench.studies.commits import Environment

GIT = {"working_directory": {"commit": "a"}}


def option(arguments, name):
    return arguments[len(arguments) - arguments[::-1].index(name)]


class Experiment:
    """``commbench ab`` with two environments whose runs are made up in this process.

    The times of blocks differ by half, as on a machine that others use.
    """

    def __init__(self, folder):
        self.folder, self.log = folder, []
        self.factors = {"base": 1.0, "head": 1.0}
        self.rows = {"base": 1, "head": 1}
        self.failing_blocks, self.crashing_block, self.bulk, self.error = (), None, False, ""
        self.pythons = {side: folder / side for side in ("base", "head")}
        for python in self.pythons.values():
            python.touch(mode=0o755)

    def __call__(self, *arguments, launches=6):
        sides = [text for name, path in self.pythons.items() for text in (f"--{name}", path)]
        common = ("--launches", launches, "--output", self.folder / "results")
        return invoke("ab", *sides, *common, *(arguments or ["merge"]), columns=160)

    def popen(self, command, *, stderr, env, **options):
        """Take the role of ``subprocess.Popen``."""
        python, *arguments = map(str, command)
        assert arguments[:3] == ["-m", "commbench.cli", "run"]
        assert env["PYTHONSAFEPATH"] == "1"
        assert "PYTHONPATH" not in env
        assert options["start_new_session"]
        status = self.measure(Path(python).name, arguments, stderr)
        return SimpleNamespace(wait=lambda: status)

    def measure(self, side, arguments, stderr):
        if self.error and side == "head":
            stderr.write(self.error)
            return 1
        seed = int(option(arguments, "--seed"))
        self.log.append((side, seed, arguments[3:-6]))
        case = builders.case("tcp", params={"rows": self.rows[side]}, launches=1)
        records = builders.launches(case, [self.factors[side] * (1 + 0.05 * (seed * 7919 % 10))])
        if self.bulk:
            records += [
                builders.transfer(case, 0.0, 0.5), builders.task(case, 0.0, 0.5),
                builders.wire(case, 1000), builders.transport(case),
            ]  # fmt: skip
        output = Path(option(arguments, "--output"))
        fails = side == "head" and seed in self.failing_blocks
        if fails:
            log = output.absolute() / "20250101-000000-made-up" / "logs" / "launch.log"
            stderr.write(f"it broke ({log})")
            records = [builders.failure(case, f"it broke ({log})"), builders.end(case, ok=False)]
        if crashes := side == "head" and seed == self.crashing_block:
            stderr.write("ZeroDivisionError")
            records = records[:1]
        environment = {"packages": {"project": side}, "git": GIT}
        run = builders.written(output, [case], records, environment=environment).path
        if fails:
            (run / "logs").mkdir()
            (run / "logs" / "launch.log").write_text("why")
        return int(fails or crashes)


@pytest.fixture
def ab(tmp_path, monkeypatch):
    experiment = Experiment(tmp_path)
    fake = SimpleNamespace(Popen=experiment.popen, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(study, "subprocess", fake)
    return experiment


def test_slower_environment_is_status_3(ab):
    ab.factors["head"] = 1.1
    result = ab("merge", "--rows", "1")
    assert result.exit_code == 3, result.output
    assert "1.10×" in result.stdout
    assert result.stdout.startswith("Slower: 1 of 1 case: merge tcp 1.10×.")
    assert "not the same: packages.project: base against head" in result.stdout
    assert "of the launches in each block" in " ".join(result.stdout.split())
    old, new = (load(path) for path in result.stdout.splitlines()[-2:])
    assert (old.manifest.id[-5:], new.manifest.id[-5:]) == ("-base", "-head")
    assert [len(run.ends) for run in (old, new)] == [6, 6]
    # Unpaired, the same runs show nothing: the blocks differ by more than the environments.
    unpaired = ("compare", "--force", old.path, new.path)
    (comparison,) = json.loads(invoke(*unpaired, "--format", "json").stdout)["comparisons"]
    assert (comparison["verdict"], comparison["paired"]) == ("inconclusive", False)
    text = " ".join(invoke(*unpaired).stdout.split())
    assert "of each launch of one with each of the other" in text


def test_environment_slower_by_less_than_min_effect_is_status_0(ab):
    ab.factors["head"] = 1.1
    result = ab("--min-effect", "20%", "--format", "json", "merge")
    assert result.exit_code == 0, result.output
    (comparison,) = json.loads(result.stdout)["comparisons"]
    assert (comparison["verdict"], comparison["paired"]) == ("same", True)
    assert comparison["test"] == "Wilcoxon signed-rank"


def test_quiet_has_no_progress(ab):
    first, last = ab("merge", launches=1).stderr.splitlines()
    assert re.fullmatch(r"block 1/1 \w+ 0 s, about \d.* left", first)
    assert re.fullmatch(r"block 1/1 \w+ 0 s", last)
    assert ab("--quiet", "merge", launches=1).stderr == ""


def test_every_second_block_has_the_sides_in_reverse_order(ab):
    ab("--seed", "40", "merge", "--backends", "tcp", launches=5)
    blocks = [ab.log[2 * n : 2 * n + 2] for n in range(5)]
    assert [{side for side, _, _ in block} for block in blocks] == [{"base", "head"}] * 5
    assert [{seed for _, seed, _ in block} for block in blocks] == [{40 + n} for n in range(5)]
    assert all(given == ["merge", "--backends", "tcp"] for *_, given in ab.log)
    first = [block[0][0] for block in blocks]
    assert first[0] != first[1]
    assert first[2] != first[3]


def test_blocks_are_launches_of_a_run(ab, tmp_path):
    ab.bulk = True
    path = Path(ab(launches=2).stdout.splitlines()[-1])
    run = load(path)
    assert run.notes == ()
    assert run.ends["block"].tolist() == run.ends["launch"].tolist() == [0, 1]
    for frame in (run.transfers, run.tasks, run.wire, run.transports):
        assert frame["launch"].tolist() == [0, 1]
    assert run.suite.cases[0].launches == 2
    assert run.manifest.command.split()[0] == "commbench"
    # The commit of the working directory may be that of neither side.
    assert run.manifest.environment["git"]["working_directory"] is None
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert invoke("report", path).exit_code == 0


def test_a_side_that_was_interrupted_is_not_continued(ab, monkeypatch):
    """Only its Python has the project of that side."""
    ab.rows = dict.fromkeys(ab.rows, 1000)
    path = Path(ab(launches=2).stdout.splitlines()[-1])
    lines = (path / "samples.jsonl").read_text().splitlines(keepends=True)
    (path / "samples.jsonl").write_text("".join(lines[:-1]))
    environment = load(path).manifest.environment
    monkeypatch.setattr("commbench.machine.environment.collect", lambda: environment)
    monkeypatch.setattr("commbench.harness.runner.run_plan", lambda *_: pytest.fail("a launch"))
    assert "is the head of an A/B, whose sides" in usage_error(invoke("run", "--resume", path))
    text = invoke("report", path, columns=160).stdout
    assert "only 1 of 2 launches were run" in text
    assert "--resume" not in text


@pytest.mark.parametrize(("arguments", "status"), [((), 4), (("--undecided", "pass"), 0)])
def test_too_few_launches_for_a_verdict_are_status_4(arguments, status, ab):
    """A gate that can't fail is none."""
    result = ab(*arguments, "merge", launches=2)
    assert result.exit_code == status, result.output
    assert result.stdout.startswith("Undecided: 1 of 1 case: merge tcp. 2 launches can't decide")


def test_markdown_is_all_that_is_printed(ab, tmp_path):
    result = ab("--format", "markdown", "merge")
    assert result.stdout.startswith("# Undecided" if "Undecided" in result.stdout else "# Same")
    assert str(tmp_path) not in result.stdout
    assert str(tmp_path) in result.stderr


def test_runs_of_commits_have_their_commits(ab, monkeypatch):
    """So that they can become points of a history."""
    made = {side: Environment(python, side * 10) for side, python in ab.pythons.items()}
    monkeypatch.setattr(commits, "environments", lambda *_: made)
    result = ab()
    assert [f"commit {side * 3}" in result.stdout for side in ("head", "base")] == [True, True]
    old, _ = (load(path).manifest for path in result.stdout.splitlines()[-2:])
    assert old.environment["git"]["working_directory"] == {"commit": "base" * 10, "dirty": False}


@pytest.mark.parametrize("differs", [False, True])
@pytest.mark.parametrize("target", ["bench.py", "suite.toml", "twice.toml"])
def test_a_script_that_commits_change_causes_a_warning(ab, tmp_path, monkeypatch, differs, target):
    (tmp_path / "bench.py").touch()
    script = '[[case]]\nworkload = "bench.py"\n'
    (tmp_path / "suite.toml").write_text(script)
    (tmp_path / "twice.toml").write_text(script + script)
    monkeypatch.chdir(tmp_path)
    made = {side: Environment(python, side) for side, python in ab.pythons.items()}
    monkeypatch.setattr(commits, "environments", lambda *_: made)
    monkeypatch.setattr(
        commits,
        "differs",
        lambda file, names: differs and (str(file), names) == ("bench.py", [*made]),
    )
    said = ab(target, launches=1).stderr
    assert said.count("warning: bench.py differs between the commits") == differs


@pytest.mark.parametrize(
    "content", ["[case]\nworkload = 'x.py'", "case = 3", "[[case]]\nworkload = 5", "no TOML"]
)
def test_a_file_that_is_no_suite_names_no_scripts(content, tmp_path):
    (tmp_path / "suite.toml").write_text(content)
    assert not [*regressions._scripts(tmp_path / "suite.toml")]


def test_failed_launch_is_status_1_and_keeps_its_logs(ab):
    ab.failing_blocks = (1,)
    result = ab("--quiet", "merge", launches=2)
    assert result.exit_code == 1
    assert result.stderr.count("a launch FAILED") == 1
    path = Path(result.stdout.splitlines()[-1])
    log = path / "logs" / "block-1" / "launch.log"
    assert load(path).failures["message"].tolist() == [f"it broke ({log})"]
    assert f"head: it broke ({log})" in result.stderr
    assert log.read_text() == "why"


def test_a_launch_whose_transfers_cannot_be_stored_does_not_count(ab, monkeypatch):
    ab.bulk = True
    close = parts.Parts.close

    def full(self):
        if self._name == "block-1":
            raise UnwritableError("No space left on device")
        close(self)

    monkeypatch.setattr(parts.Parts, "close", full)
    result = ab(launches=3)
    assert "No space left" in result.output
    kept = [load(path) for path in (ab.folder / "results").iterdir()]
    blocks = [({*run.ends["block"]}, {*run.transfers["launch"]}) for run in kept]
    assert blocks == [({0}, {0})] * 2


def test_measurement_that_crashed_is_status_1_and_shows_why(ab):
    ab.crashing_block = 1
    result = ab(launches=2)
    assert result.exit_code == 1
    assert result.stderr.count("a launch FAILED") == 1
    assert "head: ZeroDivisionError" in result.stderr
    result = ab("--format", "junit", "merge", launches=2)
    assert 'message="a run ended before its launches did"' in result.stdout


def test_environment_whose_launches_all_fail_is_status_1(ab):
    ab.failing_blocks = (0, 1)
    result = ab(launches=2)
    assert result.exit_code == 1
    assert result.stdout.startswith("Lost: merge over tcp: no good launch in the head run")
    assert result.stderr.splitlines()[-1].startswith("it broke (")
    base, head = result.stdout.splitlines()[-2:]
    assert [path.rpartition("-")[2] for path in (base, head)] == ["base", "head"]


def test_environment_that_cannot_measure_ends_the_comparison(ab, tmp_path):
    ab.error = "Error: unknown workload"
    result = ab()
    assert result.exit_code == 2
    assert f"the commbench of --head {tmp_path}/head can't measure this" in result.stderr
    assert "unknown workload" in result.stderr


def test_cases_that_differ_are_not_compared(ab, tmp_path):
    ab.rows["head"] = 2
    result = ab(launches=1)
    assert result.exit_code == 2
    assert "merge over tcp: params.rows: 1 against 2" in result.stderr
    assert "commbench compare --force " in result.stderr
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_a_suite_that_changes_meanwhile_ends_the_comparison(ab, monkeypatch):
    measure = ab.measure

    def changing(side, arguments, stderr):
        ab.rows["head"] = 2 if len(ab.log) >= 3 else 1
        return measure(side, arguments, stderr)

    monkeypatch.setattr(ab, "measure", changing)
    result = ab(launches=3)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert re.search(r"block \d of --head has other cases than the first, because a script", said)
    kept = load(re.search(r"Earlier blocks are in (\S+)", said)[1])
    assert len(kept.ends) == [side for side, *_ in ab.log].count("head") - 1


def test_a_file_that_is_no_program_is_refused(tmp_path):
    (tmp_path / "main").touch(mode=0o755)
    both = ("--base", tmp_path / "main", "--head", tmp_path / "main", "--output", tmp_path / "out")
    assert f"{tmp_path}/main can't be run: Exec format" in usage_error(invoke("ab", *both, "merge"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--base nowhere/python merge", "--base nowhere/python is neither a Python nor a commit"),
        ("", "Missing argument 'WORKLOAD|SUITE "),
        ("merge --resume x", "--resume is not for the runs within an A/B; leave it out"),
        ("merge --launches=3", "--launches is not for the runs within an A/B; write it"),
        ("merge --help", "--help is not for the runs within an A/B; leave it out"),
        ("merge --rigorous", "--rigorous is not for the runs within an A/B"),
        ("merge --dry-run", "--dry-run is not for the runs within an A/B; leave it out"),
        ("--min-effect -1 merge", "--min-effect is -1; it must be 0 or more"),
        ("--min-effect 5 merge", "--min-effect is 5; it must be 0 or more and below 1"),
        ("--launches 0 merge", "--launches"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    both = ("--base", sys.executable, "--head", sys.executable, "--output", tmp_path / "out")
    assert message in usage_error(invoke("ab", *both, *arguments.split()))
    assert not (tmp_path / "out").exists()


def test_output_that_cannot_be_made_is_status_1(ab, tmp_path):
    (tmp_path / "results").write_text("")
    result = ab()
    assert result.exit_code == 1
    assert f"can't write {tmp_path}/results" in result.stderr


PYTHON = f"""#!{sys.executable}
import signal, sys, time
from contextlib import nullcontext
from pathlib import Path
sys.path[:0] = {[str(Path(builders.__file__).parents[n]) for n in (0, 1)]!r}
import builders
from commbench.harness import interrupts
values = dict(zip(sys.argv[-6::2], sys.argv[-5::2]))
if values["--seed"] == "1":
    if {{deaf}}:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with nullcontext() if {{deaf}} else interrupts.interruptible():
        Path({{waits!r}}).touch()
        time.sleep(600)
case = builders.case(launches=1)
builders.written(Path(values["--output"]), [case], builders.launches(case, [1.0]))
"""


@pytest.fixture
def start(tmp_path, tag):
    """Return a function that starts ``commbench ab``, whose second block does not end."""

    def start_ab(*, deaf=False, in_background=False):
        waits, python = tmp_path / "waits", tmp_path / "python"
        python.write_text(PYTHON.format(waits=str(waits), deaf=deaf))
        python.chmod(0o755)
        code = (
            "from commbench.cli.main import main; from commbench.studies import ab\n"
            f"ab._END_SECONDS = {0.1 if deaf else 2 * processes.PATIENCE_SECONDS}; main()"
        )
        command = [
            sys.executable, "-c", code, "ab", "--base", python, "--head", python,
            "--output", tmp_path / "results", "merge",
        ]  # fmt: skip
        # As a shell does in a script.
        ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN) if in_background else None
        child = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ.copy(), preexec_fn=ignore
        )
        processes.until(waits.exists, "the second block")
        return child

    return start_ab


@pytest.mark.parametrize(
    ("given", "number"),
    [({"deaf": True}, signal.SIGINT), ({"in_background": True}, signal.SIGTERM)],
)
def test_interrupt_ends_the_measurement_and_keeps_earlier_blocks(
    start, tmp_path, tag, given, number
):
    child = start(**given)
    child.send_signal(number)
    _, stderr = child.communicate(timeout=processes.PATIENCE_SECONDS)
    assert child.returncode == 130, stderr
    assert tag.processes() == []
    assert "interrupted; what was measured is kept: " in stderr
    assert "\nto compare it: commbench compare --force " in stderr
    runs = [load(path) for path in (tmp_path / "results").iterdir()]
    assert [len(run.ends) for run in runs] == [1, 1]


def test_the_measurement_ends_with_the_comparison(start, tag):
    child = start()
    child.kill()
    child.communicate()
    processes.until(lambda: not tag.processes(), "the end of the measurement")

"""What there is besides the commands themselves: names, help, version, and how it is started."""

import os
import subprocess
import sys
from pathlib import Path

import builders
import click
import processes
import pytest
from click.testing import CliRunner
from processes import invoke, usage_error

from commbench import __version__, load
from commbench.cli import run_command
from commbench.cli.main import main
from commbench.errors import UnavailableError, UsageError
from commbench.studies import ab


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run", "name a workload, a suite file or a run to --resume"),
        ("run --resume nowhere", "nowhere holds no run"),
        ("run merge --resume nowhere", "commbench run --resume RUN"),
        ("report nowhere", "nowhere holds no run"),
        ("report nowhere --format yaml", "unknown report 'yaml'"),
        ("run smoke --workers 4", "a suite's file has --workers, in [cluster]"),
        ("run smoke --device cpu", "a suite's file has --device, in [cluster]"),
        ("run pingpong --workers 4", "pingpong runs between two processes, without a cluster"),
        ("reprot", "unknown command 'reprot' (did you mean 'report'?)"),
    ],
)
def test_command_without_a_valid_object_is_refused(arguments, message):
    assert message in usage_error(invoke(*arguments.split()))


LONG = "a" * 300
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "measure-live.ipynb"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (f"report {LONG}", 2, "File name too long"),
        (f"open {LONG}", 2, "File name too long"),
        (f"run {LONG}.py", 2, "does not exist"),
        ("run ~no-such-user/x.py", 2, "does not exist"),
        (f"profile {LONG}.py", 2, "there is no file"),
        (f"profile {NOTEBOOK}", 2, "is a notebook; write %load_ext commbench"),
        (f"ab --base {LONG} merge", 2, "is neither a Python nor a commit"),
        (f"run merge --launcher external --scheduler {LONG}", 2, "File name too long"),
        (f"compare RUN OTHER --history {LONG}", 2, "has 0 of 0 runs"),
        (f"check RUN --write-reference {LONG}", 1, "File name too long"),
        (f"export RUN --output {LONG} --commit HEAD --force", 1, "File name too long"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(arguments, status, message, tmp_path):
    """As a name in a folder that only another user may search."""
    case = builders.case()
    given = {"environment": {"host": {"name": "node1"}}}
    for name in ("RUN", "OTHER"):
        records = builders.launches(case, [1.0] * 6)
        path = builders.written(tmp_path, [case], records, id=name.lower(), **given).path
        arguments = arguments.replace(name, str(path))
    result = invoke(*arguments.split())
    assert result.exit_code == status
    assert isinstance(result.exception, SystemExit)
    assert message in result.stderr


def test_output_that_cannot_be_written_is_one_message():
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "commbench.cli", "list"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=processes.PATIENCE_SECONDS,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == "Error: can't write the output: No space left on device\n"


@pytest.mark.parametrize("command", ["list", "doctor", "report RUN -v"])
def test_output_that_nobody_reads_is_no_error(command, tmp_path):
    path = builders.written(
        tmp_path, [case := builders.case()], builders.launches(case, [1.0])
    ).path
    words = [str(path) if word == "RUN" else word for word in command.split()]
    with subprocess.Popen(
        [sys.executable, "-m", "commbench.cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as ended:  # fmt: skip
        ended.stdout.close()
        assert ended.stderr.read() == ""
    assert ended.returncode == 0
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "commbench.cli", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("latin-1", b"\n????"),
        ("latin-1:backslashreplace", b"\\u2500"),
        ("ascii", "\n────".encode()),
        ("utf-8", "\n────".encode()),
    ],
)
def test_characters_that_the_encoding_lacks_are_replaced(encoding, shown, tmp_path):
    case = builders.case()
    path = builders.written(tmp_path, [case], builders.launches(case, [1.0] * 6)).path
    ended = subprocess.run(
        [sys.executable, "-m", "commbench.cli", "report", path, "--verbose"],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True,
        timeout=processes.PATIENCE_SECONDS,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert shown in ended.stdout


def test_list_has_all_kinds_of_plugins_and_the_faults_of_some(installed):
    faulty = type("Faulty", (), {"__init__": lambda *_: {}["gone"]})
    installed("backend", {"pigeon": faulty, "dove": ZeroDivisionError("of its module")})
    lacking = UnavailableError("workload broken", "it lacks a", "add a")
    installed("workload", {"coo": ZeroDivisionError("of its module"), "broken": lacking})
    result = invoke("list")
    assert result.exit_code == 0
    assert result.stdout.count("unavailable: ZeroDivisionError('of its module')") == 2
    assert "pigeon           unavailable: KeyError('gone')" in result.stdout
    assert "broken           unavailable: it lacks a\n" in result.stdout
    for name in ("merge", "pingpong", "tcp", "ucx", "markdown", "local"):
        assert name in result.stdout
    assert "\n messages\n  pingpong " in result.stdout


@pytest.mark.parametrize("command", ["", *main.list_commands(None), "run merge", "run x.toml"])
def test_h_is_help_everywhere(command):
    result = invoke(*command.split(), "-h")
    assert result.exit_code == 0
    assert "-h, --help" in result.stdout


def test_version_is_that_of_the_package():
    assert __version__ in invoke("--version").stdout


def test_the_command_line_starts_from_dask():
    ended = subprocess.run(
        [sys.executable, "-m", "dask", "commbench", "run", "merge", "--help"],
        capture_output=True, text=True, check=True, timeout=processes.PATIENCE_SECONDS,
    )  # fmt: skip
    for name in ("--frac-match", "--backends", "--launches"):
        assert name in ended.stdout
    assert ended.stderr == ""


def test_dask_is_no_part_of_the_recorded_command(tmp_path, monkeypatch, simulated, no_figures):
    recorded = []

    def measure_workload(name, given):
        recorded.append(" ".join(click.get_current_context().obj.arguments))
        return 1

    def measure(experiment):
        recorded.append(experiment.command)
        raise UsageError

    def call(line):
        dask = click.Group("dask", commands={"commbench": main})
        CliRunner().invoke(dask, line.split()[1:], catch_exceptions=False)

    with monkeypatch.context() as patch:
        patch.setattr(run_command, "measure_workload", measure_workload)
        call(links := "dask commbench links --workers 3")
        patch.setattr(ab, "measure", measure)
        call(sides := f"dask commbench ab --base {sys.executable} --head {sys.executable} merge")
    line = "dask commbench run merge --backends fake --launches 1 --iterations 1 -q --output"
    call(f"{line} {tmp_path}")
    (path,) = tmp_path.iterdir()
    assert f"dask {load(path).manifest.command}" == f"{line} {tmp_path}"
    assert recorded == [links.removeprefix("dask commbench "), sides.removeprefix("dask ")]

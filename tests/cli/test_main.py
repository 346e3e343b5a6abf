"""What there is besides the commands themselves: names, help, version, and how it is started."""

import subprocess
import sys

import processes
import pytest
from processes import invoke, usage_error

from commbench import __version__
from commbench.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run", "name a workload, a suite file or a run to --resume"),
        ("run --resume nowhere", "nowhere holds no run"),
        ("run merge --resume nowhere", "commbench run --resume RUN"),
        ("report nowhere", "nowhere holds no run"),
        ("report nowhere --format yaml", "unknown report 'yaml'"),
        ("reprot", "unknown command 'reprot' (did you mean 'report'?)"),
    ],
)
def test_command_without_a_valid_object_is_refused(arguments, message):
    assert message in usage_error(invoke(*arguments.split()))


def test_list_has_all_kinds_of_plugins():
    result = invoke("list")
    assert result.exit_code == 0
    for name in ("merge", "pingpong", "tcp", "ucx", "markdown", "local"):
        assert name in result.stdout
    assert "\n messages\n  pingpong " in result.stdout


def test_help_has_the_options_of_the_workload_and_of_every_run():
    result = invoke("run", "merge", "--help")
    assert result.exit_code == 0
    for name in ("--frac-match", "--backends", "--launches"):
        assert name in result.stdout


@pytest.mark.parametrize("command", ["", *main.list_commands(None), "run merge", "run x.toml"])
def test_h_is_help_everywhere(command):
    result = invoke(*command.split(), "-h")
    assert result.exit_code == 0
    assert "-h, --help" in result.stdout


def test_version_is_that_of_the_package():
    assert __version__ in invoke("--version").stdout


@pytest.mark.parametrize("command", [["-m", "commbench.cli"], ["-m", "dask", "commbench"]])
def test_command_line_starts_as_a_module_and_from_dask(command):
    ended = subprocess.run(
        [sys.executable, *command, "run", "merge", "--help"],
        capture_output=True, text=True, check=True, timeout=processes.PATIENCE_SECONDS,
    )  # fmt: skip
    assert "--frac-match" in ended.stdout
    assert ended.stderr == ""

"""Imports go one way, and the command line costs next to nothing until it measures."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
HEAVY = ("numpy", "pandas", "dask", "distributed", "matplotlib", "pyarrow", "scipy")


def run(code):
    """Return what a new process prints to its standard error."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr


def test_imports_keep_to_the_layers_of_pyproject():
    command = [SCRIPTS / "lint-imports", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Contracts: 4 kept, 0 broken." in done.stdout


def test_help_and_lists_import_nothing_heavy():
    code = (
        "import sys\n"
        "from commbench.cli.main import main\n"
        "for words in ('--help', '--version', 'list', 'run --help', 'report --help'):\n"
        "    main(words.split(), standalone_mode=False)\n"
        f"    heavy = sorted({set(HEAVY)} & set(sys.modules))\n"
        "    assert not heavy, (words, heavy)"
    )
    assert run(code) == ""


@pytest.fixture(scope="module")
def distributed_cpu_s():
    """Return the CPU time of importing Dask's scheduler and workers."""
    command = [sys.executable, "-c", "import distributed"]
    return min(processes.cpu_seconds(command) for _ in range(3))


@pytest.mark.parametrize("argument", ["--help", "list"])
def test_a_light_command_takes_less_than_half_of_dasks_import(argument, distributed_cpu_s):
    command = [SCRIPTS / "commbench", argument]
    assert min(processes.cpu_seconds(command) for _ in range(3)) < distributed_cpu_s / 2


def test_importing_a_part_of_the_pipeline_imports_nothing_heavy():
    code = (
        "import importlib, sys\n"
        "for name in ('store.directory', 'stats', 'harness.suite', 'backends', 'analysis.run'):\n"
        "    importlib.import_module(f'commbench.{name}')\n"
        f"    heavy = sorted({set(HEAVY)} & set(sys.modules))\n"
        "    assert not heavy, (name, heavy)"
    )
    assert run(code) == ""

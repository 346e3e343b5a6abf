"""Imports go one way, and the command line costs next to nothing until it measures."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
HEAVY = ("numpy", "pandas", "dask", "distributed", "matplotlib", "pyarrow", "scipy")
LIGHT = (["--help"], ["--version"], ["list"], ["run", "--help"], ["report", "--help"])


def test_imports_go_one_way() -> None:
    command = [SCRIPTS / "lint-imports", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Contracts: 4 kept, 0 broken." in done.stdout


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_a_light_command_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from commbench.cli.main import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        f"print(sorted({set(HEAVY)} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["list"]], ids=" ".join)
def test_a_light_command_answers_at_once(arguments: list[str]) -> None:
    heavy, light = (
        min(processes.cpu_seconds(command) for _ in range(5))
        for command in (
            [sys.executable, "-c", "import distributed"], [SCRIPTS / "commbench", *arguments]
        )
    )  # fmt: skip
    assert light < heavy / 2


@pytest.mark.parametrize(
    "name", ["store.directory", "stats", "harness.suite", "backends", "analysis.run"]
)
def test_no_module_imports_heavily_by_itself(name: str) -> None:
    code = f"import sys, commbench.{name}; print(sorted({set(HEAVY)} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"

"""Imports go one way, and the command line costs next to nothing until it measures."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = str(ROOT / "results" / "reference" / "20261123-merge-4-backends")
SCRIPTS = Path(sysconfig.get_path("scripts"))
HEAVY = ("numpy", "pandas", "dask", "distributed", "matplotlib", "pyarrow", "scipy")
LIGHT = {
    "help and lists": (
        "from commbench.cli.main import main\n"
        "for words in ('--help', '--version', 'list', 'run --help', 'report --help'):\n"
        "    main(words.split(), standalone_mode=False)",
        HEAVY,
    ),
    "parts of the pipeline": (
        "import commbench.store.directory, commbench.stats, commbench.harness.suite\n"
        "import commbench.backends, commbench.analysis.run",
        HEAVY,
    ),
    "a run before its launches": (
        "from commbench.cli import main as cli; from commbench.harness import runner\n"
        "runner.run_plan = end\n"
        "cli.main(['run', 'merge', '--backends', 'tcp,fake', '--output', 'results'])",
        ("dask", "distributed", "numpy", "pandas", "ucxx", "mpi4py", "matplotlib"),
    ),
    "whether a backend is available": (
        "from commbench.model import registry; from commbench.backends import parse\n"
        "for name in [*registry.names('backend'), 'ucx:tcp+shm+nvlink+ib']:\n"
        "    parse(name).unavailable('gpu'); parse(name).settings('cpu')",
        ("ucxx", "distributed_ucxx", "mpi4py", "distributed", "cupy", "numpy"),
    ),
    "the environment and the doctor": (
        "import commbench.machine.environment, commbench.studies.doctor",
        (*HEAVY, "ucxx", "mpi4py", "psutil"),
    ),
    "mpi://": ("import commbench.mpi", ("dask", "distributed", "mpi4py", "numpy")),
    "a report": (
        "from commbench.cli.main import main\n"
        f"main(['report', '-v', {REFERENCE!r}], standalone_mode=False)",
        ("dask", "distributed", "matplotlib", "scipy.stats"),
    ),
    "figures": (
        "from commbench.reports.figures import iteration_figures, message_figures, pair_figure\n"
        "from commbench.reports.figures import task_stream",
        ("matplotlib.pyplot",),
    ),
}
"""What runs without some libraries."""


@pytest.mark.parametrize(("code", "forbidden"), LIGHT.values(), ids=LIGHT)
def test_what_is_light_imports_nothing_heavy(code, forbidden, tmp_path):
    end = (
        "import os, sys\n"
        "def end(*_):\n"
        f"    print(sorted({{*{forbidden}}} & {{*sys.modules}}), flush=True)\n"
        "    os._exit(0)\n"
    )
    text = subprocess.check_output(
        [sys.executable, "-c", f"{end}{code}\nend()"],
        text=True, cwd=tmp_path, timeout=processes.PATIENCE_SECONDS,
    )  # fmt: skip
    assert text.splitlines()[-1] == "[]"


def test_imports_keep_to_the_layers_of_pyproject():
    command = [SCRIPTS / "lint-imports", "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Contracts: 4 kept, 0 broken." in done.stdout

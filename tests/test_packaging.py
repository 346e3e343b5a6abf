"""What is built and installed: the wheel's suites, the conda recipe, and hints of what to install.

``make test-wheel`` installs the wheel in a fresh environment, and uses it.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from processes import invoke, program, usage_error

from commbench.machine.installed import install_command
from commbench.model import registry

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
ON_CONDA_FORGE = {"dask[array,dataframe]": "dask", "matplotlib": "matplotlib-base"}
"""The names of packages there that differ from those of PyPI."""


def test_the_conda_recipe_has_the_dependencies_of_the_project():
    split = [re.fullmatch(r"([\w-]+(?:\[.*\])?)(>=.*)", text) for text in PROJECT["dependencies"]]
    wanted = [f"{ON_CONDA_FORGE.get(match[1], match[1])} {match[2]}" for match in split]
    python, *run = RECIPE["requirements"]["run"]
    assert run == wanted
    assert python == "python >=${{ python_min }}"
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]


def test_the_conda_recipe_has_the_version_and_the_command_of_the_project():
    assert RECIPE["context"]["version"] == PROJECT["version"]
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == commands


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_hints_name_packages_and_not_commbench_which_no_index_has(extra):
    command = install_command(extra)
    assert command.count(">=") >= 1
    assert "commbench" not in command


@pytest.mark.parametrize("extra", ["ucx", "gpu"])
@pytest.mark.parametrize("installed", ["ucxx-cu13", "cupy-cuda13x", "ucxx-cu12", "numba-cuda"])
def test_hints_name_packages_for_cuda_13_where_one_is_installed(extra, installed, monkeypatch):
    monkeypatch.setattr(
        "commbench.machine.installed.package_version",
        lambda *names: "1.0" if installed in names else None,
    )
    majors = set(re.findall(r"cu(?:da)?(1[23])", install_command(extra)))
    assert majors == {"13" if "13" in installed else "12"}


def test_no_message_names_an_extra_of_commbench():
    sources = [path.read_text() for path in (ROOT / "commbench").rglob("*.py")]
    assert not [text for text in sources if re.search(r"install[^\n]*commbench\[", text)]


def test_every_suite_has_a_name_that_is_no_workload_of_commbench():
    names = {path.stem for path in (ROOT / "suites").glob("*.toml")}
    assert set(registry.suites()) == names
    assert not names & {*registry.names("workload")}


def test_a_shipped_suite_runs_by_its_name_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("ucx-dgx-svd", "--backends", "tcp", "--launcher", "slurm", "--dry-run")
    arguments += ("--launcher-option", "memory=8GB")
    assert "#SBATCH" in invoke("run", *arguments).stdout
    assert "  smoke" in invoke("run", "--help").stdout
    assert "known: all-to-all, broadcast, " in usage_error(invoke("run", "smokes"))


@pytest.mark.parametrize("has_pip", [True, False])
def test_make_setup_completes_an_environment_that_lacks_pip_and_no_other(has_pip, tmp_path):
    venv = tmp_path / "venv"
    venv.mkdir()
    for name in ("python", "pip")[: 1 + has_pip]:
        program(venv / "bin" / name, "exit 0")
    python = program(tmp_path / "bin" / "python", 'echo "$@"')
    made = subprocess.run(
        ["make", f"PYTHON={python}", f"VENV={venv}", "setup"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (f"-m venv {venv}" in made.stdout) == (not has_pip)

"""``commbench ab`` makes an environment for each commit that it compares."""

import errno
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import processes
import pytest
from repositories import Repository

from commbench.errors import UnwritableError, UsageError
from commbench.studies import commits

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "commbench"
version = "1"
"""
BACKEND = """
from pathlib import Path
from zipfile import ZipFile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "commbench-1-py3-none-any.whl", "commbench-1.dist-info/"
    with ZipFile(Path(folder) / name, "w") as wheel:
        wheel.write("commbench.py")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: commbench\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


@pytest.fixture(scope="module", name="project")
def _project(tmp_path_factory):
    """Return a project, which pip builds without an index, with two commits."""
    repository = Repository(tmp_path_factory.mktemp("project"))
    files = {"pyproject.toml": PROJECT, "backend.py": BACKEND}
    repository.commit(**files, **{"commbench.py": "number = 1\n"})
    repository.git("branch", "old")
    repository.commit(**{"commbench.py": "number = 2\n"})
    return repository


@pytest.fixture
def make(project, monkeypatch):
    """Return a function that returns the Pythons of two sides, and what was shown."""
    monkeypatch.chdir(project.path)
    # As in a hook of git.
    monkeypatch.setenv("GIT_DIR", ".git")

    def pythons(base, head, install="--no-index ."):
        shown = []
        made = commits.environments({"base": base, "head": head}, install, shown.append)
        return [side.python for side in made.values()], shown

    return pythons


@pytest.fixture
def quick_venv(tmp_path, monkeypatch):
    """Make virtual environments without the seconds that they take, and with a pip that fails."""
    makes = f'mkdir -p "$4/bin" && ln -sf {shutil.which("false")} "$4/bin/python"'
    monkeypatch.setattr(sys, "executable", str(processes.program(tmp_path / "venv", makes)))


@pytest.fixture
def only_worktrees(monkeypatch):
    """Leave out the steps after git's, which take seconds."""
    steps = commits._steps
    monkeypatch.setattr(commits, "_steps", lambda *args: islice(steps(*args), 1))


def number(python):
    command = [python, "-I", "-c", "import commbench; print(commbench.number)"]
    return int(subprocess.check_output(command))


@pytest.mark.slow
def test_each_commit_is_installed_in_an_environment_that_stays(make, project):
    pythons, shown = make("old", "HEAD")
    assert [number(python) for python in pythons] == [1, 2]
    assert [commit[:12] in line for commit, line in zip(project.commits, shown, strict=True)]
    # Otherwise HEAD would be taken for changed the next time.
    assert project.git("status", "--porcelain") == ""
    assert make("main~1", "main") == (pythons, [])


@pytest.mark.slow
def test_a_project_that_requires_commbench_gets_the_one_that_is_here(
    project, tmp_path, monkeypatch
):
    """The index may have none."""
    metadata = "Name: commbench\\nVersion: 1\\n"
    backend = BACKEND.replace(metadata, "Name: other\\nVersion: 1\\nRequires-Dist: commbench\\n")
    assert backend != BACKEND
    backend = backend.replace("commbench-1", "other-1").replace("commbench.py", "other.py")
    other = Repository(tmp_path)
    pyproject = PROJECT.replace("commbench", "other")
    other.commit(**{"pyproject.toml": pyproject, "backend.py": backend, "other.py": ""})
    monkeypatch.chdir(other.path)
    monkeypatch.setattr(commits, "_commbench", lambda: str(project.path))
    (side,) = commits.environments({"head": "main"}, "--no-index .", print).values()
    assert number(side.python) == 2


@pytest.mark.parametrize(
    ("name", "origin", "stays"),
    [
        ("other", "commbench @ file:///clone", False),
        ("other", "commbench==1", True),
        ("commbench", "commbench @ file:///clone", True),
    ],
)
def test_an_environment_stays_until_the_commbench_in_it_changes(
    name, origin, stays, quick_venv, tmp_path, monkeypatch
):
    running, repository = tmp_path / "commbench/studies/commits.py", Repository(tmp_path)
    running.parent.mkdir(parents=True)
    repository.commit(**{"pyproject.toml": PROJECT.replace("commbench", name)})
    steps, shown = commits._steps, []
    monkeypatch.chdir(repository.path)
    # Without pip.
    monkeypatch.setattr(commits, "_steps", lambda *args: islice(steps(*args), 2))
    monkeypatch.setattr(commits, "_commbench", lambda: origin)
    monkeypatch.setattr(commits, "__file__", str(running))
    for file in (running, running.with_name("loops.c")):
        file.write_text("")
        commits.environments({"head": "main"}, ".", shown.append)
    assert len(shown) == (1 if stays else 2)


def test_an_environment_of_another_python_is_made_anew(quick_venv, tmp_path, monkeypatch):
    repository, steps, shown = Repository(tmp_path), commits._steps, []
    repository.commit(**{"pyproject.toml": PROJECT})
    monkeypatch.chdir(repository.path)
    monkeypatch.setattr(commits, "_steps", lambda *args: islice(steps(*args), 2))
    for version in ("3.11.7", "3.11.7", "3.12.1"):
        monkeypatch.setattr(commits.sys, "version", version)
        commits.environments({"head": "main"}, ".", shown.append)
    assert len(shown) == 2


def test_changes_that_no_commit_has_are_refused(make, project):
    file = project.path / "commbench.py"
    file.write_text("number = 3\n")
    try:
        with pytest.raises(UsageError, match=rf"--head {project.commits[-1][:12]}$"):
            make("old", "HEAD")
        (base, _), _ = make("HEAD", sys.executable)
        assert number(base) == 2
    finally:
        project.git("checkout", "--", file.name)


def test_a_checkout_whose_state_is_unknown_is_refused(make, project, monkeypatch):
    monkeypatch.setattr(commits.environment, "checkout", lambda _: None)
    with pytest.raises(UsageError, match="git status takes too long"):
        make("old", "HEAD")


def test_a_worktree_that_is_not_complete_is_made_again(make, only_worktrees):
    (python, _), _ = make("old", "old")
    folder = python.parents[2]
    (file := folder / "source" / "commbench.py").unlink()
    (folder / "installed").unlink()
    make("old", "old")
    assert file.read_text() == "number = 1\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-branch", "--head no-such-branch is neither a Python nor a commit"),
        ("--all", "is neither a Python nor a commit"),
        ("backend.py", "--head backend.py is no Python"),
    ],
)
def test_what_is_no_commit_is_refused_before_an_environment_is_made(name, message, make, project):
    base = project.commit(**{"new.py": "", "commbench.py": f"number = 4  # {name}\n"})
    with pytest.raises(UsageError, match=message):
        make(base, name)
    assert not (project.path / "build" / "commits" / base[:12]).exists()


@pytest.mark.usefixtures("make")
def test_a_branch_with_the_name_of_a_program_is_a_branch(project):
    (project.path / "old").write_text("#!/bin/sh\ntouch started\n")
    (project.path / "old").chmod(0o755)
    assert commits._look_up("base", "old").commit == project.git("rev-parse", "old").strip()
    assert commits._look_up("base", "./old").python == project.path / "old"


def test_a_project_that_is_no_package_is_refused_before_its_environment(tmp_path, monkeypatch):
    repository = Repository(tmp_path)
    repository.commit(**{"bench.py": "def main(client): ..."})
    monkeypatch.chdir(repository.path)
    with pytest.raises(UsageError, match=r"has no pyproject.toml or setup.py, so that pip can't"):
        commits.environments({"base": "HEAD", "head": "HEAD"}, ".", [].append)
    assert not [*repository.path.glob("build/commits/*/env")]


def test_an_invalid_project_is_refused_by_pip(quick_venv, tmp_path, monkeypatch):
    repository = Repository(tmp_path)
    repository.commit(**{"pyproject.toml": "<<<<<<< HEAD\n"})
    monkeypatch.chdir(repository.path)
    with pytest.raises(UsageError, match=r"there is no environment of .*/python -m pip .* failed"):
        commits.environments({"base": "HEAD", "head": "HEAD"}, "--no-index .", [].append)


def test_whether_commits_differ_in_a_file(project, monkeypatch):
    monkeypatch.chdir(project.path)
    assert commits.differs(project.path / "commbench.py", project.commits)
    assert not commits.differs(project.path / "backend.py", project.commits)
    assert not commits.differs(project.path.parent / "elsewhere.py", project.commits)


@pytest.mark.slow
def test_commit_that_pip_cannot_install_is_refused(make, project):
    with pytest.raises(UsageError, match=r"there is no environment of .* ./nowhere failed"):
        make("old", "old", "--no-index ./nowhere")
    # What pip left behind is no environment that could be taken for the one before.
    assert not (project.path / "build/commits" / project.commits[0][:12] / "installed").exists()


def test_a_python_is_taken_as_it_is(make, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.touch(mode=0o755)
    assert make(str(python), str(python)) == ([python, python], [])
    # Without a slash it would be another one, on the PATH.
    monkeypatch.chdir(tmp_path)
    assert make("./python", "python") == ([python, python], [])


def test_a_worktree_of_the_user_whose_disk_is_away_stays_known(
    make, project, only_worktrees, tmp_path
):
    project.git("worktree", "add", "--quiet", tmp_path / "mine", "-b", "mine")
    (tmp_path / "mine").rename(tmp_path / "unmounted")
    commit = project.commit(**{"commbench.py": "number = 6\n"})
    make(commit, commit)
    assert str(tmp_path / "mine") in project.git("worktree", "list")


@pytest.mark.usefixtures("only_worktrees")
def test_a_disk_that_is_full_at_the_end_is_said(make, monkeypatch):
    (python, _), _ = make("old", "old")
    (python.parents[2] / "installed").unlink()

    def full(path, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnwritableError, match=r"can't write .*installed: No space left"):
        make("old", "old")


def test_a_checkout_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    repository = Repository(tmp_path)
    repository.commit(**{"build": "no folder"})
    monkeypatch.chdir(repository.path)
    with pytest.raises(UnwritableError, match=r"can't write .*build/commits"):
        commits.environments({"base": "HEAD", "head": "HEAD"}, ".", [].append)


def test_arguments_of_pip_that_are_no_words_are_refused(make):
    with pytest.raises(UsageError, match=r"--install '\.\[ucx\]: No closing quotation"):
        make("old", "old", "'.[ucx]")

"""Environments for commits of the project in the current folder, each kept for the next time.

``build/commits`` of the repository has a folder for each commit, with a worktree (``source``) and a
virtual environment (``env``), in which pip has installed the worktree.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from commbench.errors import UsageError
from commbench.machine import environment
from commbench.store import files

_PACKAGED = ("pyproject.toml", "setup.py")
_LEFT_OUT = {"PYTHONPATH", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}


@dataclass(frozen=True)
class Environment:
    """The Python of an environment, and the commit that it was made for, if any."""

    python: Path
    commit: str = ""


def environments(
    sides: Mapping[str, str], install: str, show: Callable[[str], None]
) -> dict[str, Environment]:
    """Return the environment of each side; that of a commit is made if it is new.

    Parameters
    ----------
    sides
        The Python, branch, tag or hash of each side, ``base`` and ``head``.
    install
        The arguments of ``pip install`` in the worktree of a commit.
    show
        Gets a line before an environment is made, which takes minutes.

    Raises
    ------
    UsageError
        If there is no such Python or commit, or its environment can't be made.
    UnwritableError
        If the repository can't be written.
    """
    # Look up all names before any environment is made.
    given = {side: _look_up(side, name) for side, name in sides.items()}
    try:
        shlex.split(install)
    except ValueError as error:
        raise UsageError(f"--install {install}: {error}") from error
    return {
        side: Environment(_make(one.commit, install, show), one.commit) if one.commit else one
        for side, one in given.items()
    }


def differs(file: Path, commits: Sequence[str]) -> bool:
    """Return whether two commits of the repository in the current folder differ in a file."""
    command = ("git", "diff", "--name-only", *commits, "--", str(file))
    said, problem = environment.run_tool(command, 10)
    return bool(said.strip()) and not problem


def environ() -> dict[str, str]:
    """Return the variables with which commits are installed and measured.

    What ``PYTHONPATH`` has would be imported on both sides, and in a hook of git others name the
    repository and its working tree.
    """
    return {key: value for key, value in os.environ.items() if key not in _LEFT_OUT}


def _look_up(side: str, name: str) -> Environment:
    """Return the Python or the commit called `name`; a commit has no Python yet."""
    # Without a slash it would be looked for on the PATH.
    python = Path(name).absolute()
    is_file = os.path.isfile(python)
    command = ("git", "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    # A branch may have the name of a file, and names of branches may have a slash.
    is_path = is_file and os.sep in name
    said, problem = ("", "a path") if is_path else environment.run_tool(command, 10)
    if problem and is_file:
        if not os.access(python, os.X_OK):
            raise UsageError(f"--{side} {name} is no Python; give an environment's bin/python")
        return Environment(python)
    if problem:
        raise UsageError(
            f"--{side} {name} is neither a Python nor a commit of the repository in the current "
            f"folder ({problem}). Give an environment's bin/python, or a commit, branch or tag; "
            "a shallow clone has to fetch it first"
        )
    # An old git repeats the option.
    commit = said.split()[-1]
    if (side, name) == ("head", "HEAD"):
        state = environment.checkout(Path())
        if state is None or state["dirty"]:
            unknown = " (git status takes too long to tell)" * (state is None)
            raise UsageError(
                f"--{side} HEAD lacks changes of the working tree{unknown}, and only commits are "
                f"compared. Commit or stash them, or leave them out: --{side} {commit[:12]}"
            )
    return Environment(Path(), commit)


def _make(commit: str, install: str, show: Callable[[str], None]) -> Path:
    top, problem = environment.run_tool(("git", "rev-parse", "--show-toplevel"), 10)
    if problem:
        raise UsageError(f"commits have no worktree here: {problem}")
    folder = Path(top.strip()) / "build" / "commits" / commit[:12]
    python, installed, source = folder / "env/bin/python", folder / "installed", folder / "source"
    is_made = python.exists() and installed.exists()
    if is_made and installed.read_text(encoding="utf-8") == _content(source, install):
        return python
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        installed.unlink(missing_ok=True)
        (folder.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    show(f"making the environment of {commit[:12]} in {folder}")
    # An interrupted one may lack files.
    shutil.rmtree(source, ignore_errors=True)
    for step in _steps(folder, commit, python, install):
        cwd = source if source.exists() else folder
        done = subprocess.run(step, cwd=cwd, stdout=sys.stderr, env=environ(), check=False)
        if done.returncode:
            raise UsageError(
                f"there is no environment of {commit[:12]}: {shlex.join(map(str, step))} failed; "
                "what it said is above. --install has the arguments of pip"
            )
    files.write(installed, _content(source, install))
    return python


def _content(source: Path, install: str) -> str:
    """Return the dependencies of a worktree's environment other than its commit."""
    install = f"{sys.version}\n{install}"
    if _name(source) == "commbench":
        return install
    requirement, digest = _commbench(), hashlib.sha256()
    if requirement.startswith("commbench @ file:"):
        # The folder's files may have changed since an earlier installation.
        for file in sorted(Path(__file__).parents[1].rglob("*")):
            if file.is_file() and file.parent.name != "__pycache__":
                digest.update(bytes(file) + file.read_bytes())
    return f"{install}\n{requirement}\n{digest.hexdigest()}"


def _steps(folder: Path, commit: str, python: Path, install: str) -> Iterator[Sequence[str | Path]]:
    source = folder / "source"
    # Git may know the worktree, whose folder has been removed.
    yield "git", "worktree", "add", "--force", "--quiet", "--detach", source, commit
    if install == "." and not any((source / name).exists() for name in _PACKAGED):
        raise UsageError(
            f"the project of {commit[:12]} has no {' or '.join(_PACKAGED)}, so that pip can't "
            "install it. What commits install is what ab compares: add one, or give --install the "
            "arguments of pip"
        )
    yield sys.executable, "-m", "venv", "--clear", folder / "env"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    # First, because the index may have no commbench for a project that requires it.
    if _name(source) != "commbench":
        yield *pip, _commbench()
    yield *pip, *shlex.split(install)


def _name(source: Path) -> str:
    """Return the name in the pyproject.toml of a project, "" if there is none."""
    try:
        content = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # pip says what is wrong with an invalid one.
        return ""
    return str(content.get("project", {}).get("name", ""))


def _commbench() -> str:
    """Return the source from which pip installs this commbench."""
    distribution = metadata.distribution("commbench")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if not origin:
        return f"commbench=={distribution.version}"
    if vcs := origin.get("vcs_info"):
        return f"commbench @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f"commbench @ {origin['url']}"

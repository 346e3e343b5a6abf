"""Which commit and which machine a run belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.errors import UsageError
from commbench.machine import programs
from commbench.model import Manifest
from commbench.studies.asv.documents import read

_GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Commit:
    """A commit of the project whose history it is; the date is the author's, as asv takes it."""

    hash: str
    date_ms: int


def commit_of(run: Manifest, name: str | None, repository: Path, *, force: bool = False) -> Commit:
    """Return the commit that `run` belongs to in the project's `repository`.

    Parameters
    ----------
    name
        A commit as git takes it; None for that of the checkout in which the run was started.
    force
        Whether a run that was measured with uncommitted changes may pass for its commit.

    Raises
    ------
    UsageError
        Where the commit isn't known, isn't in the repository, or wasn't what was measured.
    """
    recorded = _at(run, "git", "working_directory", "commit")
    if name is None and not recorded:
        raise UsageError(
            f"{run.id} doesn't say of which commit it is: it was not started in a git checkout. "
            "Name the commit: --commit COMMIT"
        )
    asked = name or str(recorded)
    said, problem = programs.ask(
        ("git", "-C", repository, "log", "-1", "--format=%H %at", "--end-of-options", asked, "--"),
        _GIT_TIMEOUT_S,
    )
    match = re.fullmatch(r"([0-9a-f]{40,64}) ([0-9]+)\s*", said)
    if match is None:
        raise UsageError(
            f"{repository} has no commit {asked!r} ({problem or 'git told nothing'}); name the "
            "project's checkout with --repository, fetch what it lacks, or name another --commit"
        )
    if recorded == match[1] and _at(run, "git", "working_directory", "dirty") and not force:
        raise UsageError(
            f"{run.id} was measured with changes that are not in {match[1][:12]}, and would be "
            "taken for that commit's. Commit them and measure again, or export it all the same: "
            "--force"
        )
    return Commit(match[1], int(match[2]) * 1000)


def machine_of(run: Manifest, name: str | None, results: Path) -> dict[str, str]:
    """Return what asv says of the machine: what stands in `results`, else what the run tells.

    Raises
    ------
    UsageError
        Where the machine has no name that a folder could have.
    """
    name = name or _at(run, "host", "name")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        why = f"{name!r} is no name for a folder" if name else "its provenance names none"
        raise UsageError(
            f"asv keeps a folder per machine, and for {run.id} {why}; name the machine in letters, "
            "digits, '.' and '-': --machine NAME"
        )
    file = results / name / "machine.json"
    if file.exists():
        told = {key: str(value) for key, value in read(file).items() if key != "version"}
        return {**told, "machine": name}
    kernel = str(_at(run, "host", "kernel") or "")
    memory = _at(run, "memory", "total_bytes")
    return {
        "machine": name,
        "os": " ".join(kernel.split()[:2]),
        "arch": str(_at(run, "host", "architecture") or ""),
        "cpu": str(_at(run, "cpu", "model") or ""),
        "num_cpu": str(_at(run, "cpu", "logical_cores") or ""),
        "ram": str(memory) if isinstance(memory, int) else "",
    }


def _at(run: Manifest, *keys: str) -> Any:
    value: Any = run.environment
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value

"""Measure two environments block by block, in a random order that every second block reverses.

A block is one ``commbench run`` with one launch per case in each environment, with the commbench
and the Python of that environment. The blocks of a side are merged into one run. Both runs have the
same block numbers, so that their launches are paired.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from commbench.errors import UsageError
from commbench.harness.cases import shuffled
from commbench.machine import process
from commbench.model import Manifest
from commbench.store import directory, files
from commbench.studies import commits
from commbench.studies.commits import Environment
from commbench.workloads.user_code import AB

SIDES = ("base", "head")
_END_SECONDS = 60.0
"""The time in which a measurement may end after an interrupt."""


@dataclass(frozen=True)
class Block:
    """One side of a measured block, and the run that it was added to.

    ``ok`` says whether all of its launches succeeded. ``notes`` are about unreadable records; if
    one failed, they end with what the measurement wrote to standard error.
    """

    number: int
    side: str
    run: Path
    seconds: float
    ok: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """The environments to compare, by side, and the arguments of ``commbench run``."""

    environments: Mapping[str, Environment]
    arguments: tuple[str, ...]
    launches: int
    seed: int
    output: Path
    command: str


def measure(experiment: Experiment) -> Generator[Block]:
    """Measure block by block, and yield each side after adding it to the side's run.

    If the iterator is interrupted, the running measurement is stopped and both runs are finished.

    Raises
    ------
    UsageError
        If an environment can't measure, with the error of its commbench, or if what is measured
        changes.
    UnwritableError
        If the output can't be written.
    """
    stores: dict[str, directory.RunStore] = {}
    with files.writing(experiment.output, "; choose another --output"):
        experiment.output.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=experiment.output, prefix=".ab-")
    with scratch as folder:
        try:
            for number, side in _order(experiment):
                began = time.monotonic()
                output = Path(folder) / f"{number}-{side}"
                path, said = _run(experiment, side, number, output)
                manifest = directory.read_manifest(path)
                if side not in stores:
                    stores[side] = _store(experiment, side, manifest)
                store = stores[side]
                cases, first = (each.suite.cases for each in (manifest, store.manifest))
                if [case.id for case in cases] != [case.id for case in first]:
                    raise UsageError(
                        f"block {number} of --{side} has other cases than the first, because a "
                        "script or the suite has changed meanwhile; leave them as they are until "
                        f"the last block. Earlier blocks are in {store.path}"
                    )
                ok, notes = _add(path, store, number, said)
                shutil.rmtree(output, ignore_errors=True)
                seconds = time.monotonic() - began
                yield Block(number, side, store.path, seconds, ok, tuple(notes))
        finally:
            for side_store in stores.values():
                side_store.finish()


def _order(experiment: Experiment) -> Iterator[tuple[int, str]]:
    for number in range(experiment.launches):
        for side in shuffled(SIDES, experiment.seed, number):
            yield number, side


def _run(experiment: Experiment, side: str, number: int, output: Path) -> tuple[Path, str]:
    """Run one side of a block; return the path of its run, and its standard error."""
    command: list[str | Path] = [
        experiment.environments[side].python, "-m", "commbench.cli", "run", *experiment.arguments,
        "--launches", "1", "--seed", str(experiment.seed + number), "--output", output,
    ]  # fmt: skip
    # Packages in the current folder would be imported on both sides.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                env={**commits.environ(), "PYTHONSAFEPATH": "1", AB: "1"}, start_new_session=True,
                preexec_fn=partial(process.die_with_parent, signal.SIGTERM),
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"--{side}: {command[0]} can't be run: {error.strerror}") from error
        try:
            status = child.wait()
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                # SIGINT is ignored if this process is in the background of a script.
                child.send_signal(signal.SIGTERM)
            try:
                child.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                # It ignores further signals. Its launch ends by itself.
                child.kill()
                child.wait()
            raise
        said.seek(0)
        complaint = said.read().strip()
    runs = sorted(output.iterdir()) if output.exists() else []
    if status not in (0, 1) or len(runs) != 1:
        raise UsageError(
            f"the commbench of --{side} {command[0]} can't measure this; it ended with status "
            f"{status} and said: {complaint or 'nothing'}. Environments of commits have what "
            "--install says, for example --install '.[ucx,mpi]'"
        )
    return runs[0], complaint


def _store(experiment: Experiment, side: str, first: Manifest) -> directory.RunStore:
    """Return the store of all blocks of a side, with the manifest of its first block."""
    cases = tuple(replace(case, launches=experiment.launches) for case in first.suite.cases)
    # Both sides have the same working directory, so its commit may be of neither.
    commit = experiment.environments[side].commit
    project = {"commit": commit, "dirty": False} if commit else None
    git = {**(first.environment.get("git") or {}), "working_directory": project}
    name = f"{first.suite.name}-{side}"
    run = replace(
        first,
        id=directory.new_run_id(name, experiment.output),
        suite=replace(first.suite, cases=cases),
        environment={**first.environment, "git": git},
        seed=experiment.seed,
        command=experiment.command,
        side=side,
    )
    return directory.RunStore.create(experiment.output, run)


def _add(path: Path, into: directory.RunStore, number: int, said: str) -> tuple[bool, list[str]]:
    """Add the records of the run in `path` as a block; return whether it succeeded, and notes.

    These end with its standard error, `said`, if it did not.
    """
    logs, kept = path / "logs", into.path / "logs" / f"block-{number}"
    notes: list[str] = []

    def renamed(text: str) -> str:
        return text.replace(str(logs.absolute()), str(kept.absolute()))

    ends = into.add_block(path, number, renamed, notes)
    if logs.exists():
        with suppress(OSError):
            shutil.move(logs, kept)
    # A measurement that crashed lacks ends.
    ok = all(end.ok for end in ends) and len(ends) == len(into.manifest.suite.cases)
    return ok, notes if ok else [*notes, renamed(said)]


def validate_arguments(given: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of ``commbench run`` if they are valid for a block.

    Raises
    ------
    UsageError
        For options that the A/B comparison sets, such as ``--launches``.
    """
    not_for_blocks = ("--resume", "--rigorous", "--budget", "--detect", "--quick", "--dry-run")
    for option in (*not_for_blocks, "--output", "--launches", "--seed", "--help", "-h"):
        if any(text == option or text.startswith(f"{option}=") for text in given):
            is_ours = option in ("--output", "--launches", "--seed")
            hint = f"write it before {given[0]}" if is_ours else "leave it out"
            raise UsageError(f"{option} is not for the runs within an A/B; {hint}")
    return tuple(given)

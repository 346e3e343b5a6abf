"""Run the command line as users do, look into it while it runs, and find what it left behind.

A process belongs to a test if it has the test's tag in its environment, which all processes of a
launch inherit.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from commbench import load
from commbench.analysis.run import Run
from commbench.cli.main import main
from commbench.machine.process import MARK
from commbench.model import registry
from commbench.store import parts
from commbench.store.records import BULK

BACKEND = os.environ.get("COMMBENCH_TEST_BACKEND", "tcp")
"""What the fixture ``cluster`` runs over."""
PATIENCE_SECONDS = 240.0
"""How long to wait for what takes a few seconds: only what hangs takes longer on a busy machine."""
_TAG = "COMMBENCH_TEST_TAG"


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Return what `condition` returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
    return value


def invoke(
    *arguments: Any,
    columns: int = 80,
    figures: Sequence[str] | None = None,
    rules: Sequence[str] | None = None,
) -> Result:
    """Run the command line in this process, with all figures and rules or only these."""
    environ = {"COLUMNS": str(columns)}
    with pytest.MonkeyPatch.context() as patch:
        for kind, plugins in (("plot", figures), ("rule", rules)):
            if plugins is not None:
                only(patch, kind, *plugins)
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], env=environ)
    assert "Traceback" not in result.output
    return result


def measured(*arguments: Any, figures: Sequence[str] = ()) -> Run:
    """Return the run that ``commbench run`` with these arguments makes in this process."""
    result = invoke("run", *arguments, figures=figures, rules=())
    assert result.exit_code == 0, result.output
    return load(result.stdout.splitlines()[-1])


def report(run: Path | str, *arguments: Any) -> Any:
    """Return what ``commbench report RUN --format json`` prints."""
    result = invoke("report", run, "--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def usage_error(result: Any) -> str:
    """Return the one message of a command that ended because of its usage."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    _, message = result.stderr.split("Error: ")
    return str(message)


def only(patch: pytest.MonkeyPatch, kind: str, *plugins: str) -> None:
    """Let reports have no plugins of a kind but these: figures and rules take most of their time.

    ``sitecustomize`` in ``plugged`` does it in processes that this one starts.
    """
    names = registry.names
    patch.setattr(registry, "names", lambda each: plugins if each == kind else names(each))
    patch.setenv(f"COMMBENCH_TEST_{kind.upper()}S", ",".join(plugins))


def cpu_seconds(command: Sequence[str | Path]) -> float:
    """Return the CPU time that a command takes with all its children, user and system."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True)
class Process:
    """A living process."""

    pid: int
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    name: str

    @property
    def role(self) -> str:
        """What it is in a launch: orchestrator, launch, scheduler, worker 0, peer or other."""
        text = " ".join(self.arguments)
        if self.name == "scheduler" or self.name.startswith("worker "):
            return self.name
        if "-m commbench.launchers.child -m dask scheduler" in text:
            return "scheduler"
        if "-m commbench.launchers.child -m dask worker" in text:
            return f"worker {self.arguments[self.arguments.index('--name') + 1]}"
        for module, role in (
            ("commbench.cli", "orchestrator"),
            ("commbench.harness.launch", "launch"),
            ("commbench.harness.measure.peer", "peer"),
        ):
            if module in self.arguments:
                return role
        return "other"

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def carrying(name: str, value: str) -> list[Process]:
    """Return the living processes, but this one, whose environment has `name` = `value`."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            environ = dict(pair.partition("=")[::2] for pair in pairs)
            if environ.get(name) == value and int(folder.name) != os.getpid():
                text = (folder / "cmdline").read_bytes().decode(errors="replace")
                comm = (folder / "comm").read_text().rstrip("\n")
                processes.append(Process(int(folder.name), tuple(text.split("\0")), environ, comm))
    return processes


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


class Tag:
    """What marks the processes of one test."""

    def __init__(self) -> None:
        self.value = uuid.uuid4().hex

    @property
    def environ(self) -> dict[str, str]:
        """The variables for the environment of what the test starts."""
        return {_TAG: self.value}

    def set(self, patch: pytest.MonkeyPatch) -> None:
        """Mark this process, and so what it starts."""
        patch.setenv(_TAG, self.value)

    def processes(self) -> list[Process]:
        """Return the living processes of the test."""
        return carrying(_TAG, self.value)

    def launched(self) -> list[Process]:
        """Return those of them that belong to a launch."""
        return [process for process in self.processes() if MARK in process.environ]

    def end(self) -> None:
        """Kill what is left."""
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                process.kill()
            time.sleep(0.02)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """All that it printed."""
        return self.stdout + self.stderr

    @property
    def run(self) -> Path:
        """The run's directory, which is the last line."""
        return Path(self.stdout.splitlines()[-1])


class Running:
    """``commbench`` with some arguments, as a process."""

    def __init__(self, command: Sequence[str], output: Path, tag: Tag, environ: dict[str, str]):
        self.output, self.tag = output, tag
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environ,
        )  # fmt: skip
        self._groups: set[int] = set()

    @property
    def run(self) -> Path:
        """The directory of the one run in the output folder."""
        (run,) = self.output.iterdir()
        return run

    def records(self, kind: str, launch: int | None = None) -> list[dict[str, Any]]:
        """Return the records of one kind that the run has so far."""
        if not self.output.exists():
            return []
        return [
            record
            for run in self.output.iterdir()
            for record in records(run, kind)
            if launch is None or record["launch"] == launch
        ]

    def until_record(self, kind: str, launch: int | None = None) -> dict[str, Any]:
        """Wait for a record of that kind and return the first one."""

        def matching() -> list[dict[str, Any]]:
            assert self.child.poll() is None, self.finish()
            return self.records(kind, launch)

        first: dict[str, Any] = until(matching, f"a {kind} of launch {launch}")[0]
        return first

    def find(self, role: str) -> Process:
        """Wait for the one process with that role."""

        def matching() -> list[Process]:
            return [process for process in self.tag.processes() if process.role == role]

        process, *others = until(matching, f"a process that is the {role}")
        assert not others, f"more than one {role}: {others}"
        self._groups.update(os.getpgid(p.pid) for p in self.tag.launched() if p.role == "launch")
        return process

    def finish(self, seconds: float = PATIENCE_SECONDS) -> Ended:
        """Wait for the end and return it."""
        stdout, stderr = self.child.communicate(timeout=seconds)
        return Ended(self.child.returncode, stdout, stderr)

    def living_groups(self) -> list[int]:
        """Return those process groups of launches that were seen and still have a member."""
        return [group for group in self._groups if _has_member(group)]


def _has_member(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # What is dead and waits for its parent to ask how it ended does no harm.
            state, _, members_group = stat.read_text().rpartition(") ")[2].split()[:3]
            if int(members_group) == group and state not in "ZX":
                return True
    return False


def records(run: Path | str, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind in a run, but for an unfinished line and open parts."""
    if kind in BULK:
        return [
            row for path in parts.closed(run, kind) for row in parts.read(path, kind).to_pylist()
        ]
    path = Path(run) / "samples.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [record for line in lines if line and (record := json.loads(line))["record"] == kind]


class CommandLine:
    """Starts ``commbench`` with temporary results, and ends what it started."""

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.output = folder / "results"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.tag = Tag()
        self.prefix = prefix
        self.environ: dict[str, str] = {}

    def start(self, *arguments: str | Path, output: bool = True) -> Running:
        """Start ``commbench`` with `arguments`, and ``--output`` where it takes that."""
        where = ["--output", str(self.output)] if output else []
        command = [sys.executable, "-m", "commbench.cli", *map(str, arguments), *where]
        environ = {
            "COMMBENCH_TEST_PLOTS": "", "COMMBENCH_TEST_RULES": "", **os.environ,
            "TMPDIR": str(self.temporary), **self.tag.environ, **self.environ,
        }  # fmt: skip
        return Running([*self.prefix, *command], self.output, self.tag, environ)

    def run(self, *arguments: str | Path) -> Ended:
        """Run ``commbench run`` to its end."""
        return self.start("run", *arguments).finish()

    def report(self, run: Path | str) -> Any:
        """Return what ``commbench report RUN --format json`` prints."""
        if (Path(run) / "run.json").exists():
            return report(run)
        # It lies on a disk that only the command sees.
        ended = self.start("report", str(run), "--format", "json", output=False).finish()
        assert ended.status == 0, ended
        return json.loads(ended.stdout)


@contextlib.contextmanager
def command_line(folder: Path, prefix: Sequence[str] = ()) -> Iterator[CommandLine]:
    """Give a command line whose processes end with the context."""
    line = CommandLine(folder, prefix)
    try:
        yield line
    finally:
        line.tag.end()


class PrivateMemory:
    """A namespace with another ``/dev/shm``, other System V segments, and a small disk."""

    def __init__(self, prefix: Sequence[str]) -> None:
        self.prefix = prefix

    def leftovers(self) -> list[str]:
        """Return the names of the files in /dev/shm and the ids of the System V segments."""
        script = "ls -A /dev/shm; tail -n +2 /proc/sysvipc/shm"
        text = subprocess.check_output([*self.prefix, "sh", "-c", script], text=True)
        return text.splitlines()


@contextlib.contextmanager
def private_memory(disk: Path | None = None, disk_size: str = "1m") -> Iterator[PrivateMemory]:
    """Give a `PrivateMemory`, with a disk of `disk_size` mounted at `disk`; else skip the test."""
    for tool in ("unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} of util-linux is not installed")
    mounts = ["mount -t tmpfs tmpfs /dev/shm"]
    if disk is not None:
        mounts.append(f"mount -t tmpfs -o size={disk_size} tmpfs '{disk}'")
    script = " && ".join([*mounts, "echo ready", "exec sleep infinity"])
    holder = subprocess.Popen(
        ["unshare", "--mount", "--ipc", "sh", "-c", script],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no namespace of its own: {holder.stderr.read().strip()}")
        yield PrivateMemory(["nsenter", "--target", str(holder.pid), "--mount", "--ipc"])
    finally:
        holder.kill()
        holder.communicate()


def program(path: Path, script: str) -> Path:
    """Write a shell script that can be started by its path, which is returned."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def plug_in(folder: Path, module: str, source: str, **entry_points: Mapping[str, str]) -> Path:
    """Install a module and its entry points in `folder`, as pip would, and return `folder`.

    `entry_points` gives, by group (``backends``), what each name stands for in `module`.
    """
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = []
    for group, names in entry_points.items():
        lines.append(f"[commbench.{group}]")
        lines += [f"{name} = {module}:{target}" for name, target in names.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder

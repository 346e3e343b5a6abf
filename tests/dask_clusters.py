"""Clusters that somebody else started, with Dask's commands."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Started:
    """A cluster by its scheduler's file."""

    file: Path
    scheduler: subprocess.Popen[bytes]
    workers: tuple[subprocess.Popen[bytes], ...]

    @property
    def address(self) -> str:
        """Where the scheduler is."""
        return str(json.loads(self.file.read_text())["address"])


@contextlib.contextmanager
def started(
    folder: Path, n_workers: int = 2, hosts: Sequence[tuple[Sequence[str], str]] = (),
    without: Sequence[str] = (),
) -> Iterator[Started]:  # fmt: skip
    """Start a cluster over tcp, whose processes can't import the packages `without`.

    `hosts` has for each worker the prefix of its command, and its address; the scheduler is on the
    first. By default all listen on loopback.
    """
    # Python imports this when it starts.
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({tuple(without)!r}))\n"
    )
    hosts = hosts or [((), "127.0.0.1")] * n_workers
    file, running = folder / "scheduler.json", []
    # The functions of cluster_state.py run on it.
    search = f"{folder}{os.pathsep}{HERE}"
    environ = os.environ | {"PYTHONPATH": search, "DASK_TEMPORARY_DIRECTORY": str(folder)}
    common = ("--scheduler-file", str(file), "--no-dashboard", "--host")

    def start(name: str, host: tuple[Sequence[str], str], *arguments: str) -> None:
        prefix, address = host
        with (folder / f"{name}.log").open("wb") as log:
            command = [*prefix, sys.executable, "-m", "dask", *arguments, *common, address]
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=environ))

    try:
        start("scheduler", hosts[0], "scheduler", "--port", "0")
        for index, host in enumerate(hosts):
            options = ("--name", f"their-{index}", "--nthreads", "1", "--no-nanny")
            start(f"worker-{index}", host, "worker", *options)
        # The file exists before it is written.
        processes.until(lambda: file.exists() and "\n}" in file.read_text(), "the scheduler's file")
        yield Started(file, running[0], tuple(running[1:]))
    finally:
        # Workers say goodbye to a scheduler that is still there.
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""Clusters that somebody else started, with Dask's own commands, and how they are at a moment."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import processes
from distributed import Client
from distributed.comm import Comm
from distributed.comm.tcp import TCP

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
    folder: Path, n_workers: int = 2, scheduler: Sequence[str] = (),
    places: Sequence[tuple[Sequence[str], str]] = (),
) -> Iterator[Started]:  # fmt: skip
    """Give a cluster over tcp.

    Parameters
    ----------
    scheduler
        More arguments for the scheduler's command.
    places
        What stands before the command of each worker, and its address; the scheduler's are those
        of the first. Otherwise all is on loopback.
    """
    places = places or [((), "127.0.0.1")] * max(1, n_workers)
    file, running = folder / "scheduler.json", []
    # The functions of this module run on it.
    environ = os.environ | {"PYTHONPATH": str(HERE), "DASK_TEMPORARY_DIRECTORY": str(folder)}
    common = ("--scheduler-file", str(file), "--no-dashboard", "--host")

    def start(name: str, place: tuple[Sequence[str], str], *arguments: str) -> None:
        prefix, address = place
        with (folder / f"{name}.log").open("wb") as log:
            command = [*prefix, sys.executable, "-m", "dask", *arguments, *common, address]
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=environ))

    try:
        start("scheduler", places[0], "scheduler", "--port", "0", *scheduler)
        for index, place in enumerate(places[:n_workers]):
            options = ("--name", f"their-{index}", "--nthreads", "1", "--no-nanny")
            start(f"worker-{index}", place, "worker", *options)
        processes.until(file.exists, "the scheduler's file")
        yield Started(file, running[0], tuple(running[1:]))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=30)


def snapshot(client: Client) -> dict[str, Any]:
    """Return all of a cluster that a guest must leave alone."""
    return {
        "scheduler": client.run_on_scheduler(scheduler_state),
        "workers": client.run(worker_state),
    }


def scheduler_state(dask_scheduler: Any) -> dict[str, Any]:
    """Return what the scheduler holds."""
    return {
        "keys": sorted(map(str, dask_scheduler.tasks)),
        "plugins": sorted(dask_scheduler.plugins),
        "worker plugins": sorted(dask_scheduler.worker_plugins),
        "extensions": sorted(dask_scheduler.extensions),
        "workers": sorted(dask_scheduler.workers),
        **_process_state(dask_scheduler),
    }


def worker_state(dask_worker: Any) -> dict[str, Any]:
    """Return what a worker holds."""
    log = dask_worker.transfer_incoming_log
    return {
        "keys": sorted(map(str, dask_worker.data)),
        "plugins": sorted(dask_worker.plugins),
        "log": (log.maxlen, [entry["who"] for entry in log]),
        "fetch": dask_worker.gather_dep.__qualname__,
        "own attributes": sorted(name for name in vars(dask_worker) if "gather" in name),
        **_process_state(dask_worker),
    }


def _process_state(server: Any) -> dict[str, Any]:
    # Without the scheduler's clock, which a worker corrects.
    return {
        "pid": os.getpid(),
        "configuration": json.dumps(dask.config.config, default=str, sort_keys=True),
        "variables": dict(os.environ),
        "comms": [Comm.handshake_info.__qualname__, TCP.write.__qualname__],
        "loop": sorted(vars(server.loop.asyncio_loop._selector).keys() & {"select"}),
    }

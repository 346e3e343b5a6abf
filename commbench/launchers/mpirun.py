"""``mpirun``: scheduler and workers as the ranks of one MPI world, started by dask-mpi.

Rank 0 is the scheduler, the others are the workers ``rank-1``, ``rank-2`` and so on. The client
stays outside, in the launch's own process: over ``mpi`` it joins as elastic mode does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from commbench import gpu
from commbench.errors import LaunchError
from commbench.launchers.base import Launcher, RunningCluster, of_workers
from commbench.launchers.local import BOUND, LocalCluster, memory_limit
from commbench.model import ClusterSpec


class MpirunCluster(LocalCluster):
    """A running world."""

    def _start(self, spec: ClusterSpec, protocol: str, preload: Sequence[str]) -> None:
        contact = self._scratch / "scheduler.json"
        rank: list[str | Path] = [
            *BOUND, "-m", "dask_mpi.cli",
            "--scheduler-file", contact, "--protocol", protocol, "--interface", "lo",
            "--no-dashboard", "--worker-class", "distributed.Worker", "--name", "rank",
            "--nthreads", str(spec.threads_per_worker),
            "--memory-limit", str(memory_limit(spec.n_workers)),
        ]  # fmt: skip
        self._spawn(
            "mpiexec", *BOUND, _mpiexec(), *_ranks(gpu.of_workers(spec, os.environ), rank),
            DASK_DISTRIBUTED__SCHEDULER__PRELOAD=json.dumps(list(preload)),
            DASK_DISTRIBUTED__WORKER__PRELOAD=json.dumps(of_workers(spec, preload)),
        )  # fmt: skip
        self._connect(contact, spec, preload)
        scheduler = self.client.run_on_scheduler(os.getpid)
        self.pids = (os.getpid(), scheduler, *self.client.run(os.getpid).values())


class MpirunLauncher(Launcher):
    """One ``mpiexec`` for the scheduler and all workers."""

    name = "mpirun"

    def start(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        if protocol == "ucx":
            raise LaunchError(
                "ucx can't run under mpirun: MPI brings a UCX of its own into every rank; "
                "use --launcher local"
            )
        if importlib.util.find_spec("dask_mpi") is None:
            raise LaunchError(
                "the launcher mpirun needs the package dask-mpi; pip install 'commbench[mpi]'"
            )
        return MpirunCluster(spec, protocol, scratch, preload)


def _ranks(variables: Sequence[Mapping[str, str]], rank: Sequence[str | Path]) -> list[str | Path]:
    """Return the arguments that start the scheduler and one worker for each of the `variables`.

    Where these differ from worker to worker, a world is put together of commands that differ.

    Examples
    --------
    >>> _ranks([{}, {}], ["dask-mpi"])
    ['-n', '3', 'dask-mpi']
    >>> _ranks([{"A": "0"}, {"A": "1"}], ["dask-mpi"])[3:]
    [':', '-n', '1', 'env', 'A=0', 'dask-mpi', ':', '-n', '1', 'env', 'A=1', 'dask-mpi']
    """
    if not any(variables):
        return ["-n", str(len(variables) + 1), *rank]
    words: list[str | Path] = ["-n", "1", *rank]
    for own in variables:
        words += [":", "-n", "1", "env", *(f"{key}={value}" for key, value in own.items()), *rank]
    return words


def _mpiexec() -> str:
    # The one beside the interpreter belongs to the MPI that mpi4py finds there.
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("mpiexec")
    if found is None:
        raise LaunchError(
            "the launcher mpirun finds no mpiexec; pip install mpich, or load your MPI's module"
        )
    return found

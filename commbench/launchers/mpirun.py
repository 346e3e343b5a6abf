"""``mpirun``: scheduler and workers as the ranks of one MPI world, started by dask-mpi.

Rank 0 is the scheduler, the others are the workers ``rank-1``, ``rank-2`` and so on. The client is
no rank but the launch process; over ``mpi`` it connects as in elastic mode. With ``--hosts`` the
first host runs the scheduler, and each other one has as many workers as with ``ssh``, in successive
ranks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from commbench.errors import LaunchError, UnavailableError, UsageError
from commbench.launchers import members
from commbench.launchers.launcher import (
    Launcher,
    RunningCluster,
    memory_limit,
)
from commbench.launchers.local import CHILD_COMMAND, LocalCluster, equal_share, nanny_environment
from commbench.launchers.members import forwarded_env
from commbench.machine import environment, gpu, installed
from commbench.model import ClusterSpec, registry

if TYPE_CHECKING:
    from commbench.backends.backend import Backend

_VERSION_SECONDS = 10.0
# Without them, hydra uses the nodes of a job of Slurm, PBS and others.
_ON_THIS_HOST = ("-launcher", "fork", "-rmk", "user")


class MpirunCluster(LocalCluster):
    """A scheduler and workers that are ranks of one MPI world."""

    def _start(self, spec: ClusterSpec, protocol: str, preload: Sequence[str]) -> None:
        mpiexec = installed.find_mpiexec() or "mpiexec"
        contact = self._scratch / "scheduler.json"
        crowd = _crowd(spec)
        # Hosts may differ in memory, so that a share of it is safer than bytes.
        share = 1 / max(crowd.values()) if crowd else equal_share(spec.n_workers)
        # Without an interface Dask uses the address by which a host reaches others.
        interface = spec.launcher_options.get("interface", "" if spec.hosts else "lo")
        rank: list[str | Path] = [
            *CHILD_COMMAND, "-m", "dask_mpi.cli",
            "--scheduler-file", contact, "--protocol", protocol,
            *(["--interface", interface] if interface else []),
            "--no-dashboard", "--worker-class", "distributed.Worker", "--name", "rank",
            "--nthreads", str(spec.threads_per_worker), "--memory-limit",
            str(memory_limit(spec, share)),
        ]  # fmt: skip
        # What it prints, or the reason why it prints nothing.
        version = "".join(environment.run_tool((mpiexec, "--version"), _VERSION_SECONDS))
        where = [*(_ON_THIS_HOST if "HYDRA" in version else _unbound(version, crowded=True))]
        if spec.hosts:
            # Ranks need MPI's variables with any backend.
            mpi = registry.load("backend", "mpi")
            chosen = forwarded_env(os.environ, spec.env, nanny_environment(), mpi.variables)
            # The command has names only, so that it does not show the key.
            names = [*chosen, *self._preloads, *({mpi.key_variable} & os.environ.keys())]
            where = _where(version, spec, names)
        ranks = _ranks(_gpus(spec, crowd), rank)
        environ = {**nanny_environment(), **self._preloads}
        self._spawn("mpiexec", *CHILD_COMMAND, mpiexec, *where, *ranks, **environ)
        self._connect_to_scheduler(contact, preload)
        members.join(self, spec, protocol, self._deadline)
        # A rank whose worker has left waits in MPI_Finalize.
        members.watch_workers(self, self._log("mpiexec"))
        # Ranks on this host that were started over SSH are not children of this process.
        children = {child.pid for child in psutil.Process().children(recursive=True)}
        self.foreign_pids = tuple(pid for pid in self.foreign_pids if pid not in children)


class MpirunLauncher(Launcher):
    """Start the scheduler and all workers with one ``mpiexec``."""

    name = "mpirun"
    supports = frozenset({"hosts", "memory_limit"})
    requires = ("dask_mpi", "mpi")
    options = ("interface",)

    @classmethod
    def remote(cls, spec: ClusterSpec) -> bool:  # noqa: D102
        return bool(spec.hosts)

    def unavailable(self) -> UnavailableError | None:  # noqa: D102
        problem = super().unavailable()
        if problem is None and installed.find_mpiexec() is None:
            remedy = "pip install mpich, or load your MPI's module"
            problem = UnavailableError("the launcher mpirun", "there is no mpiexec", remedy)
        return problem

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:  # noqa: D102
        super().validate(spec, backend)
        if not backend.in_mpi_ranks:
            raise UsageError(
                f"{backend.name} can't run under mpirun: MPI loads libraries into every rank "
                "that conflict with it; use --launcher local"
            )
        if len(spec.hosts) == 1:
            raise UsageError(
                "the launcher mpirun takes --hosts with at least two: the scheduler's, then the "
                "workers', for example --hosts node1,node1,node2; without it all is on this host"
            )

    def start(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        return MpirunCluster(spec, protocol, scratch, preload)


def _crowd(spec: ClusterSpec) -> dict[str, int]:
    """Return the number of workers per host, in the order of the ranks; empty without ``--hosts``.

    The scheduler's host comes first, because its rank is 0.

    Examples
    --------
    >>> _crowd(ClusterSpec(hosts=("head", "a", "b"), n_workers=3))
    {'head': 0, 'a': 2, 'b': 1}
    >>> _crowd(ClusterSpec(hosts=("a", "b", "a"), n_workers=3))
    {'a': 1, 'b': 2}
    """
    if not spec.hosts:
        return {}
    head, *others = spec.hosts
    n_workers = Counter(others[index % len(others)] for index in range(spec.n_workers))
    return {host: n_workers[host] for host in (head, *others) if host == head or n_workers[host]}


def _where(version: str, spec: ClusterSpec, names: Sequence[str]) -> list[str]:
    """Return the arguments that make ``mpiexec`` start ranks on the hosts of `spec`.

    Hydra forwards its whole environment; Open MPI forwards the variables `names`.

    Examples
    --------
    >>> spec = ClusterSpec(hosts=("head", "a", "b"), n_workers=3)
    >>> _where("HYDRA build details:", spec, ["A"])
    ['-hosts', 'head:1,a:2,b:1']
    >>> _where("mpiexec (Open MPI) 5.0.8", spec, ["A"])
    ['--host', 'head:1,a:2,b:1', '--bind-to', 'none', '-x', 'A']
    """
    crowd = _crowd(spec)
    slots = {host: n_workers + (host == spec.hosts[0]) for host, n_workers in crowd.items()}
    listed = ",".join(f"{host}:{number}" for host, number in slots.items())
    if _is_open_mpi(version):
        forwarded = (word for name in names for word in ("-x", name))
        return ["--host", listed, *_unbound(version), *forwarded]
    if "HYDRA" in version:
        return ["-hosts", listed]
    first_line = next(iter(version.strip().splitlines()), "")
    raise LaunchError(
        "the launcher mpirun supports --hosts with the mpiexec of MPICH (hydra) and of Open MPI, "
        f"and this one is {first_line!r}; use --launcher ssh"
    )


def _is_open_mpi(version: str) -> bool:
    # Version 4 says for example "mpiexec (OpenRTE) 4.1.4".
    return "Open MPI" in version or "OpenRTE" in version


def _unbound(version: str, *, crowded: bool = False) -> list[str]:
    """Return the arguments by which ranks of Open MPI may use all cores.

    By default it binds each, with all threads, to a core or to a NUMA node. Without a list of hosts
    it starts no more ranks than cores, unless they may be `crowded`.

    Examples
    --------
    >>> _unbound("mpiexec (Open MPI) 5.0.8", crowded=True)
    ['--bind-to', 'none', '--map-by', ':OVERSUBSCRIBE']
    """
    if not _is_open_mpi(version):
        return []
    return ["--bind-to", "none", *["--map-by", ":OVERSUBSCRIBE"] * crowded]


def _gpus(spec: ClusterSpec, crowd: Mapping[str, int]) -> Sequence[Mapping[str, str]]:
    """Return the variables that select each worker's GPU, in the order of the ranks."""
    if not crowd or spec.device != "gpu":
        return gpu.env_for_workers(spec, os.environ)
    return [
        gpu.env_for_remote_worker(number, n_workers, spec.workers_per_gpu, os.environ)
        for n_workers in crowd.values()
        for number in range(n_workers)
    ]


def _ranks(variables: Sequence[Mapping[str, str]], rank: Sequence[str | Path]) -> list[str | Path]:
    """Return the arguments that start the scheduler and one worker for each of the `variables`.

    If the variables differ, each worker becomes a separate application context.

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
    for environ in variables:
        settings = [f"{key}={value}" for key, value in environ.items()]
        words += [":", "-n", "1", "env", *settings, *rank]
    return words

"""``local``: ``dask scheduler`` and ``dask worker`` processes on this host, as users start them.

The scheduler runs in a separate process, so that its time is not the client's. The workers have no
nanny: if a worker dies, the launch must fail instead of going on with a new worker. With the
launcher's option ``processes=N`` the workers share N processes, so that hundreds fit on a host; a
process has one event loop and one interpreter for all of its workers.

The processes are forked from that of the launch, which has imported what they need and has started
neither a client nor a communication library. Processes with a GPU, and those bound to CPUs, whose
memory could be on a distant NUMA node, start anew, and so do those for a user's code, as its client
has not the variables of nannies; the launcher's option ``start=spawn`` starts all anew. Every
launch is a new process, so that memory layouts and hash seeds differ between launches.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commbench.errors import LaunchError, UsageError
from commbench.launchers import child, members
from commbench.launchers.launcher import (
    Launcher,
    RunningCluster,
    memory_limit,
    preload_environment,
)
from commbench.machine import environment, gpu, process
from commbench.model import ClusterSpec, Placement, registry

if TYPE_CHECKING:
    from commbench.backends.backend import Backend

CHILD_COMMAND = (sys.executable, "-m", "commbench.launchers.child")
_IMPORTED = tuple(f"distributed.cli.dask_{name}" for name in ("scheduler", "worker", "spec"))
_START, _STARTS = "start", ("fork", "spawn")
_PROCESSES = "processes"
_CLOSE_SECONDS = 5.0
_END_SECONDS = 2.5


class LocalCluster(RunningCluster):
    """A running scheduler and its workers."""

    def __init__(
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = (),
        *, forks: bool = False,
    ) -> None:  # fmt: skip
        self._forks = forks
        self._processes: list[process.Child] = []
        self._scratch = scratch
        self._preloads = preload_environment(spec, preload)
        self._timeout_s = spec.start_timeout_s
        self._deadline = time.monotonic() + self._timeout_s
        try:
            self._start(spec, protocol, preload)
        except BaseException:
            with contextlib.suppress(Exception):
                self.client.close(timeout=1)
            self._stop()
            raise

    def _start(self, spec: ClusterSpec, protocol: str, preload: Sequence[str]) -> None:
        contact = self._scratch / "scheduler.json"
        if self._forks:
            for module in (*_IMPORTED, *preload):
                importlib.import_module(module)
        self._start_scheduler(contact, protocol, "--host", "127.0.0.1")
        n_processes = LocalLauncher.n_processes(spec)
        # Each worker compares its limit with the memory of its process.
        limit = memory_limit(spec, equal_share(n_processes))
        if _PROCESSES in spec.launcher_options:
            self.shares_processes = True
            self._start_shared(contact, spec, protocol, limit, n_processes)
        else:
            self._start_workers(contact, spec, protocol, limit)
        self._connect_to_scheduler(contact, preload)
        self._await_workers(spec)

    def _await_workers(self, spec: ClusterSpec) -> None:
        workers = members.wait_for_workers(self.client, spec, self._deadline)
        self.names = {address: str(info["name"]) for address, info in workers.items()}
        self.pids = (os.getpid(), *(process.pid for process in self._processes))

    def _start_workers(self, contact: Path, spec: ClusterSpec, protocol: str, limit: float) -> None:
        bindings = spec.placement or (Placement(),) * spec.n_workers
        gpus = gpu.env_for_workers(spec, os.environ)
        for index in range(spec.n_workers):
            self._start_dask(
                f"worker {index}", "--scheduler-file", contact,
                "--protocol", protocol, "--host", "127.0.0.1",
                "--name", str(index), "--no-nanny", "--no-dashboard",
                "--nthreads", str(spec.threads_per_worker), "--memory-limit", str(limit),
                **{**nanny_environment(), **gpus[index], **_binding_env(bindings[index])},
            )  # fmt: skip

    def _start_shared(
        self, contact: Path, spec: ClusterSpec, protocol: str, limit: float, n_processes: int
    ) -> None:
        """Start several workers in each process, which ``dask spec`` does."""
        options = {
            "scheduler_file": str(contact), "protocol": protocol, "host": "127.0.0.1",
            "dashboard": False, "nthreads": spec.threads_per_worker, "memory_limit": limit,
        }  # fmt: skip
        for first in range(n_processes):
            workers = {
                str(index): {"cls": "distributed.Worker", "opts": options | {"name": str(index)}}
                for index in range(first, spec.n_workers, n_processes)
            }
            self._start_dask(f"spec {first}", "--spec", json.dumps(workers), **nanny_environment())

    def _start_scheduler(self, contact: Path, protocol: str, *options: str) -> None:
        self._start_dask(
            "scheduler", "--scheduler-file", contact, "--protocol", protocol,
            "--port", "0", "--no-dashboard", *options,
        )  # fmt: skip

    def _start_dask(self, name: str, /, *options: str | Path, **environ: str) -> None:
        arguments = ["dask", name.partition(" ")[0], *map(str, options)]
        environ |= self._preloads
        if not self._forks:
            self._spawn(name, *CHILD_COMMAND, "-m", *arguments, **environ)
            return
        log = self._log(name)
        self._add(name, child.ForkedModule(name, arguments, environ, log), log)

    def _connect_to_scheduler(self, contact: Path, preload: Sequence[str]) -> None:
        from distributed import Client

        for module in preload:
            importlib.import_module(module)
        # NFS remembers for a minute that a file is missing, and reads a folder anew.
        while contact not in contact.parent.iterdir():
            if time.monotonic() > self._deadline:
                raise LaunchError(
                    f"the scheduler did not start within {self._timeout_s:g} s (--start-timeout)"
                )
            time.sleep(0.02)
        # The client waits until the scheduler has written the whole file.
        self.client = Client(scheduler_file=str(contact), timeout=self._timeout_s)

    def _spawn(self, name: str, /, *command: str | Path, **environ: str) -> None:
        log = self._log(name)
        with log.open("wb") as output:
            spawned = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **environ},
            )  # fmt: skip
        self._add(name, spawned, log)

    def _log(self, name: str) -> Path:
        return self._scratch / f"{name.replace(' ', '-')}.log"

    def _add(self, name: str, started: process.Child, log: Path) -> None:
        self._processes.append(started)
        process.watch(name, started, log)

    def close(self) -> None:
        """Ask the scheduler to shut down the cluster, then kill what is left."""
        process.unwatch()
        self.shut_down()
        self._stop(_CLOSE_SECONDS)

    def _stop(self, timeout_s: float = 0.0) -> None:
        """Wait `timeout_s` for the processes to end, then terminate and kill them."""
        process.unwatch()
        for sent, seconds in (
            (None, timeout_s), (signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)
        ):  # fmt: skip
            for member in self._processes:
                if sent is not None and member.poll() is None:
                    member.send_signal(sent)
            deadline = time.monotonic() + seconds
            for member in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.wait(timeout=max(0.0, deadline - time.monotonic()))


class LocalLauncher(Launcher):
    """Start every process on this host."""

    name = "local"
    supports = frozenset({"launcher_options", "placement", "memory_limit"})

    @classmethod
    def remote(cls, spec: ClusterSpec) -> bool:  # noqa: D102
        del spec
        return False

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:  # noqa: D102
        super().validate(spec, backend)
        has_nics = any(binding.nic for binding in spec.placement)
        if has_nics and (given := _nic_variables() & spec.env.keys()):
            raise UsageError(
                f"{min(given)} is set, and the placement sets it to each worker's NIC; leave out "
                "one of them (--placement auto has NICs; nic is a key of a placement file)"
            )
        for option, value in spec.launcher_options.items():
            if option == _PROCESSES and value.isdecimal() and int(value):
                if spec.device == "gpu" or spec.placement:
                    raise UsageError(
                        f"{option}={value}: workers that share a process have no GPU or CPUs for "
                        "themselves; leave it out"
                    )
            elif option != _START or value not in _STARTS:
                raise UsageError(
                    f"the launcher local has no option {option}={value}; it has {_START}="
                    f"{'|'.join(_STARTS)} and {_PROCESSES}=N, the processes that all workers share"
                )

    @classmethod
    def n_processes(cls, spec: ClusterSpec) -> int:  # noqa: D102
        return min(spec.n_workers, int(spec.launcher_options.get(_PROCESSES, spec.n_workers)))

    def environment(self, spec: ClusterSpec) -> dict[str, str]:  # noqa: D102
        # Most variables only have an effect when a process starts. Those of the allocator have one
        # later, too, and schedulers and clients, which have no nanny, are measured without them.
        given = nanny_environment() if _forks(spec) else {}
        return {name: value for name, value in given.items() if not name.startswith("MALLOC_")}

    def start(  # noqa: D102
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        # Other processes, such as a notebook's, may have threads that hold locks.
        is_launch = process.MARK in os.environ
        # Libraries that this process has imported without a nanny's variables ignore them later.
        has_variables = self.environment(spec).keys() <= os.environ.keys()
        forks = is_launch and has_variables and _forks(spec)
        return LocalCluster(spec, protocol, scratch, preload, forks=forks)


def _forks(spec: ClusterSpec) -> bool:
    bound = spec.device == "gpu" or spec.placement
    return not bound and spec.launcher_options.get(_START, "fork") == "fork"


def _binding_env(placement: Placement) -> dict[str, str]:
    # The module `child` applies the CPUs.
    # UCX's TCP needs the loopback.
    nics = f"{placement.nic},lo" if placement.nic not in ("", "lo") else placement.nic
    variables = {process.CPUS: placement.cpus, **dict.fromkeys(_nic_variables(), nics)}
    return {name: value for name, value in variables.items() if value}


def _nic_variables() -> set[str]:
    return {kind.nic_variable for kind in registry.loadable("backend").values()} - {""}


def nanny_environment() -> dict[str, str]:
    """Return the variables that a nanny sets for its worker, e.g. one BLAS thread per task.

    As in Dask, variables of this process have precedence, and None in the configuration is none.
    """
    import dask
    import distributed  # noqa: F401 - it fills in the configuration

    keys = ("distributed.nanny.pre-spawn-environ", "distributed.nanny.environ")
    return {
        name: os.environ.get(name, str(value))
        for key in keys
        for name, value in dask.config.get(key).items()
        if value is not None
    }


def equal_share(n_workers: int) -> int:
    """Return the bytes of memory of each worker: an equal share of this machine's."""
    from distributed.system import MEMORY_LIMIT

    # Dask sees a limit of the container, but none of this process's own cgroup.
    limit = environment.memory(Path("/"))["cgroup_limit_bytes"]
    return int(min(MEMORY_LIMIT, math.inf if isinstance(limit, str | None) else limit) // n_workers)

"""Base classes of launchers, and of the clusters that they start."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.errors import UnavailableError, UsageError
from commbench.machine import cores, gpu, process
from commbench.machine.installed import install_command
from commbench.model import ClusterSpec, registry
from commbench.model.units import parse_memory

if TYPE_CHECKING:
    from commbench.backends.backend import Backend

SCHEDULER = "scheduler"
"""The scheduler's key in mappings and sets of worker addresses."""
_SHUTDOWN_SECONDS = 10.0


def ask(client: Any, members: Collection[str], function: Any, *args: Any) -> dict[str, Any]:
    """Return the return value of `function` on each member: a worker's address or `SCHEDULER`."""
    answers: dict[str, Any] = {}
    if workers := sorted({*members} - {SCHEDULER}):
        answers |= client.run(function, *args, workers=workers)
    if SCHEDULER in members:
        answers[SCHEDULER] = client.run_on_scheduler(function, *args)
    return answers


class RunningCluster(ABC):
    """A running cluster with all its workers; leaving the context closes it."""

    client: Any
    """A connected ``distributed.Client``."""
    names: Mapping[str, str]
    """The workers' names by address."""
    pids: tuple[int, ...]
    """The processes of the cluster on this host, including the client's."""
    foreign_pids: tuple[int, ...] = ()
    """The processes in `pids` that are not descendants of this process."""
    remote_members: frozenset[str] = frozenset()
    """The addresses of workers on other hosts or in containers, and `SCHEDULER` if it is there."""
    remote_processes: frozenset[str] = frozenset()
    """A member of ``remote_members`` for each process there, whose CPU time counts once."""
    preexisting: bool = False
    """Whether the cluster ran before the launch and must be left as it was."""
    shares_processes: bool = False
    """Whether a worker shares its process, and so connections and threads, with another member."""

    @abstractmethod
    def close(self) -> None:
        """Stop the processes; kill those that don't end in time."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of scheduler, workers and client since they started."""
        return sum(self.cpu_by_process().values())

    def cpu_by_process(self) -> dict[int | str, float]:
        """Return the CPU seconds of each process, by its id here or its address on another host.

        Each process on another host is asked for its CPU time, with one message.
        """
        here: dict[int | str, float] = {pid: cores.cpu_seconds([pid]) for pid in self.pids}
        return here | ask(self.client, self.remote_processes, time.process_time)

    def shut_down(self) -> None:
        """Ask the scheduler to shut down the cluster, and close the client."""
        # The scheduler closes the connection while it answers; one that is stopped never answers.
        with contextlib.suppress(Exception):
            self.client.sync(self.client._shutdown, callback_timeout=_SHUTDOWN_SECONDS)
        with contextlib.suppress(Exception):
            self.client.close(timeout=1)

    @property
    def known_names(self) -> Mapping[str, str]:
        """The names of workers by address."""
        return self.names

    @property
    def n_processes(self) -> int:
        """The number of processes, on this and other hosts."""
        return len(self.pids) + len(self.remote_processes)

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            process.await_death_report()
        self.close()


def worker_preloads(spec: ClusterSpec, preload: Sequence[str]) -> list[str]:
    """Return the modules that workers import before they communicate.

    These are GPU setup, which comes before all that may use CUDA, those of Dask's configuration,
    and `preload`. Scheduler and client don't set up a GPU, because they would allocate an RMM pool
    in vain.
    """
    gpus = [gpu.PRELOAD] if spec.device == "gpu" else []
    return [*gpus, *_configured_preloads("worker"), *preload]


def scheduler_preloads(preload: Sequence[str]) -> list[str]:
    """Return the modules that the scheduler imports: as configured for Dask, and `preload`."""
    return [*_configured_preloads("scheduler"), *preload]


def preload_environment(spec: ClusterSpec, preload: Sequence[str]) -> dict[str, str]:
    """Return the variables by which schedulers and workers know the modules that they import.

    Dask imports these in the event loop. The modules of its option ``--preload`` are first imported
    before there is a loop: UCX's thread modes would serve another one.
    """
    roles = {"scheduler": scheduler_preloads(preload), "worker": worker_preloads(spec, preload)}
    return dask_variables(
        {f"distributed.{role}.preload": modules for role, modules in roles.items() if modules}
    )


def dask_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that set these keys of Dask's configuration."""
    # dask.config reads "__" as a level and treats "_" and "-" alike.
    return {
        "DASK_" + key.replace(".", "__").replace("-", "_").upper(): repr(value)
        for key, value in config.items()
    }


def _configured_preloads(role: str) -> list[str]:
    # Dask ignores them where others are given.
    import dask
    import distributed  # noqa: F401 - it fills in the configuration

    modules = dask.config.get(f"distributed.{role}.preload")
    return [modules] if isinstance(modules, str) else [*modules]


def memory_limit(spec: ClusterSpec, default: int | float) -> int | float:
    """Return the memory limit of a worker, in bytes or as a share of its host's memory.

    `default` is that of a cluster without one.

    Raises
    ------
    UsageError
        If the limit makes no sense.

    Examples
    --------
    >>> [memory_limit(ClusterSpec(memory_limit=text), 0.25) for text in ("4 GB", "50e-2", "")]
    [4000000000, 0.5, 0.25]
    """
    if not spec.memory_limit:
        return default
    return parse_memory(spec.memory_limit, "a memory limit", "--memory-limit")


class Launcher(ABC):
    """A way to start a cluster, or to connect to a running one."""

    name: ClassVar[str]
    """The entry point's name."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """The fields of ``ClusterSpec`` that it uses, of those with an ``example`` there."""
    requires: ClassVar[tuple[str, str]] = ("", "")
    """The module that it needs, and the extra of commbench that installs it."""
    shows_variables: ClassVar[bool] = False
    """Commands or job scripts, which others can read, have the variables of processes."""
    options: ClassVar[tuple[str, ...] | None] = None
    """The keys of its ``launcher_options``, which it then supports, if they are always the same."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.options:
            cls.supports |= {"launcher_options"}

    @classmethod
    def remote(cls, spec: ClusterSpec) -> bool:
        """Return whether workers may be on other hosts; True if this is unknown."""
        del spec
        return True

    @classmethod
    def n_processes(cls, spec: ClusterSpec) -> int:
        """Return the number of processes of the workers."""
        return spec.n_workers

    def unavailable(self) -> UnavailableError | None:
        """Return the error that says what this machine lacks to use the launcher, or None."""
        package, extra = self.requires
        if not package or importlib.util.find_spec(package) is not None:
            return None
        reason = f"the package {package.replace('_', '-')} is not installed"
        return UnavailableError(f"the launcher {self.name}", reason, install_command(extra))

    def unstartable(self) -> UnavailableError | None:
        """Return the error that says what it takes to start clusters, and not for ``script``."""
        return None

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:
        """Raise a UsageError, with a remedy, if this launcher can't start `spec` with `backend`."""
        if backend.has_secrets and self.remote(spec):
            raise UsageError(
                f"the key of {backend.name} would be in commands or job scripts of the launcher "
                f"{self.name}, where others can read it; measure {backend.name} with --launcher "
                "local, or profile your code on a cluster that has its keys"
            )
        if self.shows_variables and backend.key_variable in {**os.environ, **spec.env}:
            raise UsageError(
                f"{backend.key_variable} would be in commands or job scripts of the launcher "
                f"{self.name}, where others can read it: unset it, and put the key into Dask's "
                "YAML on each host"
            )
        for field, how in spec.settings().items():
            if how.example is not None and getattr(spec, field) and field not in self.supports:
                others = registry.loadable("launcher").items()
                able = [name for name, launcher in others if field in launcher.supports]
                raise UsageError(
                    f"the launcher {self.name} takes no {how.option}; add "
                    f"--launcher {' or '.join(able)}"
                )
        if problem := self.unavailable():
            raise problem
        for key in spec.launcher_options:
            if self.options is not None and key not in self.options:
                known = ", ".join(self.options)
                raise UsageError(f"the launcher {self.name} has no option {key!r}; known: {known}")
        for host in spec.hosts:
            if Path(host).suffix and os.path.isfile(host):
                raise UsageError(
                    f"--hosts: {host} is a file; name the hosts one by one, for example --hosts "
                    "node1,node2"
                )
        memory_limit(spec, 1.0)

    def environment(self, spec: ClusterSpec) -> dict[str, str]:
        """Return the default environment variables of a launch that starts `spec`."""
        del spec
        return {}

    def script(
        self, spec: ClusterSpec, protocol: str, scratch: Path, environ: Mapping[str, str],
        preload: Sequence[str] = (),
    ) -> str:  # fmt: skip
        """Return the job script that ``start`` would submit, without submitting it.

        `environ` is the environment of the launch.

        Raises
        ------
        UsageError
            If the launcher submits no jobs.
        """
        del spec, protocol, scratch, environ, preload
        known = registry.loadable("launcher").items()
        able = [name for name, kind in known if kind.script is not Launcher.script]
        raise UsageError(
            f"the launcher {self.name} submits no job, so there is nothing to print; "
            f"--dry-run is for {', '.join(able)}"
        )

    @abstractmethod
    def start(
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        """Start the cluster described by `spec` and wait for all its workers.

        Every process inherits this process's environment and logs to `scratch`. It imports the
        modules `preload` before it communicates, because a backend that polls slows imports down.

        Raises
        ------
        LaunchError
            If a process died, or not all workers came in time; the message has their number.
        """

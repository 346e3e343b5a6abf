"""What a launcher must give: a connected client and the processes behind it."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.errors import UnavailableError, UsageError
from commbench.machine import cores, gpu, process
from commbench.model import ClusterSpec, Placement, registry
from commbench.model.units import parse_memory

if TYPE_CHECKING:
    from commbench.backends.base import Backend

SCHEDULER = "scheduler"
"""What the scheduler is called where workers go by their addresses."""


class RunningCluster(ABC):
    """A cluster with all its workers there, closed on leaving the context."""

    client: Any
    """A connected ``distributed.Client``."""
    names: Mapping[str, str]
    """The name of every worker by its address."""
    pids: tuple[int, ...]
    """Every process on this host that works for the cluster, the client's included."""
    adopted: tuple[int, ...] = ()
    """Those of them that this process did not start, itself or through its children."""
    elsewhere: frozenset[str] = frozenset()
    """The addresses of the workers on other hosts, and `SCHEDULER` where that is on another."""
    outlives: bool = False
    """Whether the cluster was there before the launch and stays: it is to be left as it was."""

    @abstractmethod
    def close(self) -> None:
        """Stop the processes in an orderly way, and by force those that won't."""

    def cpu_seconds(self) -> float:
        """Return the CPU time that scheduler, workers and client have used since they began.

        Processes elsewhere are asked for theirs, which costs each of them one message.
        """
        seconds = cores.cpu_seconds(self.pids)
        if workers := sorted(self.elsewhere - {SCHEDULER}):
            seconds += sum(self.client.run(time.process_time, workers=workers).values())
        if SCHEDULER in self.elsewhere:
            seconds += self.client.run_on_scheduler(time.process_time)
        return seconds

    def shut_down(self) -> None:
        """Ask the scheduler to end all, and leave."""
        # The scheduler goes away while it answers.
        with contextlib.suppress(Exception):
            self.client.shutdown()
        with contextlib.suppress(Exception):
            self.client.close(timeout=1)

    @property
    def n_processes(self) -> int:
        """How many processes that is."""
        return len(self.pids) + len(self.elsewhere)

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            process.let_deaths_be_told()
        self.close()


def bound_to(place: Placement) -> dict[str, str]:
    """Return the variables that bind a process which ``bound`` starts to its CPUs and its NIC.

    Its GPU is the business of :mod:`commbench.machine.gpu`.

    Examples
    --------
    >>> bound_to(Placement(cpus="0-3", nic="mlx5_0:1"))
    {'COMMBENCH_CPUS': '0-3', 'UCX_NET_DEVICES': 'mlx5_0:1'}
    """
    variables = {process.CPUS: place.cpus} if place.cpus else {}
    if place.nic:
        variables["UCX_NET_DEVICES"] = place.nic
    return variables


def of_workers(spec: ClusterSpec, preload: Sequence[str]) -> list[str]:
    """Return the modules that workers import before they communicate, where all import `preload`.

    Scheduler and client do without the set-up of a GPU: RMM's pool would be lost there.
    """
    return [*([gpu.PRELOAD] if spec.device == "gpu" else []), *preload]


def _takers(field: str) -> Iterator[str]:
    """Yield the names of the launchers that look at a field of the spec."""
    for name in registry.names("launcher"):
        with contextlib.suppress(UnavailableError):
            if field in registry.load("launcher", name).takes:
                yield name


class Launcher(ABC):
    """A way to come to a cluster."""

    name: ClassVar[str]
    """The entry point's name."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Those of the spec's ``hosts``, ``scheduler``, ``launcher_options``, ``placement`` and
    ``memory_limit`` that it looks at."""

    @classmethod
    def remote(cls, spec: ClusterSpec) -> bool:
        """Return whether workers may be on other hosts than this; True where nobody can know."""
        del spec
        return True

    def validate(self, spec: ClusterSpec, backend: Backend) -> None:
        """Refuse what can't be started, before anything is.

        Raises
        ------
        UsageError
            With what is wrong and what to do.
        """
        del backend
        for field in ("hosts", "scheduler", "launcher_options", "placement", "memory_limit"):
            if getattr(spec, field) and field not in self.takes:
                raise UsageError(
                    f"the launcher {self.name} takes no {spec.settings()[field].option}; add "
                    f"--launcher {' or '.join(_takers(field))}"
                )
        if spec.memory_limit:
            parse_memory(spec.memory_limit, "a memory limit", "--memory-limit")

    def script(
        self, spec: ClusterSpec, protocol: str, scratch: Path, environ: Mapping[str, str]
    ) -> str:
        """Return the job script that ``start`` would submit, with nothing started.

        `environ` is the environment that the launch would have.

        Raises
        ------
        UsageError
            Where there is none.
        """
        del spec, protocol, scratch, environ
        raise UsageError(
            f"the launcher {self.name} submits no job, so there is nothing to print; "
            "--dry-run is for slurm, pbs and lsf"
        )

    @abstractmethod
    def start(
        self, spec: ClusterSpec, protocol: str, scratch: Path, preload: Sequence[str] = ()
    ) -> RunningCluster:
        """Start the cluster that `spec` asks for and wait for all its workers.

        Every process inherits the environment of this one. `scratch` takes its logs. The modules
        `preload` are imported in every process before it communicates: a backend that polls
        would slow their import manifold.

        Raises
        ------
        LaunchError
            Where a process died or workers did not come in time, with how many did.
        """

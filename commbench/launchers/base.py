"""What a launcher must give: a connected client and the processes behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from commbench import process
from commbench.model import ClusterSpec


class RunningCluster(ABC):
    """A cluster with all its workers there, closed on leaving the context."""

    client: Any
    """A connected ``distributed.Client``."""
    names: Mapping[str, str]
    """The name of every worker by its address."""
    pids: tuple[int, ...]
    """Every process on this host that works for the cluster, the client's included."""

    @abstractmethod
    def close(self) -> None:
        """Stop the processes in an orderly way, and by force those that won't."""

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            process.let_deaths_be_told()
        self.close()


class Launcher(ABC):
    """A way to start a cluster."""

    name: ClassVar[str]
    """The entry point's name."""

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

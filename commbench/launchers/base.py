"""What a launcher must give: a connected client and the processes behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from commbench import process
from commbench.model import ClusterSpec, Placement


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


def bound_to(place: Placement) -> dict[str, str]:
    """Return the environment variables that bind a process which ``bound`` starts.

    Examples
    --------
    >>> bound_to(Placement(cpus="0-3", gpu=1, nic="mlx5_0:1"))  # doctest: +NORMALIZE_WHITESPACE
    {'COMMBENCH_CPUS': '0-3', 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID', 'CUDA_VISIBLE_DEVICES': '1',
     'UCX_NET_DEVICES': 'mlx5_0:1'}
    """
    variables = {process.CPUS: place.cpus} if place.cpus else {}
    if place.gpu is not None:
        # The order in which nvidia-smi counts them; CUDA's own begins with the fastest.
        variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(place.gpu)}
    if place.nic:
        variables["UCX_NET_DEVICES"] = place.nic
    return variables


class Launcher(ABC):
    """A way to start a cluster."""

    name: ClassVar[str]
    """The entry point's name."""
    binds: ClassVar[bool] = False
    """Whether it binds the workers as ``ClusterSpec.placement`` says."""

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

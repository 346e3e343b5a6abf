"""What a backend must say of itself: one way for Dask's processes to exchange messages.

A backend does not move a byte. It names the Dask protocol and the settings that make Dask use
it, tells whether this machine can, and reads from a live connection which transport carries it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.errors import LaunchError

if TYPE_CHECKING:
    from commbench.backends.endpoints import Endpoints, Tool
    from commbench.model import Launch, Record


@dataclass(frozen=True)
class Unavailability:
    """Why a backend can't be used here, or ``what`` is named, and what would change that."""

    reason: str
    remedy: str
    what: str = ""


@dataclass(frozen=True)
class Transport:
    """What carries a connection's bulk data, for example ``tcp/lo``, and how that is known."""

    name: str
    evidence: str


STAGED = ", staged"
"""What ends the name of a transport that GPU memory reaches by way of host memory."""


class Backend(ABC):
    """A communication backend of Dask, under the name that users give it.

    Parameters
    ----------
    options
        What follows the colon of the name, split at ``+``: ``("tcp", "shm")`` for
        ``ucx:tcp+shm``.

    Raises
    ------
    UsageError
        Where the backend does not know one of the options.
    """

    head: ClassVar[str]
    """The name before the colon: the entry point's name."""
    protocol: ClassVar[str]
    """The scheme of the addresses, as in ``tcp://``."""
    variables: ClassVar[tuple[str, ...]] = ()
    """What the names of the environment variables begin with that its libraries read.

    They go along to processes on other hosts, and so does what ``environment`` returns.
    """
    in_mpi_ranks: ClassVar[bool] = True
    """Whether it goes with the libraries that MPI brings into each of its processes."""
    before_cuda: ClassVar[str] = ""
    """What a process that uses GPUs calls before it uses CUDA, as ``module:function``."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        self.options = options

    @property
    def name(self) -> str:
        """The name that users give, for example ``ucx:shm``."""
        return f"{self.head}:{'+'.join(self.options)}" if self.options else self.head

    @abstractmethod
    def unavailable(self, device: str) -> Unavailability | None:
        """Return why this machine can't run the backend, or None where it can.

        It must not import the libraries that it asks about: two MPI or UCX stacks can't share a
        process, and whoever asks may go on to start another backend.
        """

    @abstractmethod
    def environment(self, device: str, scratch: Path) -> dict[str, str]:
        """Return the environment variables of every process of the cluster.

        `scratch` is a folder of the launch's own, removed after it.
        """

    def unavailable_layer(self, layer: str, mode: str) -> Unavailability | None:
        """Return why a layer below Dask can't be measured here, or None where it can.

        Like `unavailable`, it must not import the libraries that it asks about.

        Parameters
        ----------
        layer
            ``coroutine`` or ``raw``.
        mode
            That of pingpong, for example ``latency``.
        """
        del mode
        return Unavailability(
            f"the backend {self.head} has no layer {layer}", f"leave {layer} out of --layers"
        )

    def endpoints(self, layer: str) -> Endpoints | Tool:
        """Return what exchanges messages at ``coroutine`` or ``raw``, where it is not lacking.

        A `Tool` can be that of ``raw`` alone, and in no mode of several pairs.
        """
        raise LaunchError(f"the backend {self.head} has no endpoints of the layer {layer}")

    def dask_config(self) -> Mapping[str, Any]:
        """Return the Dask configuration of every process of the cluster."""
        return {}

    @staticmethod
    @abstractmethod
    def transport(comm: Any) -> Transport:
        """Return what carries the live connection `comm`; runs inside a worker."""

    def simulate(self, launch: Launch) -> Iterable[Record] | None:
        """Return made-up records of a launch, for tests; None, the default, to measure it."""
        del launch
        return None

    def contradiction(self, transport: str) -> str:
        """Return how `transport` contradicts the backend's name, or nothing where it does not."""
        del transport
        return ""

    @abstractmethod
    def settings(self) -> str:
        """Return in one line what the backend sets, for people who want to do it by hand."""

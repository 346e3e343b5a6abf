"""The base class of backends: descriptions of Dask's communication protocols.

A backend transfers nothing. It names the Dask protocol and the settings that make Dask use it,
reports whether this machine supports it, and determines the transport of a live connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commbench.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from commbench.backends.endpoints import Endpoints, Tool
    from commbench.model import Launch
    from commbench.model.observed import Record


@dataclass(frozen=True)
class Unavailability:
    """The reason why a backend, or `what`, can't be used here, and a remedy."""

    reason: str
    remedy: str
    what: str = ""


@dataclass(frozen=True)
class Transport:
    """The transport of a connection's bulk data, for example ``tcp/lo``, and the evidence."""

    name: str
    evidence: str


STAGED = ", staged"
"""The suffix of a transport's name if GPU memory is copied through host memory."""


class Backend(ABC):
    """A communication backend of Dask.

    Parameters
    ----------
    options
        The part of the name after the colon, split at ``+``: ``("tcp", "shm")`` for
        ``ucx:tcp+shm``.

    Raises
    ------
    UsageError
        If an option is unknown, or there are options and `takes_options` is false.
    """

    head: ClassVar[str]
    """The name before the colon: the entry point's name."""
    protocol: ClassVar[str]
    """The scheme of the addresses, as in ``tcp://``."""
    variables: ClassVar[tuple[str, ...]] = ()
    """The prefixes of the environment variables that its libraries read.

    These variables, and those of ``environment``, are forwarded to processes on other hosts.
    Those of this process are recorded, and of clusters that commbench did not start, the workers'.
    """
    config_keys: ClassVar[tuple[str, ...]] = ()
    """The keys of Dask's configuration to record of such workers; none with secrets below them."""
    packages: ClassVar[tuple[str, ...]] = ()
    """The distributions whose versions are recorded, whether installed or not."""
    nic_variable: ClassVar[str] = ""
    """The variable that names the network interfaces to use, if there is one."""
    in_mpi_ranks: ClassVar[bool] = True
    """Whether it is compatible with the libraries that MPI loads into each rank."""
    launch_factor: ClassVar[float] = 1.0
    """The duration of a launch over that of tcp, roughly, for estimates of a run's duration."""
    takes_options: ClassVar[bool] = False
    """Whether names may have options; the class must refuse unknown ones."""
    choices: ClassVar[tuple[str, ...]] = ()
    """The options that ``list`` and ``doctor`` show, any of which can be combined."""
    without_options: ClassVar[str] = ""
    """The alternative to options, as the end of a sentence."""
    tuned: ClassVar[frozenset[str]] = frozenset()
    """The options that its documentation recommends; none if they are the default."""
    twin: str = ""
    """The text that distinguishes this backend from another one with the same settings."""
    is_fast: ClassVar[bool] = False
    """Whether it can move bytes by shared memory or a network's hardware, faster than sockets."""
    plain: ClassVar[str] = ""
    """The backend that does the same without encryption, if this one encrypts."""
    has_secrets: ClassVar[bool] = False
    """Whether its settings are secret, so that launchers on several hosts refuse it."""
    key_variable: ClassVar[str] = ""
    """A variable with a key that all processes need; commands and job scripts leave it out."""
    before_cuda: ClassVar[str] = ""
    """A function for processes with GPUs to call before CUDA is used, as ``module:function``."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        if options and not self.takes_options:
            raise UsageError(
                f"backend {self.head} takes no options, got {'+'.join(options)!r}; "
                f"write {self.head}{self.without_options}"
            )
        self.options = options

    @property
    def name(self) -> str:
        """The name that users give, for example ``ucx:shm``."""
        options, twin = ":" * bool(self.options) + "+".join(self.options), "@" * bool(self.twin)
        return f"{self.head}{options}{twin}{self.twin}"

    @property
    def tuning(self) -> str:
        """``default`` without options, ``tuned`` with the recommended ones, else empty."""
        if not self.options:
            return "default"
        return "tuned" if self.tuned == {*self.options} else ""

    @property
    def best(self) -> str:
        """The name with the options that its documentation recommends."""
        if not self.tuned:
            return self.head
        return type(self)(tuple(sorted(self.tuned))).name

    @abstractmethod
    def unavailable(self, device: str) -> Unavailability | None:
        """Return why this machine can't run the backend, or None if it can.

        This must not import the backend's libraries, because two MPI or UCX stacks can't share a
        process, and the caller may start another backend.
        """

    @abstractmethod
    def environment(self, device: str, scratch: Path) -> dict[str, str]:
        """Return the environment variables of every process of the cluster.

        `scratch` is the launch's temporary folder.
        """

    def unavailable_layer(self, layer: str, mode: str) -> Unavailability | None:
        """Return why a layer below Dask can't be measured here, or None if it can.

        Like `unavailable`, this must not import the backend's libraries.

        Parameters
        ----------
        layer
            ``coroutine`` or ``raw``.
        mode
            A mode of pingpong, for example ``latency``.
        """
        del mode
        return Unavailability(
            f"the backend {self.head} has no layer {layer}", f"leave {layer} out of --layers"
        )

    def endpoints(self, layer: str) -> Endpoints | Tool:
        """Return the endpoints, or a `Tool`, of the layer ``coroutine`` or ``raw``.

        A `Tool` can only be used for ``raw``, and in no mode with several pairs.
        """
        raise LaunchError(f"the backend {self.head} has no endpoints of the layer {layer}")

    def dask_config(self) -> Mapping[str, Any]:
        """Return the Dask configuration of every process of the cluster.

        This is called only where the backend is available.
        """
        return {}

    @staticmethod
    @abstractmethod
    def transport(comm: Any) -> Transport:
        """Return the transport of the live connection `comm`; runs in a worker."""

    def simulate(self, launch: Launch) -> Iterable[Record] | None:
        """Return synthetic records of a launch, for tests; None, the default, to measure it."""
        del launch
        return None

    def contradiction(self, transport: str) -> str:
        """Return how `transport` contradicts the backend's name, or "" if it does not."""
        del transport
        return ""

    def polling(self, variables: Mapping[str, str]) -> str:
        """Return the setting with which idle event loops poll, or "" if there is none.

        `variables` are the environment variables of its processes.
        """
        del variables
        return ""

    @classmethod
    def advice(cls, machine: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Yield severities (``warning``, ``note``) and texts on what disturbs it on a machine.

        `machine` is the result of ``commbench.machine.environment.collect``.
        """
        del machine
        return ()

    @abstractmethod
    def settings(self, device: str) -> str:
        """Return in one line the settings on a device, for users who want to apply them."""

"""What a workload must say of itself.

A workload owns its parameters, its data, its bytes formula, the one call that is timed and the
check of its result. It never times anything itself: ``commbench.harness.measure`` does, in the same
way for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a workload may know of the launch that it runs in."""

    n_workers: int
    device: str
    seed: int


class Workload(ABC):
    """The base of all workloads.

    Parameters
    ----------
    params
        An instance of the class's ``Params``.
    context
        The launch that the workload runs in.

    Raises
    ------
    UsageError
        Where the parameters make no sense together.
    """

    name: ClassVar[str]
    """The entry point's name."""
    summary: ClassVar[str]
    """One line for ``commbench list``."""
    defaults: ClassVar[Mapping[str, int]] = {}
    """Launches, iterations and warm-ups where they differ from those of ``Case``."""
    gpu_packages: ClassVar[tuple[str, ...]] = ()
    """What it imports for data in GPU memory, besides CuPy."""
    Params: ClassVar[type[Any]]
    """A frozen dataclass; its fields, with their ``help`` in the metadata, become options."""

    def __init__(self, params: Any, context: Context) -> None:
        self.params = params
        self.context = context


class ClusterWorkload(Workload):
    """A workload that computes something on a Dask cluster.

    For each iteration the harness calls ``build`` (timed apart), persists what it returns and
    waits for it (the sample), then calls ``verify``.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that every process of the cluster imports before it communicates."""

    @property
    @abstractmethod
    def payload_bytes(self) -> int:
        """The bytes that a sample's throughput is counted in; the formula is documented."""

    @abstractmethod
    def prepare(self, client: Any) -> None:
        """Create the seeded input on the workers and wait until it is in memory there."""

    @abstractmethod
    def build(self) -> Any:
        """Return the lazy Dask collection, or tuple of collections, that the sample computes."""

    @abstractmethod
    def verify(self, client: Any, result: Any) -> None:
        """Compare the persisted `result` with what the data imply.

        Raises
        ------
        VerificationError
            With what was expected and what was found.
        """


MODES: Mapping[str, tuple[str, ...]] = {
    "latency": (), "loaded-latency": ("load_size",), "bandwidth": ("window",),
    "bidirectional": ("window",), "message-rate": ("window",), "multi-pair": ("pairs", "window"),
}  # fmt: skip
"""How messages can follow each other in a sample, and the parameters that reports read of it."""
Mode: Any = Literal[tuple(MODES)]
"""The type of a parameter that is one of `MODES`."""


class PairWorkload(Workload):
    """A workload that exchanges messages between two processes over one connection.

    For each message size the harness times ``exchange`` message by message and calls ``verify``
    on every reply, outside the timing. Sizes, mode and window are the parameters of these names,
    unless a workload says otherwise. One whose mode is not latency has that as a parameter in any
    case, with those of `MODES`: reports read them.
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """The message sizes in bytes, in the order in which they are measured."""
        sizes: tuple[int, ...] = self.params.sizes
        return sizes

    @property
    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """The layers of the software to measure, from the wire up: of those in ``model.LAYERS``."""

    @property
    def mode(self) -> str:
        """How messages follow each other in a sample: one of `MODES`."""
        return str(self.params.mode)

    @property
    def one_by_one(self) -> bool:
        """Whether each message waits for the reply to the one before, as for latency."""
        return "window" not in MODES[self.mode]

    @property
    def window(self) -> int:
        """How many messages follow each other before an acknowledgement, but for latency."""
        return int(self.params.window)

    @property
    def seconds_per_size(self) -> float:
        """For how long a size is measured at most, if ten samples were taken by then."""
        return 1.0

    @abstractmethod
    def n_samples(self, size: int, iterations: int) -> int:
        """Return how many samples of `size` bytes to take where the user said `iterations`."""

    @abstractmethod
    def payload(self, size: int) -> Any:
        """Return an incompressible, seeded array of `size` bytes."""

    @abstractmethod
    def stamp(self, payload: Any, number: int) -> None:
        """Mark `payload` as the message `number`, so that a stale reply can't pass for it."""

    @abstractmethod
    async def exchange(self, comm: Any, payload: Any) -> Any:
        """Send `payload` to the peer over `comm` and return its reply: timed at layer comm."""

    @abstractmethod
    def verify(self, payload: Any, reply: Any, *, whole: bool) -> None:
        """Compare the reply with what was sent: its stamp, or every byte where `whole`.

        Raises
        ------
        VerificationError
            Where they differ.
        """


class FetchWorkload(Workload):
    """A workload in which every worker fetches blocks of data from every other worker.

    For each size the harness times the fetches of every ordered pair, one after another and then
    all at once, in the way in which workers fetch what a task needs. Every fetch is a real one,
    since nothing of it is kept, and ``verify`` sees all of it, outside the timing.
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the blocks in bytes, in the order in which they are fetched."""
        sizes: tuple[int, ...] = self.params.sizes
        return sizes

    @abstractmethod
    def block(self, owner: int, size: int) -> Any:
        """Return the incompressible, seeded block of that size of worker number `owner`."""

    @abstractmethod
    def verify(self, owner: int, size: int, fetched: Any) -> None:
        """Compare every byte of what was fetched with what ``block`` gives.

        Raises
        ------
        VerificationError
            Where they differ.
        """

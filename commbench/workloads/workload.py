"""Base classes of workloads.

A workload defines its parameters, its data, the formula of its bytes, the one call that is timed
and the verification of its result. It times nothing: ``commbench.harness.measure`` times all
workloads in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from commbench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Context:
    """The properties of a launch that a workload may depend on."""

    n_workers: int
    device: str
    seed: int
    threads_per_worker: int = 1
    memory_limit_bytes: int = 0
    """The memory limit of each worker; 0 if it has none, or a share of its host's memory."""


_GPU_SPEEDUP = 20.0
"""How many times faster than a processor a GPU works: about that of an H200 for a merge."""


def option(
    default: Any,
    help: str,  # noqa: A002
    *,
    unit: str = "",
    least: float | None = None,
    added: str = "",
) -> Any:
    """Return the field of a ``Params`` that becomes an option.

    Parameters
    ----------
    help
        What ``--help`` says.
    unit
        ``"bytes"``, ``"seconds"`` or ``"share"``, for values such as 1MiB, 20ms or 5%.
    least
        The least value, of a tuple that of each item.
    added
        The version that has added it, so that cases with its default keep their id.
    """
    metadata = {"help": help, "unit": unit, "least": least, "added": added}
    return field(
        default=default, metadata={k: v for k, v in metadata.items() if v not in ("", None)}
    )


@dataclass(frozen=True, kw_only=True)
class NoParams:
    """The parameters of a workload that has none."""


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
        If the parameters are invalid.
    """

    name: ClassVar[str]
    """The entry point's name."""
    summary: ClassVar[str]
    """One line for ``commbench list``."""
    stresses: ClassVar[str] = "other"
    """The heading of ``commbench list`` under which it is: ``"messages"``, ``"all pairs"``,
    ``"arrays"``, ``"frames"``, ``"one to many"``, ``"scheduler"``, ``"memory"`` or another."""
    defaults: ClassVar[Mapping[str, int]] = {}
    """Defaults of launches, iterations, warm-ups and ``timeout_s`` that differ from ``Case``."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """The parameters of a small problem, for ``--quick``."""
    gpu_packages: ClassVar[tuple[str, ...]] = ()
    """The packages besides CuPy that are imported for data in GPU memory."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that every process of a cluster imports before it communicates."""
    has_cluster: ClassVar[bool] = True
    """Whether it runs on a cluster, and not between two processes."""
    on_gpu: ClassVar[bool] = True
    """Whether its data can be in GPU memory."""
    Params: ClassVar[type[Any]] = NoParams
    """A frozen dataclass; `option` makes its fields."""
    task_placement: ClassVar[str] = "pinned"
    """The default of the option of this name."""
    fixed_config: ClassVar[Mapping[str, str]] = {}
    """Keys of Dask's configuration without an effect, with the parameter that decides instead."""
    scales: bool = True
    """Whether more workers share its work, so that they have an efficiency."""
    tool: ClassVar[str] = ""
    """The ``tool`` of its samples, if results can't be verified."""

    def __init__(self, params: Any, context: Context) -> None:
        self.params = params
        self.context = context
        for each in fields(params):
            given, least = getattr(params, each.name), each.metadata.get("least")
            value = min(given, default=least) if isinstance(given, tuple) else given
            if least is not None and value < least:
                unit = " B" * (each.metadata.get("unit") == "bytes")
                raise UsageError(
                    f"{self.name}: {each.name} is {value}{unit}; it must be at least {least}{unit}"
                )


class ClusterWorkload(Workload):
    """A workload that computes something on a Dask cluster.

    For each iteration the harness calls ``build`` (timed separately), ``compute`` with its return
    value, which persists it, and waits for the result (the sample), then calls ``verify``.
    """

    bytes_per_second: ClassVar[float] = 1e8
    """The payload over the seconds of an iteration, roughly."""
    has_estimate: ClassVar[bool] = True
    """Whether ``expected_seconds`` is near enough for a budget to choose launches."""

    def set_up(self) -> None:
        """Prepare this process, before it starts the cluster; by default, do nothing."""

    @property
    def payload_bytes(self) -> int:
        """The bytes of a sample's throughput; the formula should be documented.

        0, the default, if bytes mean nothing, which takes `operations`.
        """
        return 0

    @property
    def operations(self) -> tuple[int, str]:
        """The number of operations in a sample, and their plural, of which reports show the rate.

        The plural may be ``bytes``, for the payload. If there is a parameter ``task_s``, operations
        are tasks of this duration, and reports show their efficiency.
        """
        return 0, ""

    @property
    def expected_seconds(self) -> float:
        """The seconds of an iteration, roughly, to estimate how long a run takes."""
        faster = _GPU_SPEEDUP if self.context.device == "gpu" else 1.0
        return self.payload_bytes / self.bytes_per_second / faster

    def prepare(self, client: Any) -> None:
        """Create the seeded input on the workers and wait until it is in memory there.

        By default there is none.
        """

    @abstractmethod
    def build(self) -> Any:
        """Return the lazy Dask collection, or tuple of collections, that the sample computes."""

    def compute(self, client: Any, graph: Any) -> Any:
        """Start to compute the return value of ``build``, and return it with its futures."""
        return client.persist(graph)

    @abstractmethod
    def verify(self, client: Any, result: Any) -> None:
        """Compare the persisted `result` with the result that the input data imply.

        Raises
        ------
        VerificationError
            With the expected and the actual value.
        """


MODES: Mapping[str, tuple[str, ...]] = {
    "latency": (), "loaded-latency": ("load_size",), "bandwidth": ("window",),
    "bidirectional": ("window",), "message-rate": ("window",), "multi-pair": ("pairs", "window"),
}  # fmt: skip
"""The modes of message exchange, and the parameters that reports read for each."""
Mode: Any = Literal[tuple(MODES)]
"""The type of a parameter that is one of `MODES`."""


class SizedWorkload(Workload):
    """A workload that moves data of several sizes, which are the parameter `sizes`."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in bytes, in the order in which they are measured."""
        sizes: tuple[int, ...] = self.params.sizes
        return sizes

    def _validate_sizes(self) -> None:
        """Raise a UsageError if a size is missing, repeated or below 1."""
        if not self.sizes:
            raise UsageError(f"{self.name}: sizes is empty; give at least one, as in --sizes 16MiB")
        if len(set(self.sizes)) < len(self.sizes):
            raise UsageError(f"{self.name}: sizes names a size twice; --iterations repeats them")
        if min(self.sizes) < 1:
            raise UsageError(f"{self.name}: a size of {min(self.sizes)} B; it must be at least 1")


class PairWorkload(SizedWorkload):
    """A workload that exchanges messages between two processes over one connection.

    For each message size the harness times ``exchange`` message by message and calls ``verify``
    on every reply, outside the timing. Sizes, mode and window are the parameters of these names,
    unless a subclass overrides them. A workload with another mode than latency must have the
    parameters mode and those in `MODES`, because reports read them.
    """

    has_cluster = False

    @property
    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """The layers to measure, from the wire up; see ``model.LAYERS``."""

    @property
    def mode(self) -> str:
        """The mode of message exchange, one of `MODES`."""
        return str(self.params.mode)

    @property
    def window(self) -> int:
        """The number of messages before an acknowledgement; unused for latency."""
        return int(self.params.window)

    @property
    def seconds_per_size(self) -> float:
        """The time limit for a size, which applies after ten samples."""
        return 1.0

    @property
    def peer(self) -> str:
        """The host of the peer, over SSH, or a command that runs another one there; "": here."""
        return ""

    @abstractmethod
    def n_samples(self, size: int, iterations: int) -> int:
        """Return the number of samples of `size` bytes for the user's `iterations`."""

    @abstractmethod
    def payload(self, size: int) -> Any:
        """Return an incompressible, seeded array of `size` bytes."""

    @abstractmethod
    def stamp(self, payload: Any, number: int) -> None:
        """Write `number` into `payload`, so that a stale reply is detected."""

    @abstractmethod
    async def exchange(self, comm: Any, payload: Any) -> Any:
        """Send `payload` to the peer over `comm` and return its reply; timed at layer comm."""

    @abstractmethod
    def verify(self, payload: Any, reply: Any, *, whole: bool) -> None:
        """Compare the reply with the payload: its stamp, or every byte if `whole`.

        Raises
        ------
        VerificationError
            If they differ.
        """


class FetchWorkload(SizedWorkload):
    """A workload in which every worker fetches blocks of data from every other worker.

    For each size the harness times the fetches of every ordered pair, one after another and then
    all at once, in the way in which workers fetch the input of a task. Fetched blocks are not kept,
    so every fetch transfers data, and ``verify`` sees all of it, outside the timing.
    """

    in_rounds: ClassVar[bool] = False
    """Whether one worker of each host takes part, in rounds of pairs that share no host."""

    @abstractmethod
    def block(self, owner: int, size: int) -> Any:
        """Return the incompressible, seeded block of that size of worker number `owner`."""

    @abstractmethod
    def verify(self, owner: int, size: int, fetched: Any) -> None:
        """Compare every byte of a fetched block with the return value of ``block``.

        Raises
        ------
        VerificationError
            If they differ.
        """

"""The base of workloads on data frames, and exact sums of columns, which verify their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from commbench.errors import UsageError, VerificationError
from commbench.workloads.device import finished_blocks, persist_input
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import ClusterWorkload, Context

MODULUS = 2**64
SHUFFLE_HELP = (
    "how rows move in a shuffle: tasks, p2p (peer to peer), or dask: Dask's default, which is p2p, "
    "and tasks with cuDF"
)


def shuffle_method(chosen: str, device: str) -> str:
    """Return ``"tasks"`` or ``"p2p"``, which `chosen` is or ``"dask"`` means with the device.

    Raises
    ------
    UsageError
        For ``"p2p"`` with GPUs.
    """
    if (chosen, device) == ("p2p", "gpu"):
        raise UsageError(
            "Dask's P2P moves rows in host memory over every backend; use --shuffle tasks"
        )
    default = "p2p" if device == "cpu" else "tasks"
    return default if chosen == "dask" else chosen


class FrameWorkload(ClusterWorkload):
    """A workload on data frames, which are persisted before the clock starts."""

    stresses = "frames"
    preload = ("dask.dataframe",)
    gpu_packages = ("cudf", "dask_cudf")
    fixed_config: ClassVar[Mapping[str, str]] = {"dataframe.shuffle.method": "shuffle"}
    _expected: Mapping[str, int]

    def __init__(self, params: Any, context: Context) -> None:
        super().__init__(params, context)
        self.shuffle_method = shuffle_method(params.shuffle, context.device)

    def _create_frame(
        self, client: Any, partition: Callable[..., Any], summarize: Callable[..., Any], **data: Any
    ) -> list[Any]:
        """Create the frame on the workers, and return a summary of each of its partitions.

        `partition` and `summarize`, which runs on workers, are functions of the number of a
        partition, the device, the seed and `data`.
        """
        import dask.dataframe as dd

        numbers = range(self.params.partitions)
        data = {"device": self.context.device, "seed": self.context.seed, **data}
        lazy = dd.from_map(partition, numbers, **data, meta=partition(0, **data).iloc[:0])
        (self.frame,) = self._persist(client, lazy)
        summaries: list[Any] = client.gather(client.map(summarize, numbers, **data, pure=False))
        return summaries

    def _persist(self, client: Any, *frames: Any) -> list[Any]:
        self.frames = persist_input(client, *frames)
        rebalance(client, *self.frames)
        return self.frames

    def _verify_frame(
        self, client: Any, what: str, result: Any, n_partitions: int, dtypes: Mapping[str, str],
        sums: Callable[[Any, int], Mapping[str, int]],
    ) -> None:  # fmt: skip
        """Compare the columns of a frame, and the total of its `sums` with `_expected`.

        Then the input is distributed as before.

        Parameters
        ----------
        what
            The name of the frame, for the error.
        result, n_partitions
            The persisted frame, and how many partitions it should have.
        dtypes
            The name and the data type of each column.
        sums
            A function of a partition and its number, which workers call.
        """
        futures = list(finished_blocks(result, (n_partitions,)).values())
        for actual_dtypes in client.gather(client.map(_dtypes, futures, pure=False)):
            if actual_dtypes != dtypes:
                raise VerificationError(f"{what}: expected {dtypes}, found {actual_dtypes}")
        numbers = range(len(futures))
        actual = total(client.gather(client.map(sums, futures, numbers, pure=False)))
        wrong = [
            f"{name}: expected {value}, found {actual[name]}"
            for name, value in self._expected.items()
            if actual[name] != value
        ]
        if wrong:
            raise VerificationError(f"{what}, sums modulo 2**64: {'; '.join(wrong)}")
        rebalance(client, *self.frames)


def column_sums(columns: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of rows, the sum of each column, and that of each column times the first.

    The products depend on what a row has in both columns. All sums are exact modulo 2**64, which is
    how int64 overflows.

    Parameters
    ----------
    columns
        Arrays of 8-byte numbers; those of floats are summed as the integers of the same bits.
    """
    (first, keys), *others = (
        (name, column if column.dtype.kind == "i" else column.view("int64"))
        for name, column in columns.items()
    )
    sums = {"rows": len(keys), first: int(keys.sum()) % MODULUS}
    for name, column in others:
        sums[name] = int(column.sum()) % MODULUS
        sums[f"{first} * {name}"] = int((keys * column).sum()) % MODULUS
    return sums


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of all parts together, modulo 2**64."""
    together: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            together[name] = (together.get(name, 0) + value) % MODULUS
    return together


def _dtypes(frame: Any) -> dict[str, str]:
    return {str(name): str(dtype) for name, dtype in frame.dtypes.items()}

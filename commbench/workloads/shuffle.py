"""``shuffle``: the rows of a data frame go to the partitions that the hash of a column names.

As in dask-cuda's ``local_cudf_shuffle`` the frame has one column of uniform random numbers, by
which it is shuffled with its index; it had 100 partitions of 1 MiB there, too, and the method was
``tasks``. The frame is persisted before the clock starts.

Payload: the numbers and the index, ``2 * 8`` bytes for each of the
``partitions * (partition_size // 8)`` rows, as dask-cuda counts them. On W workers about
``1 - 1 / W`` of the rows cross the wire; with the method ``tasks`` and more than 32 partitions they
do so once in each of several stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from commbench.workloads.device import frame_library, uniform_block
from commbench.workloads.frames import (
    SHUFFLE_HELP,
    FrameWorkload,
    column_sums,
    total,
)
from commbench.workloads.workload import Context, option


class Shuffle(FrameWorkload):
    """A frame of random numbers, shuffled by them."""

    name = "shuffle"
    summary = "each row of a data frame moves to the partition of its hash"
    quick: ClassVar[Mapping[str, Any]] = {"partitions": 10}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        partitions: int = option(40, "partitions of the frame", least=1)
        partition_size: int = option(
            1 << 20, "size of a partition, without its index", unit="bytes", least=8
        )
        shuffle: Literal["dask", "tasks", "p2p"] = option("dask", SHUFFLE_HELP)

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        self._n_rows = params.partition_size // 8

    @property
    def payload_bytes(self) -> int:
        """8 bytes for each number, and 8 for its index."""
        return 16 * self._n_rows * int(self.params.partitions)

    def prepare(self, client: Any) -> None:
        """Create the frame, and the sums that its rows must have, on the workers."""
        sums = self._create_frame(client, _partition, _partition_sums, n_rows=self._n_rows)
        self._expected = {**total(sums), "misplaced rows": 0}

    def build(self) -> Any:
        """Return the lazy frame, shuffled into as many partitions."""
        method = self.shuffle_method
        return self.frame.shuffle("data", shuffle_method=method, force=True)

    def verify(self, client: Any, result: Any) -> None:
        """Compare exact sums of the rows with those of the input, and where each row is.

        The sums of number times index detect a number at another index.
        """
        n_partitions = int(self.params.partitions)
        sums = partial(_sums, n_partitions=n_partitions)
        dtypes = {"data": "float64"}
        self._verify_frame(client, "shuffled frame", result, n_partitions, dtypes, sums)


def _partition(number: int, device: str, seed: int, n_rows: int) -> Any:
    data = uniform_block(device, seed, (number * n_rows,), (n_rows,))
    return frame_library(device).DataFrame({"data": data})


def _partition_sums(number: int, **data: Any) -> dict[str, int]:
    return _row_sums(_partition(number, **data))


def _row_sums(frame: Any) -> dict[str, int]:
    return column_sums({"data": frame["data"].values, "index": frame.index.values})


def _sums(frame: Any, number: int, n_partitions: int) -> dict[str, int]:
    from dask.dataframe.shuffle import partitioning_index

    misplaced = partitioning_index(frame, n_partitions) != number
    return {**_row_sums(frame), "misplaced rows": int(misplaced.sum())}

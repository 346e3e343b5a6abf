"""``groupby``: maximum, count and mean of groups of rows, as in dask-cuda's benchmark.

As in ``local_cudf_groupby`` a row has a random key, an integer and a float, and the aggregation is
``{"int64": ["max", "count"], "float64": "mean"}``; there were 100 partitions of 1,000,000 rows, a
group for every hundredth row, and the frame was made within the time. Here it is persisted before.

Payload: the three columns without the index, ``3 * 8 * rows * partitions`` bytes, as dask-cuda
counts them. What crosses the wire are aggregates of partitions: with one output partition they are
merged in a tree, `split_every` at a time, and with several (`split_out`) they are shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal

from commbench.errors import UsageError
from commbench.workloads.device import frame_library, uniform_block
from commbench.workloads.frames import SHUFFLE_HELP, FrameWorkload, column_sums
from commbench.workloads.workload import Context, option

_DTYPES = {
    "('int64', 'max')": "int64", "('int64', 'count')": "int64", "('float64', 'mean')": "float64",
}  # fmt: skip


class GroupBy(FrameWorkload):
    """Three aggregates of each group of a frame.

    The data: keys are uniform in ``[0, unique_ratio * rows * partitions)``; in each partition the
    integers and the floats are permutations of the numbers from 0 to `rows`.
    """

    name = "groupby"
    summary = "aggregates of groups of rows, by a tree or by a shuffle"
    quick: ClassVar[Mapping[str, Any]] = {"rows": 50_000, "partitions": 20}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        rows: int = option(200_000, "rows of a partition", least=1)
        partitions: int = option(25, "partitions of the frame", least=1)
        unique_ratio: float = option(0.01, "groups over rows, above 0, at most 1")
        split_out: int = option(1, "partitions of the result; more than 1: a shuffle", least=1)
        split_every: int = option(
            8, "aggregates that a task of the tree merges, at least 2", least=2
        )
        shuffle: Literal["dask", "tasks", "p2p"] = option("dask", SHUFFLE_HELP)

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        if not 0 < params.unique_ratio <= 1:
            raise UsageError(
                f"unique_ratio is {params.unique_ratio}; it must be above 0 and at most 1"
            )

    @property
    def payload_bytes(self) -> int:
        """8 bytes for each key, integer and float."""
        return 3 * 8 * int(self.params.rows) * int(self.params.partitions)

    def prepare(self, client: Any) -> None:
        """Create the frame on the workers, and the sums that its aggregates must have."""
        params = self.params
        n_groups = max(1, int(params.unique_ratio * params.rows * params.partitions))
        parts = self._create_frame(
            client, _partition, _aggregated, rows=params.rows, n_groups=n_groups
        )
        concat = frame_library(self.context.device).concat
        groups = reduce(lambda one, other: _merged(concat([one, other])), parts)
        mean = groups["sum"] / groups["count"]
        self._expected = _sums(groups.index, groups["max"], groups["count"], mean)

    def build(self) -> Any:
        """Return the lazy frame of aggregates, which has the keys as its index."""
        params = self.params
        return self.frame.groupby("key", sort=False).agg(
            {"int64": ["max", "count"], "float64": "mean"},
            split_out=params.split_out,
            split_every=params.split_every,
            shuffle_method=self.shuffle_method,
        )

    def verify(self, client: Any, result: Any) -> None:
        """Compare the groups and exact sums of their aggregates with those of the data.

        Sums of whole numbers are exact as floats, and means therefore rounded once.
        """
        n_partitions = self.params.split_out
        self._verify_frame(client, "aggregates", result, n_partitions, _DTYPES, _result_sums)


def _partition(number: int, device: str, seed: int, rows: int, n_groups: int) -> Any:
    random = uniform_block(device, seed, (number * rows, 0), (rows, 3))
    columns = {
        "key": (random[:, 0] * n_groups).astype("int64"),
        "int64": random[:, 1].argsort(),
        "float64": random[:, 2].argsort().astype("float64"),
    }
    return frame_library(device).DataFrame(columns)


def _aggregated(number: int, **data: Any) -> Any:
    frame = _partition(number, **data)
    frame["count"] = 1
    return _merged(frame.rename(columns={"int64": "max", "float64": "sum"}).set_index("key"))


def _merged(frame: Any) -> Any:
    return frame.groupby(level=0).agg({"max": "max", "count": "sum", "sum": "sum"})


def _result_sums(frame: Any, number: int) -> dict[str, int]:
    del number
    return _sums(frame.index, *(column for _, column in frame.items()))


def _sums(key: Any, largest: Any, count: Any, mean: Any) -> dict[str, int]:
    columns = {"key": key, "max": largest, "count": count, "mean": mean}
    return column_sums({name: column.values for name, column in columns.items()})

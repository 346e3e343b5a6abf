"""``merge``: the inner join of two data frames on a key, as dask-cuda's benchmark does it.

As in ``local_cudf_merge`` both frames are persisted before the clock starts, the build frame after
it was indexed by its column "shuffle", and the join is ``build.merge(other, on=["key"],
how="inner")`` with a shuffle.

With ``build_partitions=1`` the build frame is small, and Dask sends it to every worker instead of
moving the other one, as in ``test_join_big_small`` of coiled/benchmarks, whose small frame was a
tenth of the big one (here ``partitions=10``).

Payload: the rows times the item sizes of both frames' columns, without their indexes, which is
``rows * (partitions + build_partitions) * (2 * 8)`` bytes. Each row goes to the partition that the
hash of its key names: with one partition on each of W workers about ``1 - 1 / W`` of the rows cross
the wire, index included. Of a single build partition ``W - 1`` copies cross it. With a single
partition of both nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from commbench.errors import UsageError
from commbench.workloads.device import array_library, frame_library
from commbench.workloads.frames import (
    SHUFFLE_HELP,
    FrameWorkload,
    column_sums,
    total,
)
from commbench.workloads.workload import Context, option

_DTYPES = {"key": "int64", "payload_x": "int64", "payload_y": "int64"}


class Merge(FrameWorkload):
    """The inner join of the two frames of `JoinData` on their key."""

    name = "merge"
    summary = "inner join of two data frames, with dask-cuda's data"
    quick: ClassVar[Mapping[str, Any]] = {"rows": 100_000}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        rows: int = option(1_000_000, "rows of a chunk of either frame")
        partitions: int = option(0, "chunks of either frame; 0: one for each worker", least=0)
        build_partitions: int = option(
            0,
            "chunks of the build frame, at most as many as of the other; 0: as many; "
            "1: it is sent to all workers",
            added="0.1",
        )
        frac_match: float = option(0.3, "fraction of the keys that match, above 0, at most 1")
        shuffle: Literal["dask", "tasks", "p2p"] = option("dask", SHUFFLE_HELP)

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        partitions = params.partitions or context.n_workers
        if not 0 <= params.build_partitions <= partitions:
            raise UsageError(
                f"build_partitions is {params.build_partitions}; it must be from 1 to partitions "
                f"({partitions}), or 0 for as many"
            )
        if params.rows < partitions:
            raise UsageError(
                f"rows is {params.rows}; it must be at least the number of partitions "
                f"({partitions}), so that every chunk has a row for each"
            )
        if not 0 < params.frac_match <= 1:
            raise UsageError(f"frac_match is {params.frac_match}; it must be above 0 and at most 1")
        self.data = JoinData(
            device=context.device,
            seed=context.seed,
            rows=params.rows,
            partitions=partitions,
            build_partitions=params.build_partitions or partitions,
            frac_match=params.frac_match,
        )

    @property
    def payload_bytes(self) -> int:
        """8 bytes for each key and payload of both frames."""
        return self.data.nbytes

    def prepare(self, client: Any) -> None:
        """Create both frames, and the sums that their join must have, on the workers."""
        import dask.dataframe as dd

        data, chunks = self.data, list(range(self.data.partitions))
        build_chunks = list(range(data.build_partitions))
        smallest = replace(data, rows=1, partitions=1, build_partitions=1)
        build = dd.from_map(data.build, build_chunks, meta=smallest.build(0).iloc[:0])
        other = dd.from_map(data.other, chunks, meta=smallest.other(0).iloc[:0])
        divisions = (*build_chunks, data.build_partitions)
        build = build.set_index("shuffle", divisions=divisions, shuffle_method="tasks")
        self._persist(client, build, other)
        self._expected = total(client.gather(client.map(data.joined_sums, chunks, pure=False)))

    def build(self) -> Any:
        """Return the lazy join, with the columns key, payload_x and payload_y.

        The expression has the shuffle and excludes a broadcast join, so that Dask's configuration
        can't choose another method when it optimises.
        """
        build, other = self.frames
        method = self.shuffle_method
        how = {"how": "inner", "shuffle_method": method, "broadcast": False}
        return build.merge(other, on=["key"], **how)

    def verify(self, client: Any, result: Any) -> None:
        """Compare the rows and the exact sums of the columns with what the data imply.

        The sums of key times payload detect a payload in another key's row. Workers sum their
        partitions, and the expected sums are computed without a join.
        """
        n_partitions = self.data.partitions
        self._verify_frame(client, "joined frame", result, n_partitions, _DTYPES, _sums)


def _sums(frame: Any, number: int) -> dict[str, int]:
    del number
    return column_sums(frame)


_BUILD_PAYLOAD, _BUILD_SHUFFLE, _OTHER_STRETCH, _OTHER_KEY, _OTHER_PAYLOAD = range(5)


@dataclass(frozen=True, kw_only=True)
class JoinData:
    """The definition of both frames; any worker can make any part of them."""

    device: str
    seed: int
    """The seed of all permutations; each has a separate generator."""
    rows: int
    """Rows of a chunk, at least `partitions`."""
    partitions: int
    """Chunks of the other frame."""
    build_partitions: int
    """Chunks of the build frame, at most `partitions`."""
    frac_match: float
    """The fraction of each stretch that matches."""

    @property
    def nbytes(self) -> int:
        """8 bytes for each key and payload of both frames; dask-cuda counts no index."""
        return self.rows * (self.partitions + self.build_partitions) * (2 * 8)

    def build(self, chunk: int) -> Any:
        """Return a chunk of the build frame: `rows` of key, shuffle and payload."""
        partitions = array_library(self.device).arange(self.build_partitions, dtype="int64")
        shuffle = partitions.repeat(math.ceil(self.rows / self.build_partitions))
        return frame_library(self.device).DataFrame(
            {
                "key": self._numbers(self.rows * chunk, self.rows),
                "shuffle": self._permute(shuffle, _BUILD_SHUFFLE, chunk)[: self.rows],
                "payload": self._build_payload(chunk),
            }
        )

    def other(self, chunk: int) -> Any:
        """Return a chunk of the other frame: `rows` of key and payload."""
        n_unmatched = self.rows - self._n_chosen * self.build_partitions
        parts = [self._chosen_keys(build, chunk) for build in range(self.build_partitions)]
        parts.append(self._numbers(self.rows * (self.build_partitions + chunk), n_unmatched))
        keys = array_library(self.device).concatenate(parts)
        payload = self._numbers(0, self.rows)
        return frame_library(self.device).DataFrame(
            {
                "key": self._permute(keys, _OTHER_KEY, chunk),
                "payload": self._permute(payload, _OTHER_PAYLOAD, chunk),
            }
        )

    def joined_sums(self, chunk: int) -> dict[str, int]:
        """Return the contribution of one chunk of both to the `column_sums` of the joined frame.

        No key occurs twice in a frame, so the joined rows with keys of this build chunk are those
        with the keys that the chunks of the other frame chose from it.
        """
        other = self.other(chunk)
        other = other[other["key"] < self.rows * self.build_partitions]
        sums = column_sums({"key": other["key"], "payload_y": other["payload"]})
        if chunk < self.build_partitions:
            taken = [self._chosen_keys(chunk, other) for other in range(self.partitions)]
            key = array_library(self.device).concatenate(taken)
            payload_x = self._build_payload(chunk)[key - self.rows * chunk]
            build = column_sums({"key": key, "payload_x": payload_x})
            sums |= {name: build[name] for name in build.keys() - sums.keys()}
        return sums

    @property
    def _n_chosen(self) -> int:
        return max(int(self.rows // self.partitions * self.frac_match), 1)

    def _chosen_keys(self, build: int, other: int) -> Any:
        stretch = self.rows // self.partitions
        keys = self._numbers(self.rows * build + stretch * other, stretch)
        return self._permute(keys, _OTHER_STRETCH, other, build)[: self._n_chosen]

    def _build_payload(self, chunk: int) -> Any:
        return self._permute(self._numbers(0, self.rows), _BUILD_PAYLOAD, chunk)

    def _numbers(self, start: int, count: int) -> Any:
        return array_library(self.device).arange(start, start + count, dtype="int64")

    def _permute(self, array: Any, *what: int) -> Any:
        # CuPy's Generator has no permutation.
        rng = array_library(self.device).random.default_rng((self.seed, *what))
        return array[rng.random(array.size).argsort()]

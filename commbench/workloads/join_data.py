"""The two data frames that the workload ``merge`` joins: those of dask-cuda's benchmark.

That is ``dask_cuda/benchmarks/local_cudf_merge.py`` (its defaults: 1,000,000 rows per chunk, one
chunk per worker, a fraction of 0.3 that matches), with two differences: every chunk has a
generator of its own instead of one seed for all, and both frames have the same number of chunks.
With L rows per chunk and P chunks, all columns int64:

build
    Chunk j holds the keys ``arange(L * j, L * (j + 1))``, as payload a permutation of
    ``arange(L)``, and as "shuffle" each of the P partitions equally often, permuted. The frame
    is indexed by "shuffle", which spreads every chunk's keys over all partitions.
other
    Chunk j takes from every build chunk i the stretch of L // P keys from ``L * i + L // P * j``
    up: ``int(L // P * frac_match)`` of them but at least one, chosen at random. Keys that match
    nothing, each its own from ``L * P + L * j`` up, fill the chunk to L rows; then it is
    permuted. Its payload is again a permutation of ``arange(L)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from commbench.workloads.device import array_library, frame_library

_BUILD_PAYLOAD, _BUILD_SHUFFLE, _OTHER_STRETCH, _OTHER_KEY, _OTHER_PAYLOAD = range(5)
MODULUS = 2**64


@dataclass(frozen=True, kw_only=True)
class JoinData:
    """The definition of both frames, from which any worker can make any part of them.

    Parameters
    ----------
    device
        ``"cpu"`` for pandas or ``"gpu"`` for cuDF.
    seed
        Seeds the generator of every permutation, together with what it permutes.
    rows
        Rows of a chunk, at least `partitions`.
    partitions
        Chunks of either frame.
    frac_match
        The fraction of each stretch that matches.
    """

    device: str
    seed: int
    rows: int
    partitions: int
    frac_match: float

    @property
    def nbytes(self) -> int:
        """8 bytes for each key and payload of both frames; dask-cuda counts no index."""
        return 2 * (self.rows * self.partitions) * (2 * 8)

    def build(self, chunk: int) -> Any:
        """Return a chunk of the build frame: `rows` of key, shuffle and payload."""
        partitions = array_library(self.device).arange(self.partitions, dtype="int64")
        shuffle = partitions.repeat(math.ceil(self.rows / self.partitions))
        return frame_library(self.device).DataFrame(
            {
                "key": self._numbers(self.rows * chunk, self.rows),
                "shuffle": self._permute(shuffle, _BUILD_SHUFFLE, chunk)[: self.rows],
                "payload": self._build_payload(chunk),
            }
        )

    def other(self, chunk: int) -> Any:
        """Return a chunk of the other frame: `rows` of key and payload."""
        n_unmatched = self.rows - self._n_chosen * self.partitions
        parts = [self._chosen_keys(build, chunk) for build in range(self.partitions)]
        parts.append(self._numbers(self.rows * (self.partitions + chunk), n_unmatched))
        keys = array_library(self.device).concatenate(parts)
        payload = self._numbers(0, self.rows)
        return frame_library(self.device).DataFrame(
            {
                "key": self._permute(keys, _OTHER_KEY, chunk),
                "payload": self._permute(payload, _OTHER_PAYLOAD, chunk),
            }
        )

    def joined_sums(self, chunk: int) -> dict[str, int]:
        """Return what `chunk` of either frame contributes to `column_sums` of the joined frame.

        No key occurs twice in a frame: the joined rows with keys of this build chunk are those
        that the other frame's chunks took from it.
        """
        taken = [self._chosen_keys(chunk, other) for other in range(self.partitions)]
        key = array_library(self.device).concatenate(taken)
        payload_x = self._build_payload(chunk)[key - self.rows * chunk]
        other = self.other(chunk)
        other = other[other["key"] < self.rows * self.partitions]
        return {
            **column_sums({"key": other["key"], "payload_y": other["payload"]}),
            **column_sums({"key": key, "payload_x": payload_x}),
        }

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


def column_sums(columns: Any) -> dict[str, int]:
    """Return the length and the sums of int64 columns, and of each column times the key.

    The products tell which payload stood beside which key. All are exact modulo 2**64, which is
    how int64 overflows.
    """
    key = columns["key"]
    sums = {"rows": len(key)}
    for name in columns:
        sums[name] = int(columns[name].sum()) % MODULUS
        if name != "key":
            sums[f"key * {name}"] = int((key * columns[name]).sum()) % MODULUS
    return sums

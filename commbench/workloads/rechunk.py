"""``rechunk``: an array gets other chunks, in one of four patterns of coiled/benchmarks.

The patterns are those of its ``test_rechunk.py``, where arrays took a tenth of a cluster's memory
or more, chunks 8 or 128 MiB, and the result was summed; here it is kept, and the array is persisted
before the clock starts.

- ``tiles-to-rows``: square tiles become bands of columns; a band needs the tiles in its columns.
- ``swap-axes``: bands of columns become bands of rows; each chunk needs a part of every other.
- ``adjacent-groups``: in three dimensions, groups of neighbouring chunks exchange parts.
- ``heal-oversplit``: chunks of 17/16 of the size become chunks of whole ones, up to 15 times as
  large, by tasks with either method. Few workers move hardly anything.

With the method ``dask`` Dask chooses tasks where their graph is small: at the default size for all
patterns but ``swap-axes``.

Payload: ``x.nbytes``, 8 bytes for each number. On W workers about ``1 - 1 / W`` of it crosses the
wire with the first two patterns. With the others tasks move what a chunk needs of other workers'
chunks; p2p moves more, because it spreads chunks over all workers, also those that could stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from commbench.errors import UsageError
from commbench.workloads.arrays import ArrayWorkload
from commbench.workloads.device import uniform_block, verify_blocks
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import Context, option

_PATTERNS: Mapping[str, tuple[tuple[Any, ...], tuple[Any, ...], float, float]] = {
    "tiles-to-rows": (("auto", "auto"), (-1, "auto"), 1, 1),
    "swap-axes": ((-1, "auto"), ("auto", -1), 1, 1),
    "adjacent-groups": (("auto", 2, 5_000), ("auto", 5, 10_000), 1, 1),
    "heal-oversplit": (("auto", "auto"), ("auto", "auto"), 17 / 16, 16),
}
"""Chunks before and after, and how much larger they are than the parameter."""
_PLANE = (10, 10_000)


class Rechunk(ArrayWorkload):
    """x in other chunks."""

    name = "rechunk"
    summary = "an array gets other chunks, in one of four patterns"
    fixed_config: ClassVar[Mapping[str, str]] = {
        "array.rechunk.method": "method", "array.chunk-size": "chunk_size",
    }  # fmt: skip
    quick: ClassVar[Mapping[str, Any]] = {"size": 1 << 25, "chunk_size": 1 << 21}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        pattern: Literal[tuple(_PATTERNS)] = option(  # type: ignore[valid-type]
            "swap-axes", "which chunks become which"
        )
        size: int = option(1 << 28, "size of x, at most", unit="bytes")
        chunk_size: int = option(1 << 23, "size of a chunk, about", unit="bytes", least=8)
        method: Literal["dask", "tasks", "p2p"] = option(
            "dask",
            "how blocks move: tasks, p2p (peer to peer), or dask: as Dask chooses by the size of "
            "the graph, and tasks on GPUs",
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        if (params.method, context.device) == ("p2p", "gpu"):
            raise UsageError("rechunk: Dask's P2P takes arrays in host memory; use --method tasks")
        default = "tasks" if context.device == "gpu" else None
        self._method = default if params.method == "dask" else params.method
        self.shape = (math.isqrt(max(0, params.size) // 8),) * 2
        if params.pattern == "adjacent-groups":
            self.shape = (params.size // (8 * math.prod(_PLANE)), *_PLANE)
        least = 8 * math.prod((1, *self.shape[1:]))
        if params.size < (least or 8):
            raise UsageError(
                f"rechunk: size is {params.size} B; it must be at least {least or 8} B"
            )
        before, after, factor, factor_after = _PATTERNS[params.pattern]
        self.chunks = self._chunks(before, factor)
        # As Dask does, which combines whole chunks.
        self._after = self._chunks(after, factor_after, self.chunks)
        if self.chunks == self._after:
            raise UsageError(
                f"rechunk: an array of {self.payload_bytes} B has the same chunks before and "
                "after; make it larger, or the chunks smaller"
            )

    def _chunks(
        self, chunks: tuple[Any, ...], factor: float, before: Any = None
    ) -> tuple[tuple[int, ...], ...]:
        from dask.array.core import normalize_chunks

        limit = int(factor * self.params.chunk_size)
        normal: tuple[tuple[int, ...], ...] = normalize_chunks(
            chunks, self.shape, limit=limit, dtype="float64", previous_chunks=before
        )
        return normal

    def build(self) -> Any:
        """Return the lazy array of other chunks.

        Chunks in between are not larger than those before and after, as in coiled/benchmarks, where
        Dask's configuration has the size of chunks.
        """
        import dask

        limit = self.params.chunk_size
        # Without a method here and in the configuration, Dask chooses by its rule.
        with dask.config.set({"array.rechunk.method": None}):
            return self.x.rechunk(self._after, block_size_limit=limit, method=self._method)

    def verify(self, client: Any, result: Any) -> None:
        """Compare every number with that of x, which workers make again."""
        expected = partial(uniform_block, self.context.device, self.context.seed)
        verify_blocks(client, "rechunked x", result, self._after, expected)
        rebalance(client, self.x)

"""``map-overlap``: a mean filter, for which every chunk needs the edges of its neighbours.

As in dask-cuda's ``local_cupy_map_overlap``: x, uniform in [0, 1) and persisted before, is
convolved with ``(2 * kernel_size + 1)**2`` equal numbers. There x was 10,000 x 10,000 in chunks of
128 MiB (4,096 x 4,096), and the kernel size 1.

Payload: ``x.nbytes = 8 * size**2`` bytes, which are filtered. What crosses the wire are the edges
of chunks with neighbours on other workers, `kernel_size` rows or columns of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from commbench.errors import UsageError
from commbench.workloads.arrays import SquareWorkload
from commbench.workloads.device import array_library, library, uniform_block, verify_blocks
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import Context, option


class MapOverlap(SquareWorkload):
    """The mean of the neighbourhood of each number of a square array, mirrored beyond its edges."""

    name = "map-overlap"
    summary = "mean filter, for which chunks need the edges of neighbours"
    quick: ClassVar[Mapping[str, Any]] = {"size": 2_000, "chunk": 250}
    preload = ("dask.array", "scipy.ndimage")

    @dataclass(frozen=True, kw_only=True)
    class Params:
        size: int = option(4_000, "x has size x size numbers of 8 bytes", least=1)
        chunk: int = option(500, "side of a chunk of x, in numbers", least=1)
        kernel_size: int = option(1, "numbers to each side that a mean has, k of 2 k + 1")

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        smallest = params.size % params.chunk or params.chunk
        if not 1 <= params.kernel_size <= smallest:
            raise UsageError(
                f"kernel_size is {params.kernel_size}; it must be from 1 to the side of the "
                f"smallest chunk ({smallest})"
            )

    def build(self) -> Any:
        """Return the lazy array of means."""
        kernel_size, device = self.params.kernel_size, self.context.device
        return self.x.map_overlap(
            _mean_filter, depth=kernel_size, boundary="none", dtype="float64", meta=self.x._meta,
            kernel_size=kernel_size, device=device,
        )  # fmt: skip

    def verify(self, client: Any, result: Any) -> None:
        """Compare every number with the mean of x, which workers make again with its edges."""
        expected = partial(
            _expected, device=self.context.device, seed=self.context.seed,
            size=self.params.size, kernel_size=self.params.kernel_size,
        )  # fmt: skip
        verify_blocks(client, "filtered x", result, self.x.chunks, expected)
        rebalance(client, self.x)


def _mean_filter(block: Any, kernel_size: int, device: str) -> Any:
    side = 2 * kernel_size + 1
    kernel = array_library(device).ones((side, side)) / side**2
    return library(device, "scipy.ndimage", "cupyx.scipy.ndimage").convolve(block, kernel)


def _expected(
    start: Sequence[int], shape: Sequence[int], device: str, seed: int, size: int, kernel_size: int
) -> Any:
    # The same sums in the same order: the numbers are equal, not only about equal.
    first = [max(0, begin - kernel_size) for begin in start]
    last = [
        min(size, begin + length + kernel_size) for begin, length in zip(start, shape, strict=True)
    ]
    whole = [end - begin for begin, end in zip(first, last, strict=True)]
    wider = _mean_filter(uniform_block(device, seed, first, whole), kernel_size, device)
    inner = tuple(
        slice(begin - outer, begin - outer + length)
        for begin, outer, length in zip(start, first, shape, strict=True)
    )
    return wider[inner]

"""Bases of workloads on one array, which is persisted before the clock starts."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from commbench.errors import UsageError
from commbench.workloads.device import persist_input, uniform_array
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import ClusterWorkload, Context


class ArrayWorkload(ClusterWorkload):
    """A workload on x: float64, uniform in [0, 1), of this `shape` and in these `chunks`."""

    stresses = "arrays"
    preload: ClassVar[tuple[str, ...]] = ("dask.array",)
    shape: tuple[int, ...]
    chunks: tuple[Any, ...]

    @property
    def payload_bytes(self) -> int:
        """``x.nbytes``: 8 bytes for each number."""
        return 8 * math.prod(self.shape)

    def prepare(self, client: Any) -> None:
        """Create x on the workers."""
        lazy = uniform_array(self.context.device, self.context.seed, self.shape, self.chunks)
        (self.x,) = persist_input(client, lazy)
        rebalance(client, self.x)


class SquareWorkload(ArrayWorkload):
    """A workload on a square array, with the parameters `size` and `chunk`.

    x is ``(size, size)`` in chunks of ``(chunk, chunk)``, of which the last may be smaller.
    """

    def __init__(self, params: Any, context: Context) -> None:
        super().__init__(params, context)
        size, chunk = params.size, params.chunk
        if chunk > size:
            raise UsageError(f"{self.name}: chunk is {chunk}; it must be at most size ({size})")
        self.shape, self.chunks = (size, size), (chunk, chunk)
        self._n_chunks = math.ceil(size / chunk)

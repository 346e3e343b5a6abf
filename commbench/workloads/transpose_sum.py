"""``transpose-sum``: x + x.T, where every block meets its mirror image on another worker.

The array is that of the MPI4Dask paper ("Efficient MPI-based Communication for GPU-Accelerated
Dask Applications": 16K x 16K, chunks of 4K x 4K, persisted before and after) and of the RAPIDS
post on UCX on a DGX, whose x + x.T is summed (here ``operation="sum"``); dask-cuda's
``local_cupy`` does the latter. All three draw x uniformly from [0, 1).

Payload: ``x.nbytes = 8 * size**2`` bytes, the bytes that both operations read. What crosses the
wire is less: of the blocks off the diagonal, those whose mirror image is on another worker (each
worker has a band of rows of x).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from commbench.errors import VerificationError
from commbench.workloads.arrays import SquareWorkload
from commbench.workloads.device import finished_blocks, uniform_block, verify_blocks
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import option


class TransposeSum(SquareWorkload):
    """x + x.T of a square array in square chunks, or the sum of it."""

    name = "transpose-sum"
    summary = "x + x.T: each chunk of a square array meets its mirror image"
    quick: ClassVar[Mapping[str, Any]] = {"size": 4_000, "chunk": 1_000}
    bytes_per_second = 1e9

    @dataclass(frozen=True, kw_only=True)
    class Params:
        size: int = option(16_000, "x has size x size numbers of 8 bytes", least=1)
        chunk: int = option(4_000, "side of a chunk of x, in numbers", least=1)
        operation: Literal["persist", "sum"] = option(
            "persist", "persist: keep x + x.T; sum: reduce it to its sum"
        )

    def prepare(self, client: Any) -> None:
        """Create x on the workers, and sum it there for the verification."""
        super().prepare(client)
        blocks = [*finished_blocks(self.x, (self._n_chunks, self._n_chunks)).values()]
        self._sum = math.fsum(client.gather(client.map(_sum, blocks, key="verify", pure=False)))

    def build(self) -> Any:
        """Return the lazy x + x.T, or its sum."""
        y = self.x + self.x.T
        return y.sum() if self.params.operation == "sum" else y

    def verify(self, client: Any, result: Any) -> None:
        """Compare the sum, or every number, with what x implies.

        Workers make x again instead of fetching it: a transport that garbles data can't garble the
        verification in the same way.
        """
        if self.params.operation == "sum":
            (future,) = finished_blocks(result, ()).values()
            self._verify_sum(float(client.gather(future)))
        else:
            expected = partial(_expected, self.context.device, self.context.seed)
            verify_blocks(client, "x + x.T", result, self.x.chunks, expected)
        rebalance(client, self.x)

    def _verify_sum(self, value: float) -> None:
        # Summing numbers of one sign, in any order, has an error of at most eps / 2 for each
        # addition that a number goes through: fewer than 2 * size, since blocks are reduced
        # along one axis and then the other at worst. That is 1e-11 at the default size, where
        # one number in the whole array (of 2.56e8, each 1 on average) weighs 4e-9.
        expected, tolerance = 2 * self._sum, 4 * self.params.size * sys.float_info.epsilon
        if not abs(value - expected) <= tolerance * expected:
            raise VerificationError(
                f"sum of x + x.T: expected {expected!r} within {tolerance:.1e} of it, "
                f"found {value!r}"
            )


def _sum(block: Any) -> float:
    return float(block.sum())


def _expected(device: str, seed: int, start: Sequence[int], shape: Sequence[int]) -> Any:
    mirrored = uniform_block(device, seed, start[::-1], shape[::-1])
    return uniform_block(device, seed, start, shape) + mirrored.T

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

import itertools
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from commbench.errors import VerificationError
from commbench.workloads.arrays import SquareWorkload
from commbench.workloads.base import Context, option
from commbench.workloads.device import finished_blocks, uniform_block
from commbench.workloads.placement import rebalance

_N_OFF_DIAGONAL = 3


class TransposeSum(SquareWorkload):
    """x + x.T of a square array in square chunks, or the sum of it."""

    name = "transpose-sum"
    summary = "x + x.T: each chunk of a square array meets its mirror image"
    quick: ClassVar[Mapping[str, Any]] = {"size": 4_000, "chunk": 1_000}
    bytes_per_second = 1e9

    @dataclass(frozen=True, kw_only=True)
    class Params:
        """The options of ``commbench run transpose-sum``."""

        size: int = option(16_000, "x has size x size numbers of 8 bytes", least=1)
        chunk: int = option(4_000, "side of a chunk of x, in numbers", least=1)
        operation: Literal["persist", "sum"] = option(
            "persist", "persist: keep x + x.T; sum: reduce it to its sum"
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        self._n_verified = 0

    def prepare(self, client: Any) -> None:
        """Create x on the workers, and sum each of its blocks there for the verification."""
        super().prepare(client)
        blocks = finished_blocks(self.x, (self._n_chunks, self._n_chunks))
        self._sums = {index: total for index, _, _, total in _inspect_all(client, blocks)}

    def build(self) -> Any:
        """Return the lazy x + x.T, or its sum."""
        y = self.x + self.x.T
        return y.sum() if self.params.operation == "sum" else y

    def verify(self, client: Any, result: Any) -> None:
        """Compare the sum of every block, and every number of several, with what x implies.

        Workers sum their blocks, and make x again instead of fetching it: a transport that
        garbles data can't garble the verification in the same way.
        """
        if self.params.operation == "sum":
            self._verify_sum(client, result)
        else:
            self._verify_blocks(client, result)
        rebalance(client, self.x)

    def _verify_blocks(self, client: Any, result: Any) -> None:
        blocks = finished_blocks(result, (self._n_chunks, self._n_chunks))
        for index, shape, dtype, total in _inspect_all(client, blocks):
            expected_shape = tuple(map(self._side, index))
            if (shape, dtype) != (expected_shape, "float64"):
                raise VerificationError(
                    f"block {index} of x + x.T: expected float64 {expected_shape}, "
                    f"found {dtype} {shape}"
                )
            expected = self._sums[index] + self._sums[index[::-1]]
            self._compare(f"sum of block {index} of x + x.T", expected, total)
        sample = self._sample()
        device, seed = self.context.device, self.context.seed
        chosen = [blocks[index] for index in sample]
        starts = [(i * self.params.chunk, j * self.params.chunk) for i, j in sample]
        counts = client.map(_count_wrong, starts, chosen, device=device, seed=seed, pure=False)
        wrong = client.gather(counts)
        for index, n_wrong in zip(sample, wrong, strict=True):
            if n_wrong:
                raise VerificationError(
                    f"block {index} of x + x.T: {n_wrong} numbers differ from x[i, j] + x[j, i]"
                )

    def _verify_sum(self, client: Any, result: Any) -> None:
        (future,) = finished_blocks(result, ()).values()
        expected = 2 * math.fsum(self._sums.values())
        self._compare("sum of x + x.T", expected, float(client.gather(future)))

    def _compare(self, what: str, expected: float, value: float) -> None:
        # Summing numbers of one sign, in any order, has an error of at most eps / 2 for each
        # addition that a number goes through: fewer than 2 * size, since blocks are reduced
        # along one axis and then the other at worst. That is 1e-11 at the default size, where
        # one number in the whole array (of 2.56e8, each 1 on average) weighs 4e-9.
        tolerance = 4 * self.params.size * sys.float_info.epsilon
        if not abs(value - expected) <= tolerance * expected:
            raise VerificationError(
                f"{what}: expected {expected!r} within {tolerance:.1e} of it, found {value!r}"
            )

    def _side(self, index: int) -> int:
        return int(min(self.params.chunk, self.params.size - index * self.params.chunk))

    def _sample(self) -> list[tuple[int, int]]:
        # Each verification in a launch compares other blocks.
        rng = random.Random(f"{self.context.seed} {self._n_verified}")
        self._n_verified += 1
        last = self._n_chunks - 1
        off_diagonal = list(itertools.permutations(range(last + 1), 2))
        sample = set(rng.sample(off_diagonal, min(_N_OFF_DIAGONAL, len(off_diagonal))))
        sample.add((index := rng.randint(0, last), index))
        if last and self.params.size % self.params.chunk:
            sample |= {(last, last), (last, rng.randrange(last)), (rng.randrange(last), last)}
        return sorted(sample)


def _inspect_all(client: Any, blocks: dict[tuple[int, ...], Any]) -> list[Any]:
    """Return index, shape, data type and sum of each block."""
    indices, futures = list(blocks), list(blocks.values())
    inspected: list[Any] = client.gather(client.map(_inspect, indices, futures, pure=False))
    return inspected


def _inspect(
    index: tuple[int, ...], block: Any
) -> tuple[tuple[int, ...], tuple[int, ...], str, float]:
    return index, tuple(block.shape), str(block.dtype), float(block.sum())


def _count_wrong(start: tuple[int, int], block: Any, device: str, seed: int) -> int:
    mirrored = uniform_block(device, seed, start[::-1], block.shape[::-1])
    return int((block != uniform_block(device, seed, start, block.shape) + mirrored.T).sum())

"""``matmul``: x @ x.T, where every chunk meets all those in its row and in another.

The operation ``dot`` of dask-cuda's ``local_cupy``, which multiplies two arrays of uniform random
numbers, 10,000 x 10,000 in chunks of 2,500 x 2,500; here one with its transpose, persisted before.

Payload: ``x.nbytes = 8 * size**2`` bytes. With ``n = size / chunk``, a chunk is in ``2 * n - 1``
products, and n of them are summed for a chunk of the result; each worker has a band of rows of x,
and gets those of the others.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.errors import VerificationError
from commbench.workloads.arrays import SquareWorkload
from commbench.workloads.device import finished_blocks, uniform_block
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import option


class MatMul(SquareWorkload):
    """The product of a square array in square chunks and its transpose."""

    name = "matmul"
    summary = "x @ x.T: the product of a square array and its transpose"
    quick: ClassVar[Mapping[str, Any]] = {"size": 1_500, "chunk": 375}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        size: int = option(3_000, "x has size x size numbers of 8 bytes", least=1)
        chunk: int = option(750, "side of a chunk of x, in numbers", least=1)

    def prepare(self, client: Any) -> None:
        """Create x on the workers, and the product of the result and a random vector r.

        That is x (x' r), two products of a matrix and a vector.
        """
        super().prepare(client)
        size, chunk = self.params.size, self.params.chunk
        device, seed = self.context.device, self.context.seed
        starts = range(0, size, chunk)
        # Of another seed than x, and without numbers near 0, which would hide errors.
        self._r = [1 + uniform_block(device, ~seed, (i,), (min(chunk, size - i),)) for i in starts]

        def products(function: Any, vectors: list[Any]) -> list[Any]:
            rows = client.map(_rows, starts, size=size, chunk=chunk, device=device, seed=seed)
            made: list[Any] = client.gather(
                client.map(function, rows, vectors, key="verify", pure=False)
            )
            return made

        x_r = sum(products(lambda block, vector: block.T @ vector, self._r))
        self._expected = products(operator.matmul, [x_r] * self._n_chunks)

    def build(self) -> Any:
        """Return the lazy product."""
        return self.x @ self.x.T

    def verify(self, client: Any, result: Any) -> None:
        """Compare the product of each row and r, to which all of its numbers contribute.

        That is the check of Freivalds (1977). Each worker multiplies its blocks, and x is made
        again for it instead of fetched.
        """
        n_chunks = range(self._n_chunks)
        blocks = finished_blocks(result, (self._n_chunks, self._n_chunks))
        for i, expected in zip(n_chunks, self._expected, strict=True):
            row = [blocks[i, j] for j in n_chunks]
            what = f"rows {i} of chunks of x @ x.T"
            shapes = client.gather(client.map(lambda block: tuple(block.shape), row, pure=False))
            for shape, vector in zip(shapes, self._r, strict=True):
                if shape != (*expected.shape, *vector.shape):
                    raise VerificationError(f"{what}: found a chunk of shape {shape}")
            products = client.gather(
                client.map(operator.matmul, row, self._r, key="verify", pure=False)
            )
            # All numbers are positive, so that rounding adds up to at most eps / 2 for each of
            # the `size` additions in a number, in its row, and twice in what is expected. A wrong
            # number changes the product by its error over `size`.
            tolerance = 4 * self.params.size * sys.float_info.epsilon
            right = abs(sum(products) - expected) <= tolerance * expected
            if n_wrong := int((~right).sum()):
                raise VerificationError(
                    f"{what}: the products of {n_wrong} rows and a vector differ from those of x "
                    f"by more than {tolerance:.1e}"
                )
        rebalance(client, self.x)


def _rows(first: int, size: int, chunk: int, device: str, seed: int) -> Any:
    return uniform_block(device, seed, (first, 0), (min(chunk, size - first), size))

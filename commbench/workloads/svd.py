"""``svd``: the singular value decomposition of a tall and skinny array.

The computation of the RAPIDS post on UCX on a DGX: ``dask.array.linalg.svd`` of a uniform random
x, persisted before, in chunks that span all columns; x was 1,000,000 x 1,000 in chunks of 10,000
rows there. Dask uses a direct tall-and-skinny QR decomposition (Benson, Gleich and Demmel, 2013):
each chunk's R, ``columns**2`` numbers, goes to one worker, in two steps where all together have
more rows than a chunk, and a block of Q of that size comes back. There are many small messages, so
their latency matters.

Payload: ``x.nbytes = 8 * rows * columns`` bytes, the bytes that are decomposed. The messages are
about ``2 * 8 * columns**2 * ceil(rows / chunk_rows)`` bytes, and x moves only if the scheduler
steals work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.errors import UsageError, VerificationError
from commbench.workloads.arrays import ArrayWorkload
from commbench.workloads.device import array_library, finished_blocks, uniform_block
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import Context, option

# Householder QR and SVD are backward stable: the error is a small multiple of eps = 2e-16, and
# 3e-15 was seen. One wrong number in u leaves a relative error of about
# 1 / sqrt(rows * columns), 1e-4 at the default size, one wrong chunk a hundred times that.
_TOLERANCE = 1e-11


class Svd(ArrayWorkload):
    """u, s and v of an array whose chunks span all its columns.

    x is ``(rows, columns)`` in chunks of ``(chunk_rows, columns)``, of which the last may be
    smaller.
    """

    name = "svd"
    summary = "singular value decomposition of a tall and skinny array"
    quick: ClassVar[Mapping[str, Any]] = {"rows": 50_000}
    preload = ("dask.array.linalg",)

    @dataclass(frozen=True, kw_only=True)
    class Params:
        rows: int = option(400_000, "rows of x")
        columns: int = option(100, "columns of x, at most as many as rows", least=1)
        chunk_rows: int = option(10_000, "rows of a chunk of x")

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        rows, columns, chunk_rows = params.rows, params.columns, params.chunk_rows
        if columns > rows:
            raise UsageError(f"svd: columns is {columns}; it must be at most rows ({rows})")
        if not columns <= chunk_rows <= rows:
            raise UsageError(
                f"chunk_rows is {chunk_rows}; it must be from columns ({columns}) to rows ({rows})"
            )
        self.shape, self.chunks = (rows, columns), (chunk_rows, columns)
        self._n_chunks = math.ceil(rows / chunk_rows)

    def build(self) -> tuple[Any, Any, Any]:
        """Return the lazy u, s and v.

        Their shapes are ``(rows, columns)``, ``(columns,)`` and ``(columns, columns)``; the rows
        of v are the right singular vectors.
        """
        import dask.array as da

        u, s, v = da.linalg.svd(self.x)
        return u, s, v

    def verify(self, client: Any, result: Any) -> None:
        """Verify all properties of a singular value decomposition.

        Within the tolerance: x = u s v, the columns of u and the rows of v are orthonormal, and the
        sum of the squared singular values is that of the squares of x. Exactly: the singular values
        are sorted, and none is negative. Each block of x is made again on the worker that has the
        same block of u.
        """
        if len(result) != 3:
            raise VerificationError(f"expected u, s and v, found {len(result)} arrays")
        columns, device, seed = self.params.columns, self.context.device, self.context.seed
        u = finished_blocks(result[0], (self._n_chunks, 1))
        (s,) = finished_blocks(result[1], (1,)).values()
        (v,) = finished_blocks(result[2], (1, 1)).values()
        values, v_transposed = client.gather([s, v])
        _verify_shape("s", (columns,), values.shape)
        _verify_shape("v", (columns, columns), v_transposed.shape)
        inspected = client.gather(
            [
                client.submit(
                    _inspect, block, s, v, device, seed, index[0] * self.params.chunk_rows,
                    (self._n_rows(index[0]), columns), pure=False,
                )
                for index, block in u.items()
            ]
        )  # fmt: skip
        shapes, errors_squared, xs_squared, grams = zip(*inspected, strict=True)
        for index, shape in zip(u, shapes, strict=True):
            _verify_shape(f"block {index} of u", (self._n_rows(index[0]), columns), shape)
        x_squared = math.fsum(xs_squared)
        error = math.sqrt(math.fsum(errors_squared) / x_squared)
        _verify_small("norm of x - u s v over that of x", error)
        _verify_sorted(values.tolist())
        _verify_small(
            "sum of the squared singular values over that of x, less 1",
            abs(float((values**2).sum()) / x_squared - 1),
        )
        identity = array_library(device).eye(columns)
        gram = sum(grams)
        _verify_small("largest number in u' u - 1", float(abs(gram - identity).max()))
        gram = v_transposed @ v_transposed.T
        _verify_small("largest number in v v' - 1", float(abs(gram - identity).max()))
        rebalance(client, self.x)

    def _n_rows(self, index: int) -> int:
        return int(min(self.params.chunk_rows, self.params.rows - index * self.params.chunk_rows))


def _inspect(
    u: Any, s: Any, v: Any, device: str, seed: int, first_row: int, shape: tuple[int, int]
) -> tuple[tuple[int, ...], float, float, Any]:
    """Return the shape of a block of u, the squared norms of x - u s v and of x, and u' u."""
    if tuple(u.shape) != shape:
        return tuple(u.shape), 0.0, 0.0, None
    x = uniform_block(device, seed, (first_row, 0), shape)
    error = x - (u * s) @ v
    return shape, float((error**2).sum()), float((x**2).sum()), u.T @ u


def _verify_shape(what: str, expected: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if tuple(shape) != expected:
        raise VerificationError(f"{what}: expected the shape {expected}, found {tuple(shape)}")


def _verify_small(what: str, value: float) -> None:
    if not value <= _TOLERANCE:
        raise VerificationError(f"{what}: expected at most {_TOLERANCE:.0e}, found {value:.3g}")


def _verify_sorted(values: list[float]) -> None:
    for index, (value, following) in enumerate(zip(values, [*values[1:], 0.0], strict=True)):
        if not value >= following:
            raise VerificationError(
                "singular values: expected a falling sequence of numbers from 0 up, found "
                f"{value!r} before {following!r} at {index}"
            )

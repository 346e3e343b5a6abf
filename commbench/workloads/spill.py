"""``spill``: an array that is larger than the memory of the cluster, made and then summed.

As ``test_spilling`` in coiled/benchmarks, ``tests/benchmarks/test_spill.py``, whose array is 1.79
times the memory limit of all workers: it is persisted, and when all of it exists, it is summed, for
which the workers read back what they have spilled. Here they sum each chunk, and don't add up the
sums, so that nothing moves between them.

Payload: ``factor * W * memory limit`` bytes for W workers, as whole chunks: the array's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from commbench.errors import UsageError, VerificationError
from commbench.workloads.device import finished_blocks, uniform_array, uniform_block
from commbench.workloads.workload import ClusterWorkload, Context, option

_ITEM_BYTES = 8


class Spill(ClusterWorkload):
    """An array of float64, uniform in [0, 1), and the sums of its chunks."""

    name = "spill"
    on_gpu = False
    summary = "an array larger than the --memory-limit of the workers, made and summed"
    stresses = "memory"
    quick: ClassVar[Mapping[str, Any]] = {"factor": 1.2, "chunk": 4 << 20}
    preload = ("dask.array",)

    @dataclass(frozen=True, kw_only=True)
    class Params:
        factor: float = option(1.79, "size of the array over all workers' memory limits")
        chunk: int = option(16 << 20, "size of a chunk of the array", unit="bytes")

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        limit = context.memory_limit_bytes
        if not limit:
            raise UsageError(
                "spill: the size of its data follows from the memory limit of the workers, which "
                "is not given, or not in bytes; add for example --memory-limit 500MB"
            )
        if params.factor <= 0:
            raise UsageError(f"spill: factor is {params.factor}; it must be above 0")
        if not _ITEM_BYTES <= params.chunk <= limit:
            raise UsageError(
                f"spill: chunk is {params.chunk} B; it must be from 8 B to the memory limit of a "
                f"worker ({limit} B)"
            )
        self._n_items = params.chunk // _ITEM_BYTES
        total = params.factor * limit * context.n_workers
        self._n_chunks = math.ceil(total / (self._n_items * _ITEM_BYTES))

    @property
    def payload_bytes(self) -> int:
        """The bytes of the array."""
        return self._n_chunks * self._n_items * _ITEM_BYTES

    @property
    def operations(self) -> tuple[int, str]:
        """The bytes of the array."""
        return self.payload_bytes, "bytes"

    def build(self) -> Any:
        """Return the lazy array."""
        shape, chunks = (self._n_chunks, self._n_items), (1, self._n_items)
        return uniform_array(self.context.device, self.context.seed, shape, chunks)

    def compute(self, client: Any, graph: Any) -> Any:
        """Persist the array, wait until it exists, and start to sum it."""
        from distributed import wait

        array = client.persist(graph)
        wait(array)
        return array, client.persist(array.sum(axis=1))

    def verify(self, client: Any, result: Any) -> None:
        """Compare each chunk with a new one, where it is, and its sum with that of the new one."""
        array, sums = result
        blocks = finished_blocks(array, (self._n_chunks, 1))
        indices = sorted(blocks)
        compare = partial(_compared, device=self.context.device, seed=self.context.seed)
        compared = client.gather(
            client.map(compare, indices, [blocks[index] for index in indices], pure=False)
        )
        totals = finished_blocks(sums, (self._n_chunks,))
        values = client.gather([totals[number,] for number in range(self._n_chunks)])
        wrong = [
            number
            for number, (value, (n_wrong, expected)) in enumerate(
                zip(values, compared, strict=True)
            )
            # Numbers that were spilled may be added in another order.
            if n_wrong or not math.isclose(float(value.sum()), expected, rel_tol=1e-12)
        ]
        if wrong:
            raise VerificationError(
                f"spill: {len(wrong)} of {self._n_chunks} chunks are wrong, or their sums, such as "
                f"{wrong[0]}"
            )


def _compared(index: tuple[int, int], block: Any, device: str, seed: int) -> tuple[int, float]:
    """Return how many numbers of a block are wrong, and the sum of the right ones."""
    expected = uniform_block(device, seed, index, block.shape)
    return int((block != expected).sum()), float(expected.sum())

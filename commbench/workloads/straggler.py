"""``straggler``: workers need data of one whose event loop is blocked most of the time.

The event loop of the first worker is blocked for ``block_s`` in every ``period_s``, as by a
function that does not release the GIL, while every other worker runs a chain of tasks. Each task
needs one more array of the first worker, and no other chain needs that array, because Dask would
fetch a copy from its worker. ``--block-s 0`` is the control. What a worker can't do then: see
``blocked-loop`` in docs/diagnosis.md.

Payload: ``(W - 1) * steps * size`` bytes for W workers, all of which the first one sends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.errors import UsageError, VerificationError
from commbench.workloads.device import random_bytes, wait_finished
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import ClusterWorkload, Context, option

_FETCH_SECONDS = 5e-3
"""The time of a step, roughly, if nothing is blocked."""
_BLOCKING = "_commbench_blocking"


class Straggler(ClusterWorkload):
    """Chains of tasks that each add the sum of an array to the result of the last one."""

    name = "straggler"
    summary = "workers fetch from one whose event loop is blocked most of the time"
    stresses = "one to many"
    scales = False
    quick: ClassVar[Mapping[str, Any]] = {"steps": 10, "block_s": 0.1, "period_s": 0.15}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        block_s: float = option(1.0, "time without its event loop", unit="seconds")
        period_s: float = option(1.5, "time from a block to the next", unit="seconds")
        steps: int = option(50, "arrays that each worker fetches", least=1)
        size: int = option(1 << 20, "size of an array", unit="bytes", least=1)

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        if context.n_workers < 2:
            raise UsageError("straggler: one worker has no other to wait for; --workers 2")
        if not 0 <= params.block_s < params.period_s:
            raise UsageError(
                f"straggler: block_s is {params.block_s}; it must be at least 0, and below "
                f"period_s ({params.period_s}), so that the worker answers at all"
            )

    @property
    def payload_bytes(self) -> int:
        """The bytes that the straggler sends."""
        return (self.context.n_workers - 1) * int(self.params.steps) * int(self.params.size)

    @property
    def operations(self) -> tuple[int, str]:
        """The steps of a chain, because chains run at the same time."""
        return self.params.steps, "steps"

    @property
    def expected_seconds(self) -> float:
        """The steps, and the blocks between them."""
        awake = 1 - self.params.block_s / self.params.period_s
        return float(self.params.block_s + self.params.steps * _FETCH_SECONDS / awake)

    def prepare(self, client: Any) -> None:
        """Create the arrays on the first worker."""
        device, size, seed = self.context.device, self.params.size, self.context.seed
        numbers = range(self.params.steps * (self.context.n_workers - 1))
        self._arrays = [
            client.submit(random_bytes, device, size, seed, number, key=("straggler-input", number))
            for number in numbers
        ]
        wait_finished(self._arrays, "the input can't be created: task {!r}")
        sums = client.map(_added, self._arrays, [0] * len(numbers), pure=False)
        self._expected = [sum(each) for each in self._chains(client.gather(sums))]
        self._go_home(client)
        (self._straggler,) = client.who_has(self._arrays[:1])[self._arrays[0].key]
        self._others = sorted(set(client.nthreads()) - {self._straggler})

    def build(self) -> Any:
        """Return the lazy last task of each other worker's chain."""
        import dask

        add, last = dask.delayed(_added, pure=False), []
        chains = zip(self._others, self._chains(self._arrays), strict=True)
        for worker, (address, arrays) in enumerate(chains):
            total: Any = 0
            with dask.annotate(workers=[address]):
                for step, array in enumerate(arrays):
                    total = add(array, total, dask_key_name=("straggler", worker, step))
            last.append(total)
        return last

    def _chains(self, values: list[Any]) -> Iterator[list[Any]]:
        """Yield the values that belong to each chain."""
        for first in range(0, len(values), self.params.steps):
            yield values[first : first + self.params.steps]

    def compute(self, client: Any, graph: Any) -> Any:
        """Start to block the event loop, and then the chains; return the futures of their ends."""
        params = self.params
        if params.block_s:
            # Not the first ones: Dask may drop an array here once it has been fetched.
            last = [array.key for array in self._arrays[params.steps - 1 :: params.steps]]
            client.run(_block, params.block_s, params.period_s, last, workers=[self._straggler])
        # Fused, a chain would be one task, which fetches all at once.
        return client.compute(graph, optimize_graph=False)

    def verify(self, client: Any, result: Any) -> None:
        """Let the event loop go, compare the sums of all bytes, and drop the copies."""
        client.run(_release, workers=[self._straggler])
        totals = client.gather(result)
        if totals != self._expected:
            raise VerificationError(
                f"straggler: the arrays' bytes add up to {self._expected}, for each chain; the "
                f"other workers have {totals}"
            )
        self._go_home(client)

    def _go_home(self, client: Any) -> None:
        # The first of one is on the first worker.
        rebalance(client, *([array] for array in self._arrays))


def _added(array: Any, total: int) -> int:
    return total + int(array.sum())


def _block(block_s: float, period_s: float, keys: Sequence[Any], dask_worker: Any) -> None:
    """Begin to block the worker's event loop, until ``_release`` or until it has none of `keys`."""
    import asyncio

    async def block() -> None:
        # After the answer to this call has been sent.
        await asyncio.sleep(0.01)
        # Not after the next iteration has begun to block, either.
        this = asyncio.current_task()
        while getattr(dask_worker, _BLOCKING) is this and any(k in dask_worker.data for k in keys):
            time.sleep(block_s)
            await asyncio.sleep(period_s - block_s)

    setattr(dask_worker, _BLOCKING, asyncio.ensure_future(block()))


def _release(dask_worker: Any) -> None:
    setattr(dask_worker, _BLOCKING, None)

"""``broadcast``, ``scatter`` and ``gather``: arrays between one process and all workers.

``broadcast``: every worker needs an array that one of them has. Its default size is that of
https://github.com/dask/distributed/issues/3333, where 32 workers need 28.5 MB. ``scatter``: the
client sends arrays to the workers, in turn. ``gather``: the client collects arrays from them. All
are NumPy (or CuPy) arrays of random bytes.

Payload: ``(W - 1) * size`` bytes for a broadcast to W workers, one of which has the array;
``W * arrays * size`` for the others. By Dask's default what is scattered or gathered goes by way of
the scheduler, so that each byte crosses two connections; with ``direct``, or Dask's setting
``distributed.client.direct-to-workers``, it crosses one. Only what is broadcast moves between
workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.errors import UsageError, VerificationError
from commbench.workloads.device import n_wrong_bytes, random_bytes, wait_finished
from commbench.workloads.placement import rebalance
from commbench.workloads.workload import ClusterWorkload, Context, option

_MIB = 1 << 20


class _OneToMany(ClusterWorkload):
    """A workload whose result are arrays of ``size`` random bytes."""

    stresses = "one to many"
    bytes_per_second = 2e8

    @property
    def operations(self) -> tuple[int, str]:
        """The bytes of the payload."""
        return self.payload_bytes, "bytes"

    def _array(self, number: int) -> tuple[str, int, int, int]:
        """Return the arguments of ``random_bytes`` for an array."""
        return self.context.device, self.params.size, self.context.seed, number

    def _compare(self, n_wrong: Sequence[int]) -> None:
        """Raise an error unless each array has 0 wrong bytes."""
        wrong = [f"{n} B of array {number}" for number, n in enumerate(n_wrong) if n]
        if wrong:
            raise VerificationError(
                f"{self.name}: wrong are {', '.join(wrong[:5])}; each has {self.params.size} B"
            )

    def _compare_on_workers(self, client: Any, futures: Sequence[Any], numbers: Any) -> None:
        """Compare arrays with new ones, on the workers that have them."""
        checks = [
            client.submit(n_wrong_bytes, future, *self._array(number), pure=False)
            for future, number in zip(futures, numbers, strict=True)
        ]
        self._compare(client.gather(checks))


class Broadcast(_OneToMany):
    """One array that a task on every worker needs."""

    name = "broadcast"
    summary = "every worker needs the array of one worker"
    scales = False
    quick: ClassVar[Mapping[str, Any]] = {"size": 4 * _MIB}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        size: int = option(28_500_000, "size of the array", unit="bytes", least=1)

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        if context.n_workers < 2:
            raise UsageError("broadcast: one worker has no other to send to; --workers 2")

    @property
    def payload_bytes(self) -> int:
        """One copy for each worker but the first."""
        return (self.context.n_workers - 1) * int(self.params.size)

    def prepare(self, client: Any) -> None:
        """Create the array on the first worker."""
        self._source = client.submit(random_bytes, *self._array(0), key=("broadcast-input", 0))
        wait_finished([self._source], "the input can't be created: task {!r}")
        rebalance(client, [self._source])
        self._addresses = sorted(client.nthreads())

    def build(self) -> Any:
        """Return the key of each worker's task."""
        return [f"broadcast-{number}" for number in range(self.context.n_workers)]

    def compute(self, client: Any, graph: Any) -> Any:
        """Submit a task to each worker that returns the array, and return the futures."""
        return [
            client.submit(_returned, self._source, key=key, workers=[address])
            for key, address in zip(graph, self._addresses, strict=True)
        ]

    def verify(self, client: Any, result: Any) -> None:
        """Compare every byte of each worker's copy, on that worker, and drop the copies."""
        self._compare_on_workers(client, result, [0] * len(result))
        rebalance(client, [self._source])


def _returned(array: Any) -> Any:
    return array


@dataclass(frozen=True, kw_only=True)
class _SeveralArrays:
    """The options of ``commbench run scatter`` and ``gather``."""

    size: int = option(8 * _MIB, "size of an array", unit="bytes", least=1)
    arrays: int = option(4, "arrays of each worker", least=1)
    direct: bool = option(False, "between client and workers, not by the scheduler")


class _ClientArrays(_OneToMany):
    """A workload with ``arrays`` arrays for each worker."""

    quick: ClassVar[Mapping[str, Any]] = {"size": _MIB}
    Params = _SeveralArrays

    def __init__(self, params: _SeveralArrays, context: Context) -> None:
        super().__init__(params, context)
        self._numbers = range(params.arrays * context.n_workers)

    @property
    def payload_bytes(self) -> int:
        """The bytes of all arrays."""
        return len(self._numbers) * int(self.params.size)


class Scatter(_ClientArrays):
    """Arrays that the client sends to the workers, as many to each.

    They have names, so that no time goes into hashes of their content.
    """

    name = "scatter"
    summary = "the client sends arrays to all workers"

    def prepare(self, client: Any) -> None:
        """Create the arrays in this process."""
        del client
        self._arrays = {
            f"scatter-{number}": random_bytes(*self._array(number)) for number in self._numbers
        }

    def build(self) -> Any:
        """Return the arrays by the keys that they get."""
        return self._arrays

    def compute(self, client: Any, graph: Any) -> Any:
        """Scatter the arrays, and return their futures."""
        return [*client.scatter(graph, direct=self.params.direct or None).values()]

    def verify(self, client: Any, result: Any) -> None:
        """Compare the number of arrays on each worker, and every byte there."""
        holders = client.who_has(result).values()
        counts = Counter(address for addresses in holders for address in addresses)
        if sorted(counts.values()) != [self.params.arrays] * self.context.n_workers:
            raise VerificationError(
                f"scatter: each worker should have {self.params.arrays} arrays; "
                f"they have {sorted(counts.values())}"
            )
        self._compare_on_workers(client, result, self._numbers)


class Gather(_ClientArrays):
    """Arrays that the client collects, as many from each worker."""

    name = "gather"
    summary = "the client collects arrays from all workers"

    def prepare(self, client: Any) -> None:
        """Create the arrays on the workers."""
        self._futures = [
            client.submit(random_bytes, *self._array(number), key=("gather-input", number))
            for number in self._numbers
        ]
        wait_finished(self._futures, "the input can't be created: task {!r}")
        rebalance(client, self._futures)

    def build(self) -> Any:
        """Return the futures of the arrays."""
        return self._futures

    def compute(self, client: Any, graph: Any) -> Any:
        """Gather the arrays, and return them."""
        return client.gather(graph, direct=self.params.direct or None)

    def verify(self, client: Any, result: Any) -> None:
        """Compare every byte, in this process."""
        del client
        self._compare(
            [n_wrong_bytes(array, *self._array(number)) for number, array in enumerate(result)]
        )

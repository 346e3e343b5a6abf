"""The contract of workloads."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from commbench.conformance.assertions import assert_one_line, assert_raises, loaded
from commbench.errors import UsageError, VerificationError
from commbench.harness import options
from commbench.harness.cases import structure
from commbench.harness.measure.cluster import until_forgotten
from commbench.model import LAYERS
from commbench.workloads.workload import (
    ClusterWorkload,
    Context,
    FetchWorkload,
    PairWorkload,
    Workload,
)

_LEAST_COMPRESSED = 0.95
"""The minimum compression ratio of a payload by zlib; random bytes are above 1."""
_MEMORY_BYTES = 1_000_000
"""The memory limit that workloads get, which is smaller than that of the workers."""


def check_workload(name: str, client: Any = None, /, **params: Any) -> None:
    """Test the attributes of the workload `name`, and that it only accepts correct results.

    A computation is run twice on a cluster. Then one number of its result is changed in the memory
    of a worker, which the workload has to detect. Blocks and payloads that are fetched or sent are
    made, compared, and changed by one bit. All are in CPU memory.

    Parameters
    ----------
    name
        The entry point.
    client
        A ``distributed.Client`` with at least two workers, for computations; by default, two
        worker processes are started.
    **params
        Parameters of the workload, for a small size; for example ``rows=1000``.

    Raises
    ------
    AssertionError
        If the workload violates its contract.
    UsageError
        If the parameters are not valid.
    """
    kind = loaded("workload", name)
    assert_one_line("summary", kind.summary)
    assert_one_line("stresses", kind.stresses)
    _check_params(kind)
    filled = structure(params, kind.Params, name)

    def make(seed: int, n_workers: int = 2) -> Any:
        context = Context(
            n_workers=n_workers, device="cpu", seed=seed, memory_limit_bytes=_MEMORY_BYTES
        )
        return kind(filled, context)

    if issubclass(kind, ClusterWorkload):
        work = make(1, len(client.nthreads()) if client else 2)
        work.set_up()
        with _connected(client) as connected:
            _check_computation(work, connected)
    elif issubclass(kind, FetchWorkload):
        _check_blocks(make)
    elif issubclass(kind, PairWorkload):
        _check_messages(make)
    else:
        raise AssertionError(f"{name} is no ClusterWorkload, FetchWorkload or PairWorkload")


def _check_params(kind: type[Workload]) -> None:
    params = kind.Params
    frozen = is_dataclass(params) and params.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert frozen, "Params is no frozen dataclass"
    without = [field.name for field in fields(params) if not field.metadata.get("help")]
    assert not without, f"these fields of Params have no help: {', '.join(without)}"
    try:
        defaults = params()
        options.param_options(params)
        again = structure(asdict(defaults), params, kind.name)
    except (TypeError, KeyError, UsageError) as error:
        raise AssertionError(
            f"Params makes no options: {error!r}; every field has a default, and is an int, float, "
            "bool, str, Literal or tuple of one of these"
        ) from error
    assert again == defaults, f"of {defaults} a suite file makes {again}"


@contextmanager
def _connected(client: Any) -> Iterator[Any]:
    if client is not None:
        yield client
        return
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as fresh:
        yield fresh


def _check_computation(work: ClusterWorkload, client: Any) -> None:
    from distributed import futures_of, wait

    number = work.payload_bytes
    counts = isinstance(number, int) and (number > 0 or (number == 0 and work.operations[0] > 0))
    assert counts, (
        f"payload_bytes is {number!r}; it must be a whole number above 0, or 0 with operations"
    )
    work.prepare(client)
    for is_right in (True, True, False):
        result = work.compute(client, work.build())
        wait(result)
        futures = futures_of(result)
        if is_right:
            work.verify(client, result)
            # As in the harness, nothing of a result is left when the next is computed.
            keys = [future.key for future in futures]
            del result, futures
            until_forgotten(client, keys)
    if futures:
        largest = max(futures, key=lambda future: _nbytes(client, future))
        where, kind = largest.key, largest.type
        (holder, *_) = client.who_has([largest])[largest.key]
        changed = client.run(_corrupt, largest.key, workers=[holder])[holder]
    else:
        where, kind = "what the client got", type(result)
        changed = (result := _corrupted(result)) is not None
    assert changed, f"the kit can't change a {kind}: make the result of arrays, frames or numbers"
    with assert_raises(VerificationError, f"a wrong number in {where}"):
        work.verify(client, result)


def _nbytes(client: Any, future: Any) -> int:
    return int(client.nbytes([future.key], summary=False).get(future.key, 0))


def _corrupt(key: Any, dask_worker: Any) -> bool:
    """Change a number in the worker's data under `key`; runs on the worker."""
    changed = _corrupted(dask_worker.data[key])
    if changed is not None:
        dask_worker.data[key] = changed
    return changed is not None


def _corrupted(value: Any) -> Any:
    """Return a copy with another number, or None if there is no number."""
    if isinstance(value, int | float):
        return _other(value)
    changed = value.copy() if hasattr(value, "copy") else value
    if isinstance(value, list) and value:
        middle = len(value) // 2
        changed[middle] = _corrupted(value[middle])
        return None if changed[middle] is None else changed
    if hasattr(changed, "columns"):
        columns = [position for position, kind in enumerate(changed.dtypes) if kind.kind in "iuf"]
        if not columns or not len(changed):
            return None
        position = len(changed) // 2, columns[-1]
        changed.iloc[position] = _other(changed.iloc[position])
        return changed
    if hasattr(changed, "reshape") and changed.size and changed.dtype.kind in "iufc":
        import numpy

        # Otherwise reshape may return a copy.
        array: Any = numpy.array(changed, order="C")
        number = array.reshape(-1)[array.size // 2 :][:1]
        number[:] = _other(number)
        return array
    return None


def _other(number: Any) -> Any:
    """Return 0, which differs from NaN, inf and the largest integer, or 1 more if that is close."""
    return number + 1 if abs(number) <= 0.5 else 0


def _check_blocks(make: Callable[[int], Any]) -> None:
    work: FetchWorkload = make(1)
    for size in work.sizes:
        block = work.block(0, size)
        _check_random_bytes(block, size)
        assert _same(block, work.block(0, size)), f"block(0, {size}) is another at each call"
        work.verify(0, size, block)
        garbled = block.copy()
        garbled[-1] ^= 1
        with assert_raises(VerificationError, f"a wrong last byte of {size}"):
            work.verify(0, size, garbled)
    size = max(work.sizes)
    with assert_raises(VerificationError, "the block of another worker"):
        work.verify(0, size, work.block(1, size))
    assert not _same(work.block(0, size), make(2).block(0, size)), (
        "the seed makes no difference to block()"
    )


def _check_messages(make: Callable[[int], Any]) -> None:
    work: PairWorkload = make(1)
    assert set(work.layers) <= set(LAYERS), f"layers are {work.layers}; known: {LAYERS}"
    for size in work.sizes:
        assert work.n_samples(size, 1) >= 1, f"n_samples({size}, 1) is below 1"
        payload = work.payload(size)
        _check_random_bytes(payload, size)
        assert _same(payload, work.payload(size)), f"payload({size}) is another at each call"
        work.stamp(payload, 1)
        reply = payload.copy()
        work.verify(payload, reply, whole=True)
        work.stamp(payload, 2)
        with assert_raises(VerificationError, f"a stale reply of {size} B"):
            work.verify(payload, reply, whole=False)
        reply = payload.copy()
        reply[-1] ^= 1
        with assert_raises(VerificationError, f"a wrong last byte of {size}"):
            work.verify(payload, reply, whole=True)
    size = max(work.sizes)
    assert not _same(work.payload(size), make(2).payload(size)), (
        "the seed makes no difference to payload()"
    )


def _check_random_bytes(array: Any, size: int) -> None:
    content = bytes(array)
    assert len(content) == size, f"of {size} B asked for {len(content)} were made"
    left = len(zlib.compress(content, 1)) / size
    assert left > _LEAST_COMPRESSED, (
        f"zlib leaves {left:.0%} of {size} B; random bytes tell of the link, not of a compressor"
    )


def _same(one: Any, other: Any) -> bool:
    return bytes(one) == bytes(other)

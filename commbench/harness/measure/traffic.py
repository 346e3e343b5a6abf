"""What crossed the links of a cluster meanwhile, and what these links are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from commbench.backends.base import Backend
from commbench.harness import wire
from commbench.harness.measure import places
from commbench.launchers.base import RunningCluster
from commbench.model import (
    Launch,
    NetworkCounter,
    Record,
    Setting,
    TransportUsed,
    WireBytes,
    WorkerAddress,
)
from commbench.store.parts import Batch

_UCX_VARIABLES = ("UCX_", "UCXPY_")
_PAIRS = 100_000
"""Pairs of workers that one message tells of at most, if any worker can be told of at all."""
_UCX_KEYS = ("distributed-ucxx", "distributed.comm.ucx")


def network_counters() -> dict[str, int]:
    """Return the bytes that the kernel has counted on each interface of this host."""
    import psutil

    return {
        name: counters.bytes_recv for name, counters in psutil.net_io_counters(pernic=True).items()
    }


def network_bytes(launch: Launch, iteration: int, before: Mapping[str, int]) -> Iterator[Record]:
    """Yield what the kernel has counted since ``network_counters`` returned `before`."""
    for name, nbytes in network_counters().items():
        yield NetworkCounter(
            case_id=launch.case.id, launch=launch.index, iteration=iteration,
            host="local", interface=name, nbytes=nbytes - before.get(name, 0),
        )  # fmt: skip


def wire_bytes(launch: Launch, iteration: int, cluster: RunningCluster) -> Iterator[Batch]:
    """Yield what the workers wrote to each other since the last call."""
    for address, rows in _of_peers(cluster, wire.take):
        if rows:
            peers, nbytes, n_messages = map(list, zip(*rows, strict=True))
            yield Batch.of(
                WireBytes, case_id=launch.case.id, launch=launch.index, iteration=iteration,
                src=cluster.names[address], dst=peers, nbytes=nbytes, n_messages=n_messages,
            )  # fmt: skip


def _of_peers(cluster: RunningCluster, function: Any, *args: Any) -> Iterator[tuple[str, Any]]:
    """Yield what `function` tells on each worker, by address, of all that this one talks to."""
    addresses = list(cluster.names)
    n_at_once = max(1, _PAIRS // len(addresses))
    for first in range(0, len(addresses), n_at_once):
        some = addresses[first : first + n_at_once]
        yield from cluster.client.run(function, *args, workers=some).items()


def links(launch: Launch, backend: Backend, cluster: RunningCluster) -> Iterator[Record | Batch]:
    """Yield where the workers are, what carries each living connection, and its compression."""
    for address, name in cluster.names.items():
        yield WorkerAddress(
            case_id=launch.case.id, launch=launch.index, worker=name, address=address
        )
    yield from places.of_workers(launch, cluster)
    for address, found in _of_peers(cluster, wire.transports, backend.transport):
        if found:
            peers, names, evidence = map(list, zip(*found, strict=True))
            yield Batch.of(
                TransportUsed, case_id=launch.case.id, launch=launch.index,
                src=cluster.names[address], dst=peers, transport=names, evidence=evidence,
                contradiction=[backend.contradiction(name) for name in names],
            )  # fmt: skip
    if cluster.outlives:
        # What a launch sets is known; here somebody else did, or nobody.
        told = cluster.client.run(_settings).values()
        for name, value in sorted({(name, value) for pairs in told for name, value in pairs}):
            yield Setting(case_id=launch.case.id, launch=launch.index, name=name, value=value)
    compressions = cluster.client.run(wire.compressions).values()
    for value in sorted({name for names in compressions for name in names}):
        yield Setting(
            case_id=launch.case.id, launch=launch.index,
            name="distributed.comm.compression", value=value,
        )  # fmt: skip


def _settings() -> list[tuple[str, str]]:
    """Return what this process was told of UCX, by variables and by Dask's configuration."""
    import dask

    told = [(name, text) for name, text in os.environ.items() if name.startswith(_UCX_VARIABLES)]
    for key in _UCX_KEYS:
        told += _set(key, dask.config.get(key, {}))
    return told


def _set(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys from `key` on that have a value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _set(f"{key}.{name}", inner)
    elif value:
        yield key, str(value)

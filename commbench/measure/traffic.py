"""What crossed the links of a cluster meanwhile, and what these links are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commbench import wire
from commbench.backends.base import Backend
from commbench.launchers.base import RunningCluster
from commbench.measure import places
from commbench.model import (
    Launch,
    NetworkCounter,
    Record,
    Setting,
    TransportUsed,
    WireBytes,
    WorkerAddress,
)


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


def wire_bytes(launch: Launch, iteration: int, cluster: RunningCluster) -> Iterator[Record]:
    """Yield what the workers wrote to each other since the last call."""
    for address, rows in cluster.client.run(wire.take).items():
        for peer, nbytes, n_messages in rows:
            yield WireBytes(
                case_id=launch.case.id, launch=launch.index, iteration=iteration,
                src=cluster.names[address], dst=peer, nbytes=nbytes, n_messages=n_messages,
            )  # fmt: skip


def links(launch: Launch, backend: Backend, cluster: RunningCluster) -> Iterator[Record]:
    """Yield where the workers are, what carries each living connection, and its compression."""
    for address, name in cluster.names.items():
        yield WorkerAddress(
            case_id=launch.case.id, launch=launch.index, worker=name, address=address
        )
    yield from places.of_workers(launch, cluster)
    rows = cluster.client.run(wire.transports, backend.transport)
    for address, found in rows.items():
        for peer, transport, evidence in found:
            yield TransportUsed(
                case_id=launch.case.id,
                launch=launch.index,
                src=cluster.names[address],
                dst=peer,
                transport=transport,
                evidence=evidence,
                contradiction=backend.contradiction(transport),
            )
    compressions = cluster.client.run(wire.compressions).values()
    for value in sorted({name for names in compressions for name in names}):
        yield Setting(
            case_id=launch.case.id, launch=launch.index,
            name="distributed.comm.compression", value=value,
        )  # fmt: skip

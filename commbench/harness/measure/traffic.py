"""Transfers over the links of a cluster, and the properties of these links."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

from commbench.backends.backend import Backend
from commbench.harness import p2p, transfer_log, wire
from commbench.harness.measure import conditions, record_keys
from commbench.launchers.launcher import RunningCluster
from commbench.machine import environment
from commbench.model import Launch
from commbench.model.observed import (
    LOCAL,
    LogCount,
    NetworkCounter,
    Record,
    Setting,
    TransferRecord,
    TransportUsed,
    WireBytes,
    WorkerAddress,
)
from commbench.store import parts

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 20_000
"""The maximum number of log entries per message from all workers, to bound memory."""
_PAIRS = 100_000
"""The maximum number of pairs per message; at least one worker is always asked."""
_MAX_VALUES = 8
"""The maximum number of values of a setting: each rank of Open MPI has other variables."""


def network_counters() -> dict[str, int]:
    """Return the bytes received by each network interface of this host."""
    import psutil

    return {
        name: counters.bytes_recv for name, counters in psutil.net_io_counters(pernic=True).items()
    }


def network_bytes(launch: Launch, iteration: int, before: Mapping[str, int]) -> Iterator[Record]:
    """Yield the bytes received since ``network_counters`` returned `before`."""
    for name, nbytes in network_counters().items():
        nbytes -= before.get(name, 0)
        common = record_keys.keys(launch, iteration)
        yield NetworkCounter(**common, host=LOCAL, interface=name, nbytes=nbytes)


def fetches(
    client: Any, names: Mapping[str, str], known: Mapping[str, str] | None = None, **where: Any
) -> Iterator[LogCount | pa.Table]:
    """Yield the workers' fetches since the last call: counts first, then transfers.

    The workers, of which `names` has the names by address, need the plugin ``TransferLog``. `known`
    has also the names of senders that have left, `where` the fields of ``record_keys.keys``.
    """
    counts = client.run(transfer_log.count, workers=list(names))
    for address, count in counts.items():
        yield LogCount(**where, worker=names[address], **count)
    n_entries = {address: count["n_logged"] for address, count in counts.items()}
    for address, answer in _answers(client, n_entries, transfer_log.drain):
        columns = json.loads(answer)
        senders = [(known or names).get(who, who) for who in columns.pop("senders")]
        src = [senders[index] for index in columns.pop("sender")]
        yield parts.table(
            TransferRecord, **where, src=src, dst=names[address], **columns, channel="gather"
        )


def p2p_batches(
    client: Any, names: Mapping[str, str], known: Mapping[str, str], **where: Any
) -> Iterator[pa.Table]:
    """Yield the batches of P2P shuffles that workers have logged since the last call.

    The workers need the plugin ``BatchLog``; for the parameters see ``fetches``. Batches that are
    logged meanwhile are left for the next call.
    """
    counts = client.run(p2p.count, workers=list(names))
    for address, answer in _answers(client, counts, p2p.drain):
        if columns := json.loads(answer):
            dst = [known.get(who, who) for who in columns.pop("receiver")]
            yield parts.table(
                TransferRecord, **where, src=names[address], dst=dst, **columns, channel="p2p"
            )


def _answers(
    client: Any, n_entries: Mapping[str, int], drain: Callable[..., str]
) -> Iterator[tuple[str, str]]:
    """Yield each worker's address with an answer of `drain`; prefetch the next message."""
    with ThreadPoolExecutor(1) as asker:
        on_its_way: Future[dict[str, str]] | None = None
        for addresses in portions(n_entries, CHUNK):
            last = on_its_way
            on_its_way = asker.submit(client.run, drain, CHUNK, workers=addresses)
            if last is not None:
                yield from last.result().items()
        if on_its_way is not None:
            yield from on_its_way.result().items()


def portions(n_entries: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Yield groups of workers to ask for up to `most` entries each, and `most` per group.

    Examples
    --------
    >>> list(portions({"a": 1, "b": 0, "c": 4, "d": 2}, most=3))
    [['c'], ['a', 'c'], ['d']]
    """
    some: list[str] = []
    room = most
    for address, n_left in n_entries.items():
        while n_left > most:
            yield [address]
            n_left -= most
        if n_left > room:
            yield some
            some, room = [], most
        if n_left:
            some.append(address)
            room -= n_left
    if some:
        yield some


def wire_bytes(launch: Launch, iteration: int, cluster: RunningCluster) -> Iterator[pa.Table]:
    """Yield the bytes that workers wrote to each other since the last call.

    Those of workers that share a process are unknown.
    """
    for address, rows in ask(cluster, list(cluster.names), _PAIRS, wire.take):
        if rows and not cluster.shares_processes:
            peers, nbytes, n_messages = map(list, zip(*rows, strict=True))
            yield parts.table(
                WireBytes, **record_keys.keys(launch, iteration), src=cluster.names[address],
                dst=peers, nbytes=nbytes, n_messages=n_messages,
            )  # fmt: skip


def ask(
    cluster: RunningCluster, workers: Sequence[str], most: int, function: Any, *args: Any
) -> Iterator[tuple[str, Any]]:
    """Yield each worker's address and the return value of `function` there, in order.

    Values have at most one entry per worker, and messages at most `most` entries.
    """
    n_at_once = max(1, most // max(1, len(cluster.names)))
    for first in range(0, len(workers), n_at_once):
        some = workers[first : first + n_at_once]
        yield from cluster.client.run(function, *args, workers=some).items()


def links(launch: Launch, backend: Backend, cluster: RunningCluster) -> Iterator[Record | pa.Table]:
    """Yield the addresses and locations of workers, and their connections' transports."""
    common = record_keys.keys(launch)
    for address, name in cluster.names.items():
        yield WorkerAddress(**common, worker=name, address=address)
    yield from conditions.worker_places(launch, cluster, backend.nic_variable)
    list_rows, transport = wire.transports, backend.transport

    def transports(dask_worker: Any) -> list[tuple[str, str, str]]:
        # Arguments are not sent by value, and what a function refers to is.
        return list_rows(transport, dask_worker)

    for address, rows in ask(cluster, list(cluster.names), _PAIRS, transports):
        if rows:
            peers, names, evidence = map(list, zip(*rows, strict=True))
            yield parts.table(
                TransportUsed, **common, src=cluster.names[address], dst=peers, transport=names,
                evidence=evidence, contradiction=[backend.contradiction(name) for name in names],
            )  # fmt: skip
    answers = cluster.client.run(wire.compressions).values()
    settings = {("distributed.comm.compression", name) for names in answers for name in names}
    if cluster.preexisting:
        # Settings of clusters that the launch started are in the case.
        settings |= _settings(backend, cluster)
    for name, value in sorted(settings):
        yield Setting(**common, name=name, value=value)


def _settings(backend: Backend, cluster: RunningCluster) -> set[tuple[str, str]]:
    """Return the workers' settings that `backend` reads: variables, and keys of Dask's."""
    answers = cluster.client.run(_pairs, backend.variables, backend.config_keys).values()
    values = defaultdict(set)
    for name, value in chain.from_iterable(answers):
        values[name].add(environment.without_secrets(name, value))
    return {
        (name, value)
        for name, several in values.items()
        for value in (several if len(several) <= _MAX_VALUES else [f"{len(several)} values"])
    }


def _pairs(variables: tuple[str, ...], keys: tuple[str, ...]) -> list[tuple[str, str]]:
    import dask

    pairs = [(name, text) for name, text in os.environ.items() if name.startswith(variables)]
    for key in keys:
        pairs += _set(key, dask.config.get(key, {}))
    return pairs


def _set(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys at and below `key` that have a value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _set(f"{key}.{name}", inner)
    elif value:
        yield key, str(value)

"""Record all batches of shards that workers send each other in P2P shuffles.

Dask logs no transfers of a P2P shuffle, rechunk or merge. This plugin times each batch at its
sender. The receiver adds the duration of its handler to the answer, so that each duration is the
difference of two readings of one clock.

Like `transfer_log` this module does not import commbench, so that it can be sent by value.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import Any

import dask.sizeof
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import time

_HANDLING = "commbench-handling-s"
_RECEIVE = "shuffle_receive"
_MAX_BATCHES = 1_000_000
"""The most batches that a worker keeps until they are collected."""


class BatchLog(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that logs the batches that the worker sends to others.

    It replaces methods of Dask that are private. Where a version of Dask has none of that name, or
    uses it otherwise, batches are missing in the log, and the shuffle goes on.
    """

    name = "commbench-batch-log"

    def __init__(self) -> None:
        self.batches: deque[dict[str, Any]] = deque(maxlen=_MAX_BATCHES)
        self.n_counted = 0

    def setup(self, worker: Any) -> None:
        """Observe the batches that `worker` sends and receives, if it can shuffle."""
        self._worker = worker
        manager: Any = getattr(worker.extensions.get("shuffle"), "shuffle_runs", None)
        self._receive = receive = worker.handlers.get(_RECEIVE)
        get_or_create: Any = getattr(manager, "get_or_create", None)
        self._manager = None if receive is None or get_or_create is None else manager
        if self._manager is None:
            return

        async def handled(**kwargs: Any) -> Any:
            began = perf_counter()
            answer = await receive(**kwargs)
            with suppress(Exception):
                # Senders without this plugin ignore it.
                answer[_HANDLING] = perf_counter() - began
            return answer

        async def observed(shuffle_id: Any, key: Any) -> Any:
            run = await get_or_create(shuffle_id, key)
            with suppress(Exception):
                # The plugin may have been removed meanwhile.
                in_use = vars(manager).get("get_or_create") is observed
                if in_use and "write" not in vars(run._comm_buffer):
                    self._observe(run, str(key[0] if isinstance(key, tuple) else key))
            return run

        worker.handlers[_RECEIVE] = handled
        manager.get_or_create = observed

    def teardown(self, worker: Any) -> None:
        """Restore the methods that were replaced, also those of shuffles that are under way."""
        if self._manager is None:
            return
        worker.handlers[_RECEIVE] = self._receive
        # This uncovers the methods of the classes.
        del self._manager.get_or_create
        for run in getattr(self._manager, "_runs", ()):
            if "write" in vars(run._comm_buffer):
                del run._comm_buffer.write
                run._comm_buffer.send = run.send

    def _observe(self, run: Any, shuffle: str) -> None:
        """Log the batches of `run`, this worker's part of a shuffle."""
        buffer, queued_at = run._comm_buffer, dict[int, float]()
        write, send, local_address = buffer.write, buffer.send, run.local_address
        observed_at = perf_counter()

        async def queued(data: Any) -> None:
            with suppress(Exception):
                queued_at.update(dict.fromkeys(map(id, data.values()), perf_counter()))
            await write(data)

        async def sent(address: str, shards: Any) -> Any:
            start_s, began = time() + self._worker.scheduler_delay, perf_counter()
            with suppress(Exception):
                # Shards are in the buffer until here, so their ids are unique.
                waited_since = [queued_at.pop(id(shard), observed_at) for shard in shards]
            answer = await send(address, shards)
            seconds = perf_counter() - began
            with suppress(Exception):
                handling_s = answer.pop(_HANDLING, 0.0)
                if answer["status"] == "OK" and address != local_address:
                    self.batches.append(
                        {
                            "receiver": address, "nbytes": _nbytes(shards), "n_keys": len(shards),
                            "start_s": start_s, "stop_s": start_s + seconds - handling_s,
                            "queue_s": began - min(waited_since), "handling_s": handling_s,
                            "shuffle": shuffle,
                        }
                    )  # fmt: skip
            return answer

        buffer.write, buffer.send = queued, sent


def _nbytes(data: Any) -> int:
    """Return the bytes of shards, excluding their lists and tuples.

    For long lists Dask's ``sizeof`` is an estimate.
    """
    if isinstance(data, list | tuple):
        return sum(map(_nbytes, data))
    if isinstance(data, bytes):
        return len(data)
    return int(getattr(data, "nbytes", None) or dask.sizeof.sizeof(data))


def count(dask_worker: Any) -> int:
    """Return the number of batches, and leave later ones for the next call; runs on a worker."""
    log = _log(dask_worker)
    log.n_counted = len(log.batches)
    return log.n_counted


def drain(most: int, dask_worker: Any) -> str:
    """Remove and return the oldest batches that were counted; runs on a worker.

    Parameters
    ----------
    most
        The maximum number of batches to return.

    Returns
    -------
    JSON of an object of lists, one item per batch
        The fields of a ``TransferRecord``, but with the receiver's address; empty without batches.
        The times are on this worker's clock, corrected to the scheduler's.
    """
    log = _log(dask_worker)
    rows = [log.batches.popleft() for _ in range(min(most, log.n_counted, len(log.batches)))]
    log.n_counted -= len(rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return json.dumps(columns, separators=(",", ":"))


def forget(dask_worker: Any) -> None:
    """Clear the log; runs on a worker."""
    _log(dask_worker).batches.clear()


def _log(dask_worker: Any) -> BatchLog:
    # A worker that is closing, or has just joined, has none.
    log: BatchLog = dask_worker.plugins.get(BatchLog.name) or BatchLog()
    return log

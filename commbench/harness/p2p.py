"""Record all batches of shards that workers send each other in P2P shuffles.

Dask logs no transfers of a P2P shuffle, rechunk or merge. This plugin times each batch at its
sender. The receiver adds the duration of its handler to the answer, so that each duration is the
difference of two readings of one clock.

Like `transfers` this module does not import commbench, so that it can be sent by value.
"""

from __future__ import annotations

import json
from collections import deque
from contextvars import ContextVar
from time import perf_counter
from typing import Any

from dask.sizeof import sizeof
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import time

_COLUMNS = (
    "receiver", "nbytes", "start_s", "stop_s", "n_keys", "queue_s", "handling_s", "shuffle",
)  # fmt: skip
_HANDLING = "commbench-handling-s"
_RECEIVE = "shuffle_receive"


class BatchLog(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that logs the batches that the worker sends to others."""

    name = "commbench-batch-log"

    def setup(self, worker: Any) -> None:
        """Observe the batches that `worker` sends and receives, if it can shuffle."""
        self.batches: deque[tuple[Any, ...]] = deque()
        self._worker = worker
        self._waited: ContextVar[tuple[int, float]] = ContextVar("waited")
        self._manager = getattr(worker.extensions.get("shuffle"), "shuffle_runs", None)
        if self._manager is None:
            return
        self._receive = receive = worker.handlers[_RECEIVE]
        get_or_create = self._manager.get_or_create

        async def handled(**kwargs: Any) -> Any:
            began = perf_counter()
            answer = await receive(**kwargs)
            if answer["status"] == "OK":
                # Senders without this plugin ignore it.
                answer[_HANDLING] = perf_counter() - began
            return answer

        async def observed(shuffle_id: Any, key: Any) -> Any:
            run = await get_or_create(shuffle_id, key)
            if "_send" not in vars(run):
                self._observe(run, str(key[0] if isinstance(key, tuple) else key))
            return run

        worker.handlers[_RECEIVE] = handled
        self._manager.get_or_create = observed

    def teardown(self, worker: Any) -> None:
        """Restore the methods that were replaced, also those of shuffles that are under way."""
        if self._manager is None:
            return
        worker.handlers[_RECEIVE] = self._receive
        # This uncovers the methods of the classes.
        del self._manager.get_or_create
        for run in self._manager._runs:
            if "_send" in vars(run):
                del run._send, run._comm_buffer.write
                run._comm_buffer.send = run.send

    def _observe(self, run: Any, shuffle: str) -> None:
        """Log the batches of `run`, this worker's part of a shuffle."""
        buffer, queued_at = run._comm_buffer, dict[int, float]()
        write, send_batch, send = buffer.write, buffer.send, run._send

        async def queued(data: Any) -> None:
            queued_at.update(dict.fromkeys(map(id, data.values()), perf_counter()))
            await write(data)

        async def dequeued(address: str, shards: Any) -> Any:
            now = perf_counter()
            # Shards are in the buffer until here, so their ids are unique.
            oldest = min((queued_at.pop(id(shard), now) for shard in shards), default=now)
            self._waited.set((len(shards), now - oldest))
            return await send_batch(address, shards)

        async def timed(address: str, shards: Any) -> Any:
            start_s, began = time() + self._worker.scheduler_delay, perf_counter()
            answer = await send(address, shards)
            seconds, handling_s = perf_counter() - began, answer.pop(_HANDLING, 0.0)
            if answer["status"] == "OK" and address != run.local_address:
                n_shards, queue_s = self._waited.get((1, 0.0))
                self.batches.append(
                    (
                        address, _nbytes(shards), start_s, start_s + seconds - handling_s,
                        n_shards, queue_s, handling_s, shuffle,
                    )
                )  # fmt: skip
            return answer

        buffer.write, buffer.send, run._send = queued, dequeued, timed


def _nbytes(data: Any) -> int:
    """Return the size of shards without that of the lists and tuples that they are in.

    For long lists Dask's ``sizeof`` is an estimate.
    """
    if isinstance(data, list | tuple):
        return sum(map(_nbytes, data))
    if isinstance(data, bytes):
        return len(data)
    return int(getattr(data, "nbytes", None) or sizeof(data))


def drain(most: int, dask_worker: Any) -> str:
    """Remove and return the oldest batches; runs on a worker.

    Parameters
    ----------
    most
        The maximum number of batches to return.

    Returns
    -------
    JSON of an object of lists, one item per batch
        The receiver's address; bytes; start and stop of the transfer in seconds since the epoch on
        this worker's clock, corrected to the scheduler's; number of shards; seconds for which the
        oldest shard had waited; seconds of the receiver's handler; the shuffle. And under
        ``"n_left"`` the number of further batches.
    """
    batches = dask_worker.plugins[BatchLog.name].batches
    rows = [batches.popleft() for _ in range(min(most, len(batches)))]
    columns = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=False))
    return json.dumps({"n_left": len(batches), **columns}, separators=(",", ":"))


def forget(dask_worker: Any) -> None:
    """Clear the log; runs on a worker."""
    dask_worker.plugins[BatchLog.name].batches.clear()

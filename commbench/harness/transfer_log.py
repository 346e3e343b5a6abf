"""Record all incoming transfers of every worker.

Dask's log keeps the last 1,000 entries, and the number of dropped ones is unknown. This plugin
replaces the log by one of a million, and counts the outcomes of all fetches, to compare the entries
with ``transfer_incoming_count_total``.

Like `wire`, `spill_counters` and `pinning` this module imports nothing of commbench, to be sent by
value.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

MAX_ENTRIES = 1_000_000
"""The most entries that a worker keeps until they are collected; lost ones are counted."""


class TransferLog(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that makes the worker's incoming transfer log longer."""

    name = "commbench-transfer-log"

    def setup(self, worker: Any) -> None:
        """Replace the bounded log of `worker` and count the outcomes of its fetches."""
        self.outcomes: Counter[str] = Counter()
        self.n_counted = 0
        self._bounded = worker.transfer_incoming_log
        worker.transfer_incoming_log = deque(maxlen=MAX_ENTRIES)
        self.n_started_before = worker.state.transfer_incoming_count_total
        gather_dep, outcomes = worker.gather_dep, self.outcomes

        async def counted(*args: Any, **kwargs: Any) -> Any:
            event = await gather_dep(*args, **kwargs)
            outcomes[type(event).__name__] += 1
            return event

        worker.gather_dep = counted

    def teardown(self, worker: Any) -> None:
        """Restore the bounded log of `worker`, with the last entries of the longer one."""
        self._bounded.extend(worker.transfer_incoming_log)
        worker.transfer_incoming_log = self._bounded
        # This uncovers the method of the class.
        del worker.gather_dep


def drain(most: int, dask_worker: Any) -> str:
    """Remove and return the oldest entries that were counted; runs on a worker.

    Parameters
    ----------
    most
        The maximum number of entries to return.

    Returns
    -------
    JSON of an object of lists, one item per entry
        The sender, as an index into ``senders``; bytes in memory; start and stop in seconds since
        the epoch on the worker's clock, corrected to the scheduler's, as Dask logs them; number of
        keys.
    """
    plugin: TransferLog = dask_worker.plugins[TransferLog.name]
    log = dask_worker.transfer_incoming_log
    entries = [log.popleft() for _ in range(min(most, plugin.n_counted, len(log)))]
    plugin.n_counted -= len(entries)
    indices: dict[str, int] = {}
    columns = {
        "sender": [indices.setdefault(entry["who"], len(indices)) for entry in entries],
        "nbytes": [entry["total"] for entry in entries],
        "start_s": [entry["start"] for entry in entries],
        "stop_s": [entry["stop"] for entry in entries],
        "n_keys": [len(entry["keys"]) for entry in entries],
    }
    # Dask's serialization of single entries takes 30 times as long.
    return json.dumps({"senders": list(indices), **columns}, separators=(",", ":"))


def count(dask_worker: Any) -> dict[str, int]:
    """Return the number of fetches since the last call, by outcome; runs on a worker."""
    plugin: TransferLog | None = dask_worker.plugins.get(TransferLog.name)
    if plugin is None:
        # The worker has just joined.
        return dict.fromkeys(("n_started", "n_logged", "n_busy", "n_failed", "n_in_flight"), 0)
    total = dask_worker.state.transfer_incoming_count_total
    counts = {
        "n_started": total - plugin.n_started_before,
        "n_logged": len(dask_worker.transfer_incoming_log),
        "n_busy": plugin.outcomes["GatherDepBusyEvent"],
        "n_failed": plugin.outcomes["GatherDepFailureEvent"]
        + plugin.outcomes["GatherDepNetworkFailureEvent"],
        "n_in_flight": dask_worker.state.transfer_incoming_count,
    }
    # Fetches in flight will be logged in the next window, and count there.
    plugin.n_started_before = total - counts["n_in_flight"]
    plugin.outcomes.clear()
    plugin.n_counted = counts["n_logged"]
    return counts


def forget(dask_worker: Any) -> None:
    """Clear the log and the counts; runs on a worker."""
    count(dask_worker)
    if TransferLog.name in dask_worker.plugins:
        dask_worker.transfer_incoming_log.clear()

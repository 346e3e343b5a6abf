"""Every worker's incoming transfer log, complete.

Dask keeps the last 1,000 entries and does not tell what it dropped. This plugin puts an
unbounded log in the place of the bounded one, and counts what became of every fetch, so that
entries can be checked against ``transfer_incoming_count_total``.

Like `wire` and `spill` this module imports nothing of commbench: it may be sent by value.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin


class TransferLog(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that keeps the worker's incoming transfer log whole."""

    name = "commbench-transfer-log"

    def setup(self, worker: Any) -> None:
        """Replace the bounded log of `worker` and count the outcomes of its fetches."""
        self.outcomes: Counter[str] = Counter()
        self.n_counted = 0
        self._bounded = worker.transfer_incoming_log
        worker.transfer_incoming_log = deque()
        self.n_started_before = worker.state.transfer_incoming_count_total
        gather_dep, outcomes = worker.gather_dep, self.outcomes

        async def counted(*args: Any, **kwargs: Any) -> Any:
            event = await gather_dep(*args, **kwargs)
            outcomes[type(event).__name__] += 1
            return event

        worker.gather_dep = counted

    def teardown(self, worker: Any) -> None:
        """Give `worker` its own log back, with what the unbounded one still holds."""
        self._bounded.extend(worker.transfer_incoming_log)
        worker.transfer_incoming_log = self._bounded
        # What remains is the class's own.
        del worker.gather_dep


def drain(most: int, dask_worker: Any) -> str:
    """Remove and return the oldest entries that were counted; runs on a worker.

    Parameters
    ----------
    most
        How many entries to return at the most.

    Returns
    -------
    JSON of an object of lists, one item per entry
        Who sent it, as a place in ``senders``; bytes in memory; start and stop in seconds since the
        epoch on the worker's own clock corrected to the scheduler's, as Dask logs them; number of
        keys.
    """
    plugin: TransferLog = dask_worker.plugins[TransferLog.name]
    log = dask_worker.transfer_incoming_log
    entries = [log.popleft() for _ in range(min(most, plugin.n_counted, len(log)))]
    plugin.n_counted -= len(entries)
    places: dict[str, int] = {}
    columns = {
        "sender": [places.setdefault(entry["who"], len(places)) for entry in entries],
        "nbytes": [entry["total"] for entry in entries],
        "start_s": [entry["start"] for entry in entries],
        "stop_s": [entry["stop"] for entry in entries],
        "n_keys": [len(entry["keys"]) for entry in entries],
    }
    # Entry by entry, Dask's own serialization takes 30 times as long.
    return json.dumps({"senders": list(places), **columns}, separators=(",", ":"))


def count(dask_worker: Any) -> dict[str, int]:
    """Return how many fetches began since the last call and how they ended; runs on a worker."""
    plugin: TransferLog = dask_worker.plugins[TransferLog.name]
    total = dask_worker.state.transfer_incoming_count_total
    counts = {
        "n_started": total - plugin.n_started_before,
        "n_logged": len(dask_worker.transfer_incoming_log),
        "n_busy": plugin.outcomes["GatherDepBusyEvent"],
        "n_failed": plugin.outcomes["GatherDepFailureEvent"]
        + plugin.outcomes["GatherDepNetworkFailureEvent"],
        "n_in_flight": dask_worker.state.transfer_incoming_count,
    }
    # What is still in flight belongs to the next window, in which it will be logged.
    plugin.n_started_before = total - counts["n_in_flight"]
    plugin.outcomes.clear()
    plugin.n_counted = counts["n_logged"]
    return counts


def forget(dask_worker: Any) -> None:
    """Forget what was logged and counted so far; runs on a worker."""
    count(dask_worker)
    dask_worker.transfer_incoming_log.clear()

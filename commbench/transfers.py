"""Collect every worker's incoming transfer log, complete and without bounding memory.

Dask keeps the last 1,000 entries and does not tell what it dropped. This plugin puts an
unbounded log in the place of the bounded one, and counts what became of every fetch, so that
entries can be checked against ``transfer_incoming_count_total``.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from commbench.model import LogCount, TransferRecord

CHUNK = 20_000
"""Log entries that all workers together send at a time: bounds memory on the way and here."""


class TransferLog(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that keeps the worker's incoming transfer log whole."""

    name = "commbench-transfer-log"

    def setup(self, worker: Any) -> None:
        """Replace the bounded log of `worker` and count the outcomes of its fetches."""
        self.outcomes: Counter[str] = Counter()
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


def drain(limits: Mapping[str, int], dask_worker: Any) -> str:
    """Remove and return the oldest entries of the log; runs on a worker.

    Parameters
    ----------
    limits
        By address how many entries each worker gives at most.

    Returns
    -------
    list of [address of the sender, bytes in memory, start, stop, number of keys], as JSON
        Start and stop in seconds since the epoch on the worker's own clock corrected to the
        scheduler's, as Dask logs them.
    """
    log, limit = dask_worker.transfer_incoming_log, limits[dask_worker.address]
    rows: list[tuple[str, int, float, float, int]] = []
    while log and len(rows) < limit:
        entry = log.popleft()
        rows.append(
            (entry["who"], entry["total"], entry["start"], entry["stop"], len(entry["keys"]))
        )
    # Entry by entry, Dask's own serialization takes 30 times as long.
    return json.dumps(rows)


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
    return counts


def collect(
    client: Any, names: Mapping[str, str], *, case_id: str, launch: int, iteration: int
) -> Iterator[TransferRecord | LogCount]:
    """Yield all that the workers logged since the last collection: counts first, then transfers.

    Parameters
    ----------
    client
        A connected client of a cluster with ``TransferLog`` registered.
    names
        The worker's name by its address.
    """
    where: dict[str, Any] = {"case_id": case_id, "launch": launch, "iteration": iteration}
    counts = client.run(count, workers=list(names))
    for address, name in names.items():
        yield LogCount(**where, worker=name, **counts[address])
    for limits in portions({address: counts[address]["n_logged"] for address in names}):
        for address, answer in client.run(drain, limits, workers=list(limits)).items():
            for who, nbytes, start, stop, n_keys in json.loads(answer):
                yield TransferRecord(
                    **where, src=names.get(who, who), dst=names[address],
                    nbytes=nbytes, start_s=start, stop_s=stop, n_keys=n_keys,
                )  # fmt: skip


def portions(n_entries: Mapping[str, int], most: int = CHUNK) -> Iterator[dict[str, int]]:
    """Yield how many entries to ask which workers for, `most` of them at a time.

    Examples
    --------
    >>> list(portions({"a": 1, "b": 0, "c": 4}, most=3))
    [{'a': 1, 'c': 2}, {'c': 2}]
    """
    portion: dict[str, int] = {}
    room = most
    for address, remaining in n_entries.items():
        while remaining > 0:
            portion[address] = min(remaining, room)
            remaining -= portion[address]
            room -= portion[address]
            if room == 0:
                yield portion
                portion, room = {}, most
    if portion:
        yield portion

"""Collect every worker's incoming transfer log, complete and without bounding memory.

Dask keeps the last 1,000 entries and does not tell what it dropped. This plugin puts an
unbounded log in the place of the bounded one, and counts what became of every fetch, so that
entries can be checked against ``transfer_incoming_count_total``.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from commbench.model import LogCount, TransferRecord
from commbench.store.parts import Batch

CHUNK = 20_000
"""Log entries that all workers together send at a time: bounds memory on the way and here."""


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


def collect(
    client: Any, names: Mapping[str, str], *, case_id: str, launch: int, iteration: int
) -> Iterator[LogCount | Batch]:
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
    for address, answer in _answers(client, {each: counts[each]["n_logged"] for each in names}):
        columns = json.loads(answer)
        senders = [names.get(who, who) for who in columns.pop("senders")]
        src = [senders[place] for place in columns.pop("sender")]
        yield Batch.of(
            TransferRecord, **where, src=src, dst=names[address], **columns, channel="gather"
        )


def _answers(client: Any, n_entries: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the workers' entries by address; while one message is used, the next is on its way."""
    with ThreadPoolExecutor(1) as asker:
        on_its_way: Future[dict[str, str]] | None = None
        for addresses in portions(n_entries):
            last = on_its_way
            on_its_way = asker.submit(client.run, drain, CHUNK, workers=addresses)
            if last is not None:
                yield from last.result().items()
        if on_its_way is not None:
            yield from on_its_way.result().items()


def portions(n_entries: Mapping[str, int], most: int = CHUNK) -> Iterator[list[str]]:
    """Yield which workers to ask together for up to `most` entries each, and `most` in all.

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

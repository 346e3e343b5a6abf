"""Fetches between all pairs of workers by size, one pair at a time and all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commbench.analysis.run import Run
from commbench.model import FETCHES
from commbench.model.units import format_bandwidth, format_message_size, format_seconds
from commbench.reports.sections.cells import Section, Table, counts, quantity

if TYPE_CHECKING:
    import pandas as pd

_ALONE = (
    "one pair at a time",
    "Time: mean over the pairs of one fetch with nothing else under way, and of it the median over "
    "launches of each launch's median",
    "bandwidth: block / time, so that slow pairs weigh as much as their time does",
)
_TOGETHER = (
    "all pairs at once",
    "Time: from the first fetch's start to the last one's end, and of it the median over launches "
    "of each launch's median",
    "bandwidth: the blocks of all pairs / time",
)


def tables(run: Run) -> Iterator[Table]:
    """Yield a table for either way of every all-to-all that was measured."""
    found = run.costs[run.costs["layer"].isin(FETCHES)]
    tasks = found["case_id"].map(run.case_labels)
    for (task, layer), group in found.groupby([tasks, "layer"], sort=False):
        yield _by_size(run, str(task), group, _ALONE if layer == "alone" else _TOGETHER)


def _by_size(run: Run, task: str, group: pd.DataFrame, words: tuple[str, ...]) -> Table:
    way, *meaning = words
    backends = list(dict.fromkeys(group["backend"]))
    sizes = block_bytes(run, group)
    cells = {
        (size, row.backend): (
            quantity(format_seconds, row.median_s),
            quantity(format_bandwidth, row.throughput_Bps),
        )
        for size, row in zip(sizes, group.itertuples(), strict=True)
    }
    return Table(
        f"{task}, {way}",
        ("block", *(f"{name}\n{what}" for name in backends for what in ("time", "bandwidth"))),
        tuple(
            (
                quantity(format_message_size, size),
                *(text for name in backends for text in cells.get((size, name), ("—", "—"))),
            )
            for size in sorted(set(sizes))
        ),
        f"{'; '.join(meaning)} ({counts(group)}).",
    )


def block_bytes(run: Run, summaries: pd.DataFrame) -> list[int]:
    """Return the size of one block in each row of all-to-all's `summaries`."""
    workers = {case.id: case.cluster.n_workers for case in run.suite.cases}
    return [
        int(row.payload_bytes) // (n * (n - 1) if row.layer == "together" else 1)
        for row in summaries.itertuples()
        for n in (workers[row.case_id],)
    ]


SECTION = Section(title="All-to-all", position=60, tables=tables)

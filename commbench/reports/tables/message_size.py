"""Latency, bandwidth and CPU time by message size, backend beside backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commbench.reports.content import Content
from commbench.reports.tables.cells import Table, counts, number, warmup
from commbench.units import format_bandwidth, format_message_size, format_seconds

if TYPE_CHECKING:
    import pandas as pd


def tables(content: Content) -> Iterator[Table]:
    """Yield the tables of every ping-pong and layer."""
    table = content.summaries[content.summaries["workload"] == "pingpong"]
    tasks = table["case_id"].map(content.tasks)
    for (task, layer), group in table.groupby([tasks, "layer"], sort=False):
        idle = {row.backend: number(row.idle_cores) for row in group.itertuples()}
        yield _by_size(
            f"{task}, {layer} layer: latency",
            group,
            lambda row: format_seconds(row.median_s),
            "Half the round trip: the median over launches of each launch's median "
            f"({counts(group)}). Idle cores: "
            + ", ".join(f"{name} {cores}" for name, cores in idle.items())
            + "."
            + warmup(group),
        )
        yield _by_size(
            f"{task}, {layer} layer: bandwidth",
            group,
            lambda row: format_bandwidth(row.throughput_Bps),
            "Message size / latency: one message at a time, in one direction at a time.",
        )
        yield _by_size(
            f"{task}, {layer} layer: CPU time of one message, both processes",
            group,
            lambda row: format_seconds(row.cpu_s / 2),
            "Half of what the round trip costs.",
        )


def _by_size(title: str, group: pd.DataFrame, cell: Any, note: str) -> Table:
    backends = list(dict.fromkeys(group["backend"]))
    found = {(row.backend, row.payload_bytes): cell(row) for row in group.itertuples()}
    sizes = sorted(group["payload_bytes"].unique())
    return Table(
        title,
        ("size", *backends),
        tuple(
            (format_message_size(int(size)), *(found.get((name, size), "—") for name in backends))
            for size in sizes
        ),
        note,
    )

"""Latency, bandwidth and CPU time by message size, backend beside backend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import LAYERS, Case
from commbench.model.units import format_bandwidth, format_message_size, format_seconds
from commbench.reports.sections.cells import (
    Quantity,
    Section,
    Table,
    counts,
    number,
    quantity,
    warmup,
)

if TYPE_CHECKING:
    import pandas as pd


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables of every ping-pong and layer."""
    table = run.costs[run.costs["layer"].isin(LAYERS)]
    cases = {case.id: case for case in run.suite.cases}
    modes = {case_id: stats.mode_of(case) for case_id, case in cases.items()}
    depth = table["layer"].map({layer: place for place, layer in enumerate(LAYERS)})
    table = table.loc[depth.sort_values(kind="stable").index]
    tasks, mode_of = table["case_id"].map(run.case_labels), table["case_id"].map(modes)
    for (task, mode, layer), group in table.groupby([tasks, mode_of, "layer"], sort=False):
        title = f"{task}, {layer} layer"
        median = f"the median over launches of each launch's median ({counts(group)})"
        if mode == "latency":
            yield from _of_latency(title, group, layer, median)
        elif mode == "loaded-latency":
            yield from _under_load(title, group, median, run)
        elif mode == "multi-pair":
            yield from _of_pairs(title, group, median, cases[group["case_id"].iloc[0]])
        else:
            window = cases[group["case_id"].iloc[0]].params.get("window")
            yield from _of_windows(title, group, mode, median, window)
        if group["cpu_s"].notna().any():
            yield _by_size(
                f"{title}: CPU time of one message, {_whose(layer, mode)}"
                + (f", mode {mode}" if mode != "latency" else ""),
                group,
                lambda row: quantity(format_seconds, row.cpu_s),
                "Of all messages of a size, over their number.",
            )


def _whose(layer: str, mode: str) -> str:
    if mode == "multi-pair":
        return "its share of all processes'"
    return {"memcpy": "one process", "worker": "both workers"}.get(layer, "both processes")


_IS = {
    "memcpy": "One copy within a process, called from Python: ",
    "worker": "One fetch, from the request to the data: ",
}
_MOVES = {
    "memcpy": "Message size / time of a copy.",
    "worker": "Message size / time of a fetch: one at a time.",
}


def _of_latency(title: str, group: pd.DataFrame, layer: str, median: str) -> Iterator[Table]:
    idle = {row.backend: number(row.idle_cores) for row in group.itertuples()}
    yield _by_size(
        f"{title}: latency",
        group,
        lambda row: quantity(format_seconds, row.median_s),
        _IS.get(layer, "Half the round trip: ") + f"{median}. Idle cores: "
        + ", ".join(f"{name} {cores}" for name, cores in idle.items()) + "." + warmup(group),
    )  # fmt: skip
    yield _by_size(
        f"{title}: bandwidth",
        group,
        lambda row: quantity(format_bandwidth, row.throughput_Bps),
        _MOVES.get(
            layer, "Message size / latency: one message at a time, in one direction at a time."
        ),
    )


def _under_load(title: str, group: pd.DataFrame, median: str, run: Run) -> Iterator[Table]:
    (size,) = {
        case.params["load_size"] for case in run.suite.cases if case.id in set(group["case_id"])
    }
    loads = stats.load_bandwidths(run)
    moved = {
        row.backend: format_bandwidth(loads.get((row.case_id, row.layer), math.nan))
        for row in group.itertuples()
    }
    yield _by_size(
        f"{title}: latency under load",
        group,
        lambda row: quantity(format_seconds, row.median_s),
        f"Half the round trip, while messages of {format_message_size(size)} stream to the peer "
        f"over a second connection: {median}. The load moved "
        + ", ".join(f"{bandwidth} ({name})" for name, bandwidth in moved.items())
        + ": latencies under different loads are not each other's equals." + warmup(group),
    )  # fmt: skip


def _of_windows(
    title: str, group: pd.DataFrame, mode: str, median: str, window: int | None
) -> Iterator[Table]:
    both = ", both directions counted" if mode == "bidirectional" else ""
    note = (
        f"Windows of {window} messages, each acknowledged{both}: {median}; one sample is one "
        "window's time over its messages. "
    )
    if mode == "message-rate":
        yield _by_size(
            f"{title}: messages per second",
            group,
            _rate,
            note + "1 / that time." + warmup(group),
        )
    else:
        yield _by_size(
            f"{title}: {mode if mode == 'bandwidth' else 'bidirectional bandwidth'} of a stream",
            group,
            lambda row: quantity(format_bandwidth, row.throughput_Bps),
            note + "Message size / that time." + warmup(group),
        )


def _of_pairs(title: str, group: pd.DataFrame, median: str, case: Case) -> Iterator[Table]:
    n_pairs, window = case.params["pairs"], case.params["window"]
    yield _by_size(
        f"{title}: bandwidth of {n_pairs} pairs together",
        group,
        lambda row: quantity(format_bandwidth, row.throughput_Bps),
        f"{2 * n_pairs} processes, each pair in windows of {window} messages, each acknowledged: "
        f"{median}; one sample is the time in which all pairs streamed over the messages that all "
        "of them sent in it. Message size / that time.",
    )
    yield _by_size(
        f"{title}: messages per second of {n_pairs} pairs together",
        group,
        _rate,
        "1 / that time.",
    )


def _rate(row: Any) -> str:
    rate = 1 / row.median_s if row.median_s > 0 else math.nan
    return Quantity("—" if math.isnan(rate) else f"{rate:,.0f}", rate)


def _by_size(title: str, group: pd.DataFrame, cell: Any, note: str) -> Table:
    backends = list(dict.fromkeys(group["backend"]))
    found = {(row.backend, row.payload_bytes): cell(row) for row in group.itertuples()}
    sizes = sorted(group["payload_bytes"].unique())
    return Table(
        title,
        ("size", *backends),
        tuple(
            (
                quantity(format_message_size, int(size)),
                *(found.get((name, size), "—") for name in backends),
            )
            for size in sizes
        ),
        note,
    )


SECTION = Section(title="By message size", position=50, tables=tables, figures=("message-size",))

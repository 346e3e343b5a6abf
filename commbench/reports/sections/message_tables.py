"""Tables of message times: by size, by layer, and between all pairs of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import FETCHES, LAYERS, Case
from commbench.model.units import format_bandwidth, format_message_size, format_seconds
from commbench.reports.sections import (
    Quantity,
    Section,
    Table,
    by_size,
    counts,
    idle_cores,
    median_bandwidth,
    median_rate,
    median_time,
    quantities,
    quantity,
    warmup,
)

_MAX_SIZES = 7
"""The maximum sizes of messages in the opening, and in a table of layers."""


def tables_by_size(run: Run) -> Iterator[Table]:
    """Yield the tables of every ping-pong and layer."""
    table = run.costs[run.costs["layer"].isin(LAYERS)]
    modes = {case_id: stats.pingpong_mode(case) for case_id, case in run.cases.items()}
    table = table.sort_values("layer", key=lambda names: names.map(LAYERS.index), kind="stable")
    keys = [table["case_id"].map(run.case_labels), table["case_id"].map(modes), "layer"]
    for (task, mode, layer), group in table.groupby(keys, sort=False):
        case = run.cases[group["case_id"].iloc[0]]
        for what, texts, note in _columns_by_size(run, case, mode, layer, group):
            cells = zip(zip(group.payload_bytes, group.backend, strict=True), texts, strict=True)
            yield by_size(f"{task}, {layer} layer: {what}", dict(cells), note)


_IS = {
    "memcpy": "One copy within a process, called from Python: ",
    "worker": "One fetch, from the request to the data: ",
}
_MOVES = {
    "memcpy": "Message size / time of a copy.",
    "worker": "Message size / time of a fetch: one at a time.",
}
_BY_CPU = {"memcpy": "one process", "worker": "both workers"}


def _columns_by_size(
    run: Run, case: Case, mode: str, layer: str, group: pd.DataFrame
) -> Iterator[tuple[str, Iterable[str], str]]:
    """Yield the subject, the cells and the note of each table of one mode."""
    median = f"the median over launches of each launch's median ({counts(group)})"
    times = [median_time(row) for row in group.itertuples()]
    bandwidths = [median_bandwidth(row) for row in group.itertuples()]
    rates = [median_rate(row, 1, _format_rate) for row in group.itertuples()]
    params = case.params
    windows = f"windows of {params.get('window')} messages, each acknowledged"
    if mode == "latency":
        idle = {row.backend: idle_cores(row.idle_cores) for row in group.itertuples()}
        cores = ", ".join(f"{name} {text}" for name, text in idle.items())
        cores = f" Cores in use while nothing is sent: {cores}."
        measured = {*run.costs.loc[run.costs["case_id"] == case.id, "layer"]}
        # Of these the first is measured: others have other processes, or wait in another way.
        first = next((each for each in ("coroutine", "comm") if each in measured), "")
        cores *= layer == first or measured == {"worker"}
        what = _IS.get(layer, "Half the round trip: ")
        note = f"{what}{median}.{cores}{warmup(group)}"
        yield "latency", times, note
        one_way = "Message size / latency: one message at a time, in one direction at a time."
        yield "bandwidth", bandwidths, _MOVES.get(layer, one_way)
    elif mode == "loaded-latency":
        loads = stats.load_bandwidths(run)
        moved = {
            row.backend: format_bandwidth(loads.get((row.case_id, row.layer), math.nan))
            for row in group.itertuples()
        }
        load = ", ".join(f"{bandwidth} ({name})" for name, bandwidth in moved.items())
        note = (
            f"Half the round trip, while messages of {format_message_size(params['load_size'])} "
            f"stream to the peer over a second connection: {median}. The load moved {load}: "
            f"latencies under different loads are not each other's equals.{warmup(group)}"
        )
        yield "latency under load", times, note
    elif mode == "multi-pair":
        n_pairs = params["pairs"]
        note = (
            f"{2 * n_pairs} processes, each pair in {windows}: {median}; one sample is the time in "
            "which all pairs streamed over the messages that all of them sent in it. Message size "
            "/ that time."
        )
        yield f"bandwidth of {n_pairs} pairs together", bandwidths, note
        yield f"messages per second of {n_pairs} pairs together", rates, "1 / that time."
    else:
        kind = "bandwidth" if mode == "bandwidth" else "bidirectional bandwidth"
        what, texts, meaning = f"{kind} of a stream", bandwidths, "Message size / that time."
        if mode == "message-rate":
            what, texts, meaning = "messages per second", rates, "1 / that time."
        both = ", both directions counted" if mode == "bidirectional" else ""
        note = (
            f"{windows.capitalize()}{both}: {median}; one sample is one window's time over its "
            f"messages. {meaning}{streaming_tools(run, group)}{warmup(group)}"
        )
        yield what, texts, note
    if group["cpu_s"].notna().any():
        by = (
            "its share of all processes'"
            if mode == "multi-pair"
            else _BY_CPU.get(layer, "both processes")
        )
        named = f", mode {mode}" if mode != "latency" else ""
        texts = quantities(format_seconds, group.cpu_s)
        note = (
            "Of all messages of a size, over their number. Messages are also prepared and checked, "
            "which the time of a message leaves out."
        )
        yield f"CPU time of one message, {by}{named}", texts, note


def _format_rate(rate: float) -> str:
    return "—" if math.isnan(rate) else f"{rate:,.{0 if rate >= 100 else 2}f}"


def opening_by_size(run: Run) -> Iterator[Table]:
    """Yield the first table, mostly of latency, of the layer closest to Dask's users."""
    if len({*run.case_labels.values()}) > 1:
        return
    by_layer = {table.title.rpartition(":")[0]: table for table in reversed([*tables_by_size(run)])}
    for table in [*by_layer.values()][:1]:
        yield _shortened(table)


def _shortened(table: Table) -> Table:
    """Return the rows of some sizes, with the smallest and the largest, and no explanation."""
    shown = stats.shown_sizes([*range(len(table.rows))], _MAX_SIZES)
    return replace(table, rows=tuple(table.rows[number] for number in shown), note="")


def all_to_all_opening(run: Run) -> Iterator[Table]:
    """Yield the times of one task without their explanation."""
    if len({*run.case_labels.values()}) == 1:
        yield from map(_shortened, all_to_all_tables(run))


BY_SIZE = Section(
    title="By message size",
    position=50,
    tables=tables_by_size,
    figures=("message-size",),
    opening=opening_by_size,
    to_read="Small messages are about latency, large ones about bandwidth; where two lines cross, "
    "the better backend changes.",
    not_to_conclude="How fast a computation is: it moves many messages at once, and computes "
    "meanwhile.",
)


def tables_by_layer(run: Run) -> Iterator[Table]:
    """Yield a table per task that has at least two layers."""
    table = run.additions
    for task, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        yield _layer_table(run, str(task), group)


def _layer_table(run: Run, task: str, group: pd.DataFrame) -> Table:
    layers = [layer for layer in LAYERS if layer in set(group["layer"])]
    all_sizes = sorted(group["payload_bytes"].unique())
    sizes = stats.shown_sizes(all_sizes, _MAX_SIZES)
    row_by_key = {(row.payload_bytes, row.backend, row.layer): row for row in group.itertuples()}
    # This is the order of the suite, because rows were sorted by layer with a stable sort.
    backends = dict.fromkeys(group[group["payload_bytes"].isin(sizes)]["backend"])
    rows = []
    for size in sizes:
        for index, backend in enumerate(backends):
            cells = [_layer_cell(row_by_key.get((size, backend, layer))) for layer in layers]
            rows.append(
                ("" if index else quantity(format_message_size, int(size)), backend, *cells)
            )
    few = f"{len(sizes)} of {len(all_sizes)} sizes; csv has all. " if sizes != all_sizes else ""
    return Table(
        f"{task}: where the time of a message goes, and what each layer adds",
        ("size", "backend", *layers),
        tuple(rows),
        f"Each cell: the time of one message ({counts(group)}) and below it the difference to the "
        "layer to its left, positive (+) or negative (−: this layer is faster). (?): the two "
        "intervals overlap, or there is none. "
        + "—, below: launches split into two modes. "
        * any("\n—" in cell for row in rows for cell in row)
        + few
        + _layer_meaning(run, layers, group),
        text_columns=frozenset({"backend"}),
    )


def _layer_cell(row: Any) -> str:
    if row is None:
        return "—"
    time = median_time(row)
    if math.isnan(row.added_s):
        return Quantity(f"{time}\n—", row.median_s) if row.below else time
    sign = "−" if row.added_s < 0 else "+"
    added = f"{sign}{format_seconds(abs(row.added_s))}{'' if row.apart else ' (?)'}"
    return Quantity(f"{time}\n{added}", row.median_s)


def _layer_meaning(run: Run, layers: list[str], group: pd.DataFrame) -> str:
    words = {
        "memcpy": "memcpy: one copy within a process, called from Python.",
        "raw": "raw: the transport without Python's event loop: that of tcp is called from "
        "Python, that of ucx and mpi runs in C.",
        "coroutine": "coroutine: the backend's own send and receive, awaited.",
        "comm": "comm: Dask's write and read, with serialization.",
        "worker": "worker: a fetch, which is a request and its answer; not halved.",
    }
    said = [words[layer] for layer in layers]
    said += [
        f"raw of {backends} is {tool}, whose payloads can't be verified; progress modes make no "
        "difference to it."
        for tool, backends in _tools(run, group)
    ]
    return " ".join(said)


def _tools(run: Run, table: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield each tool that measured a layer of the table, and the names of its backends."""
    samples = run.samples[run.samples["case_id"].isin(table["case_id"])]
    samples = samples[(samples["tool"] != "") & samples["layer"].isin(table["layer"])]
    for tool, rows in samples.groupby("tool"):
        variants = (run.cases[case_id].variant for case_id in rows["case_id"].unique())
        yield str(tool), " and ".join(sorted({name.partition(":")[0] for name in variants}))


def streaming_tools(run: Run, table: pd.DataFrame) -> str:
    """Return sentences on the tools that measured streams of the table, or an empty string."""
    return "".join(
        f" raw of {backends} is {tool}: no message is acknowledged, and one sample is the mean of "
        "a launch."
        for tool, backends in _tools(run, table)
    )


BY_LAYER = Section(
    title="What each layer adds",
    position=40,
    tables=tables_by_layer,
    figures=("layers",),
    to_read="A part of a bar is what its layer adds; the numbers are the whole time at each layer. "
    "A layer need not be built on the one below it: one that takes longer than a layer above has "
    "a line to its time.",
    not_to_conclude="That what the layer worker adds is the wire: a whole cluster is running "
    "there, and a fetch waits for its turn on the cores. Nor that raw compares the transports: "
    "that of tcp is called from Python, that of ucx and mpi runs in C.",
)


def all_to_all_tables(run: Run) -> Iterator[Table]:
    """Yield the tables of fetches: one pair at a time, all at once, or in rounds."""
    table = run.costs[run.costs["layer"].isin([*FETCHES])]
    tasks = table["case_id"].map(run.case_labels)
    for (task, layer), group in table.groupby([tasks, "layer"], sort=False):
        cells: dict[tuple[int, str], str] = {}
        for row in group.itertuples():
            size = run.message_bytes(row.case_id, layer, row.payload_bytes)
            cells[size, f"{row.backend}\ntime"] = median_time(row)
            cells[size, f"{row.backend}\nbandwidth"] = median_bandwidth(row)
        yield by_size(
            f"{task}, {FETCHES[layer]}", cells, f"{_FETCH_TIMES[layer]} ({counts(group)}).", "block"
        )


_FETCH_TIMES = {
    "alone": "Time: mean over the pairs that fetched alone, with nothing else under way, and of it "
    "the median over launches of each launch's median; bandwidth: block / time, so that slow pairs "
    "weigh as much as their time does",
    "together": "Time: from the first fetch's start to the last one's end, and of it the median "
    "over launches of each launch's median; bandwidth: the blocks of all pairs / time",
    "rounds": "Time: mean over the pairs of one fetch while pairs of other hosts fetch, and of it "
    "the median over launches of each launch's median; bandwidth: block / time",
}
"""The meaning of the numbers of fetches, by layer."""


ALL_TO_ALL = Section(
    title="Fetches between workers",
    position=60,
    tables=all_to_all_tables,
    opening=all_to_all_opening,
    to_read="One pair at a time, nothing else is under way: it is what a link and its two ends "
    "can do. All pairs at once, every worker fetches from every other; in rounds, from one.",
    not_to_conclude="That a backend that is slow with all pairs at once has a slow link: all "
    "fetches share the cores of a host.",
)

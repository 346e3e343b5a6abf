"""Tables of message times: by size, by layer, and between all pairs of workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

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
    median_time,
    number,
    quantities,
    quantity,
    warmup,
)

if TYPE_CHECKING:
    import pandas as pd


def tables_by_size(run: Run) -> Iterator[Table]:
    """Yield the tables of every ping-pong and layer."""
    table = run.costs[run.costs["layer"].isin(LAYERS)]
    cases = {case.id: case for case in run.suite.cases}
    modes = {case_id: stats.pingpong_mode(case) for case_id, case in cases.items()}
    depth = table["layer"].map({layer: index for index, layer in enumerate(LAYERS)})
    table = table.loc[depth.sort_values(kind="stable").index]
    keys = [table["case_id"].map(run.case_labels), table["case_id"].map(modes), "layer"]
    for (task, mode, layer), group in table.groupby(keys, sort=False):
        title = f"{task}, {layer} layer"
        median = f"the median over launches of each launch's median ({counts(group)})"
        case = cases[group["case_id"].iloc[0]]
        if mode == "latency":
            yield from _latency_tables(title, group, layer, median)
        elif mode == "loaded-latency":
            yield _loaded_latency_table(title, group, median, case, run)
        elif mode == "multi-pair":
            yield from _multi_pair_tables(title, group, median, case)
        else:
            yield _window_table(title, group, mode, median, case)
        if group["cpu_s"].notna().any():
            yield by_size(
                f"{title}: CPU time of one message, {_cpu_scope(layer, mode)}"
                + (f", mode {mode}" if mode != "latency" else ""),
                _cells(group, quantities(format_seconds, group.cpu_s)),
                "Of all messages of a size, over their number.",
            )


def _cells(group: pd.DataFrame, texts: Iterable[str]) -> dict[tuple[int, str], str]:
    return dict(zip(zip(group.payload_bytes, group.backend, strict=True), texts, strict=True))


def _rate(seconds: float) -> str:
    rate = 1 / seconds if seconds > 0 else math.nan
    return Quantity("—" if math.isnan(rate) else f"{rate:,.0f}", rate)


def _cpu_scope(layer: str, mode: str) -> str:
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


def _latency_tables(title: str, group: pd.DataFrame, layer: str, median: str) -> Iterator[Table]:
    idle = {row.backend: number(row.idle_cores) for row in group.itertuples()}
    yield by_size(
        f"{title}: latency",
        _cells(group, map(median_time, group.itertuples())),
        _IS.get(layer, "Half the round trip: ") + f"{median}. Idle cores: "
        + ", ".join(f"{name} {cores}" for name, cores in idle.items()) + "." + warmup(group),
    )  # fmt: skip
    one_way = "Message size / latency: one message at a time, in one direction at a time."
    bandwidths = quantities(format_bandwidth, group.throughput_Bps)
    yield by_size(f"{title}: bandwidth", _cells(group, bandwidths), _MOVES.get(layer, one_way))


def _loaded_latency_table(
    title: str, group: pd.DataFrame, median: str, case: Case, run: Run
) -> Table:
    loads = stats.load_bandwidths(run)
    moved = {
        row.backend: format_bandwidth(loads.get((row.case_id, row.layer), math.nan))
        for row in group.itertuples()
    }
    size = format_message_size(case.params["load_size"])
    return by_size(
        f"{title}: latency under load",
        _cells(group, map(median_time, group.itertuples())),
        f"Half the round trip, while messages of {size} stream to the peer "
        f"over a second connection: {median}. The load moved "
        + ", ".join(f"{bandwidth} ({name})" for name, bandwidth in moved.items())
        + ": latencies under different loads are not each other's equals." + warmup(group),
    )  # fmt: skip


def _window_table(title: str, group: pd.DataFrame, mode: str, median: str, case: Case) -> Table:
    if mode == "message-rate":
        what, meaning = "messages per second", "1 / that time."
        texts: Iterable[str] = map(_rate, group.median_s)
    else:
        kind = "bandwidth" if mode == "bandwidth" else "bidirectional bandwidth"
        what, meaning = f"{kind} of a stream", "Message size / that time."
        texts = quantities(format_bandwidth, group.throughput_Bps)
    both = ", both directions counted" if mode == "bidirectional" else ""
    return by_size(
        f"{title}: {what}",
        _cells(group, texts),
        f"Windows of {case.params.get('window')} messages, each acknowledged{both}: {median}; one "
        f"sample is one window's time over its messages. {meaning}{warmup(group)}",
    )


def _multi_pair_tables(title: str, group: pd.DataFrame, median: str, case: Case) -> Iterator[Table]:
    n_pairs, window = case.params["pairs"], case.params["window"]
    yield by_size(
        f"{title}: bandwidth of {n_pairs} pairs together",
        _cells(group, quantities(format_bandwidth, group.throughput_Bps)),
        f"{2 * n_pairs} processes, each pair in windows of {window} messages, each acknowledged: "
        f"{median}; one sample is the time in which all pairs streamed over the messages that all "
        "of them sent in it. Message size / that time.",
    )
    yield by_size(
        f"{title}: messages per second of {n_pairs} pairs together",
        _cells(group, map(_rate, group.median_s)),
        "1 / that time.",
    )


BY_SIZE = Section(
    title="By message size", position=50, tables=tables_by_size, figures=("message-size",)
)


_MAX_SIZES = 7
"""The maximum sizes in a table of layers."""


def tables_by_layer(run: Run) -> Iterator[Table]:
    """Yield a table per task that has at least two layers."""
    table = stats.additions(run, run.costs)
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
        "intervals overlap, or there is none. " + few + _layer_meaning(run, layers, group),
        text_columns=frozenset({"backend"}),
    )


def _layer_cell(row: Any) -> str:
    if row is None:
        return "—"
    time = median_time(row)
    if math.isnan(row.added_s):
        return time
    sign = "−" if row.added_s < 0 else "+"
    added = f"{sign}{format_seconds(abs(row.added_s))}{'' if row.apart else ' (?)'}"
    return Quantity(f"{time}\n{added}", row.median_s)


def _layer_meaning(run: Run, layers: list[str], group: pd.DataFrame) -> str:
    words = {
        "memcpy": "memcpy: one copy within a process, called from Python.",
        "raw": "raw: the transport without Python's event loop.",
        "coroutine": "coroutine: the backend's own send and receive, awaited.",
        "comm": "comm: Dask's write and read, with serialization.",
        "worker": "worker: a fetch, which is a request and its answer; not halved.",
    }
    said = [words[layer] for layer in layers]
    samples = run.samples[run.samples["case_id"].isin(group["case_id"])]
    for tool, rows in samples[samples["tool"] != ""].groupby("tool"):
        cases = {case.id: case.backend for case in run.suite.cases}
        heads = {cases[case_id].partition(":")[0] for case_id in rows["case_id"].unique()}
        said.append(
            f"raw of {' and '.join(sorted(heads))} is {tool}, whose payloads can't be verified; "
            "progress modes make no difference to it."
        )
    return " ".join(said)


BY_LAYER = Section(
    title="What each layer adds", position=40, tables=tables_by_layer, figures=("layers",)
)


def all_to_all_tables(run: Run) -> Iterator[Table]:
    """Yield the tables of every all-to-all: one pair at a time, and all at once."""
    table = run.costs[run.costs["layer"].isin(FETCHES)]
    tasks = table["case_id"].map(run.case_labels)
    for (task, layer), group in table.groupby([tasks, "layer"], sort=False):
        way, meaning = _WAYS[layer]
        cells: dict[tuple[int, str], str] = {}
        rows = zip(
            block_bytes(run, group),
            group.backend,
            map(median_time, group.itertuples()),
            quantities(format_bandwidth, group.throughput_Bps),
            strict=True,
        )
        for size, backend, time, bandwidth in rows:
            cells[size, f"{backend}\ntime"] = time
            cells[size, f"{backend}\nbandwidth"] = bandwidth
        yield by_size(f"{task}, {way}", cells, f"{meaning} ({counts(group)}).", "block")


_WAYS = {
    "alone": (
        "one pair at a time",
        "Time: mean over the pairs of one fetch with nothing else under way, and of it the median "
        "over launches of each launch's median; bandwidth: block / time, so that slow pairs weigh "
        "as much as their time does",
    ),
    "together": (
        "all pairs at once",
        "Time: from the first fetch's start to the last one's end, and of it the median over "
        "launches of each launch's median; bandwidth: the blocks of all pairs / time",
    ),
}
"""The end of the title and the meaning of the numbers of all-to-all's fetches, by layer."""


def block_bytes(run: Run, summaries: pd.DataFrame) -> list[int]:
    """Return the block size of each row of the `summaries` of all-to-all."""
    workers = {case.id: case.cluster.n_workers for case in run.suite.cases}
    return [
        int(row.payload_bytes) // (n * (n - 1) if row.layer == "together" else 1)
        for row in summaries.itertuples()
        for n in (workers[row.case_id],)
    ]


ALL_TO_ALL = Section(title="All-to-all", position=60, tables=all_to_all_tables)

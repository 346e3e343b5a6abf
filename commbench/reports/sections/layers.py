"""What each layer of the software adds to the time of a message, backend beside backend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commbench import stats
from commbench.analysis.run import Run
from commbench.model import LAYERS
from commbench.model.units import format_message_size, format_seconds
from commbench.reports.sections.cells import Quantity, Section, Table, counts, quantity

if TYPE_CHECKING:
    import pandas as pd

_MAX_SIZES = 7


def tables(run: Run) -> Iterator[Table]:
    """Yield a table per task that has at least two layers."""
    table = stats.additions(run, run.costs)
    for task, group in table.groupby(table["case_id"].map(run.case_labels), sort=False):
        yield _table(run, str(task), group)


def _table(run: Run, task: str, group: pd.DataFrame) -> Table:
    layers = [layer for layer in LAYERS if layer in set(group["layer"])]
    all_sizes = sorted(group["payload_bytes"].unique())
    sizes = stats.shown_sizes(all_sizes, _MAX_SIZES)
    found = {(row.payload_bytes, row.backend, row.layer): row for row in group.itertuples()}
    # In the order of the suite, which the sorting by layers has kept within each layer.
    backends = dict.fromkeys(group[group["payload_bytes"].isin(sizes)]["backend"])
    rows = []
    for size in sizes:
        for place, backend in enumerate(backends):
            cells = [_cell(found.get((size, backend, layer))) for layer in layers]
            rows.append(
                ("" if place else quantity(format_message_size, int(size)), backend, *cells)
            )
    few = f"{len(sizes)} of {len(all_sizes)} sizes; csv has all. " if sizes != all_sizes else ""
    return Table(
        f"{task}: where the time of a message goes, and what each layer adds",
        ("size", "backend", *layers),
        tuple(rows),
        f"Each cell: the time of one message ({counts(group)}) and below it what that is more (+) "
        "or less (−: the faster layer) than the layer to its left. (?): the two intervals overlap, "
        "or there is none. " + few + _meaning(run, layers, group),
        text_columns=frozenset({"backend"}),
    )


def _cell(row: Any) -> str:
    if row is None:
        return "—"
    time = quantity(format_seconds, row.median_s)
    if math.isnan(row.added_s):
        return time
    sign = "−" if row.added_s < 0 else "+"
    added = f"{sign}{format_seconds(abs(row.added_s))}{'' if row.apart else ' (?)'}"
    return Quantity(f"{time}\n{added}", row.median_s)


def _meaning(run: Run, layers: list[str], group: pd.DataFrame) -> str:
    words = {
        "memcpy": "memcpy: one copy within a process, called from Python.",
        "raw": "raw: the transport without Python's event loop.",
        "coroutine": "coroutine: the backend's own send and receive, awaited.",
        "comm": "comm: Dask's write and read, with serialization.",
        "worker": "worker: a fetch, which is a request and its answer; not halved.",
    }
    said = [words[layer] for layer in layers]
    samples = run.samples[run.samples["case_id"].isin(group["case_id"])]
    for tool, of_tool in samples[samples["tool"] != ""].groupby("tool"):
        cases = {case.id: case.backend for case in run.suite.cases}
        heads = {cases[case_id].partition(":")[0] for case_id in of_tool["case_id"].unique()}
        said.append(
            f"raw of {' and '.join(sorted(heads))} is {tool}, whose payloads can't be verified; "
            "progress modes make no difference to it."
        )
    return " ".join(said)


SECTION = Section(title="What each layer adds", position=40, tables=tables, figures=("layers",))

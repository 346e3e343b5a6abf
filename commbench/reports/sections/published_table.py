"""What was published, and what this run has measured of the same quantity."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench import stats
from commbench.analysis.run import Run
from commbench.model.published import show, show_range
from commbench.model.units import format_message_size
from commbench.reports.sections import Section, Table
from commbench.stats import Beside


def tables(run: Run) -> Iterator[Table]:
    """Yield the table of the figure that the run's suite reproduces, if it does."""
    suite, figure = run.suite, stats.reproduced(run)
    if figure is None:
        return
    quantities = stats.beside_published(run, run.costs, run.pairs)
    workers = len({beside.n_workers for beside in quantities if beside.n_workers}) > 1
    yield Table.of_columns(
        f"Beside the published figure: {figure.title}",
        {
            "what": (_what(beside, workers=workers) for beside in quantities),
            "published": (beside.value.text if beside.value else "—" for beside in quantities),
            "here": map(_here, quantities),
            "comparable": map(_comparable, quantities),
        },
        f"Published: {figure.citation}; on {figure.setting}. Here: "
        f"{stats.machine(run.manifest)}, {100 * suite.scale:.3g} % of the published size. "
        + _meaning(quantities),
        {"comparable"},
    )


def _what(beside: Beside, *, workers: bool) -> str:
    value = beside.value
    parts = [beside.quantity]
    if value is not None and value.workload:
        parts = [f"{beside.quantity} of {value.workload}"]
    if value is not None and value.message_bytes:
        first, last = (format_message_size(size) for size in value.message_bytes)
        parts.append(first if first == last else f"{first} to {last}")
    over = f" against {value.over}" if value is not None and value.over else ""
    names = [beside.backend + over]
    if beside.layer not in ("", "workload"):
        names.append(f"layer {beside.layer}")
    if workers and beside.n_workers:
        names.append(f"{beside.n_workers} workers")
    if value is not None and value.detail:
        names.append(value.detail)
    return f"{', '.join(parts)}: {', '.join(names)}"


def _here(beside: Beside) -> str:
    number = show(beside.here, beside.unit)
    low, high = beside.here_low, beside.here_high
    return f"{number}\n({show_range(low, high, beside.unit)})" if low < high else number


def _comparable(beside: Beside) -> str:
    if beside.value is None:
        return "nothing was published"
    if math.isnan(beside.here):
        return "not measured in this run"
    if beside.comparable:
        return "but for the hardware"
    return f"no: {'; '.join(beside.differences)}"


_MEANINGS = {
    "time": "time: of one iteration, median and interval.",
    "throughput": "throughput: the workload's payload over the time of an iteration.",
    "communication time": "communication time: of an iteration that in which at least one fetch "
    "into a worker was under way, in the mean over the workers.",
    "transfer throughput": "transfer throughput: Σ bytes / Σ durations of all fetches that count.",
    "transfer time": "transfer time: the duration of one fetch, median and quartiles.",
    "pair bandwidth": "pair bandwidth: of the ordered pairs' median bandwidths the median, the "
    "least and the largest.",
    "latency": "latency: half a round trip.",
    "bandwidth": "bandwidth: message size / half a round trip.",
}


def _meaning(quantities: list[Beside]) -> str:
    said = [_MEANINGS[name] for name in dict.fromkeys(beside.quantity for beside in quantities)]
    if any(beside.unit == "ratio" for beside in quantities):
        said.append(
            "Ratios: how many times better, in the geometric mean over numbers of workers or "
            "message sizes (in brackets the least and the largest); below 1 it is worse. Whether a "
            "difference is real, the tables of differences say."
        )
    return " ".join(said)


SECTION = Section(
    title="Beside the published figure", position=10, tables=tables, figures=("published",)
)

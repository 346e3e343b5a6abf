"""The table that compares the run with the published figure that its suite reproduces."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commbench import stats
from commbench.analysis.run import Run
from commbench.model.published import show, show_range
from commbench.model.units import format_message_size
from commbench.reports.sections import Quantity, Section, Table
from commbench.stats import PublishedComparison


def tables(run: Run) -> Iterator[Table]:
    """Yield the table if the run's suite reproduces a published figure."""
    suite, figure = run.suite, stats.reproduced(run)
    if figure is None:
        return
    comparisons = run.published_comparisons
    workers = len({comparison.n_workers for comparison in comparisons if comparison.n_workers}) > 1
    yield Table.from_columns(
        f"Compared with the published figure: {figure.title}",
        {
            "what": (_what(comparison, workers=workers) for comparison in comparisons),
            "published": (
                Quantity(c.value.text, c.value.low) if c.value else Quantity("—", math.nan)
                for c in comparisons
            ),
            "here": map(_here, comparisons),
            "comparable": map(_comparable, comparisons),
        },
        f"Published: {figure.citation}; on {figure.setting}. Here: "
        f"{stats.machine(run.manifest)}, {100 * suite.scale:.3g} % of the published size. "
        + _meaning(comparisons),
        {"comparable"},
    )


def _what(comparison: PublishedComparison, *, workers: bool) -> str:
    value = comparison.value
    parts = [comparison.quantity]
    if value is not None and value.workload:
        parts = [f"{comparison.quantity} of {value.workload}"]
    if value is not None and value.message_bytes:
        first, last = (format_message_size(size) for size in value.message_bytes)
        parts.append(first if first == last else f"{first} to {last}")
    over = f" against {value.over}" if value is not None and value.over else ""
    names = [comparison.backend + over]
    if comparison.layer not in ("", "workload"):
        names.append(f"layer {comparison.layer}")
    if workers and comparison.n_workers:
        names.append(f"{comparison.n_workers} workers")
    if value is not None and value.detail:
        names.append(value.detail)
    return f"{', '.join(parts)}: {', '.join(names)}"


def _here(comparison: PublishedComparison) -> Quantity:
    text = show(comparison.here, comparison.unit)
    low, high = comparison.here_low, comparison.here_high
    text += f"\n({show_range(low, high, comparison.unit)})" * (low < high)
    return Quantity(text, comparison.here)


def _comparable(comparison: PublishedComparison) -> str:
    if comparison.value is None:
        return "nothing was published"
    if math.isnan(comparison.here):
        return "not measured in this run"
    if comparison.comparable:
        return "but for the hardware"
    return f"no: {'; '.join(comparison.differences)}"


_MEANINGS = {
    "time": "time: of one iteration, median and interval.",
    "throughput": "throughput: the workload's payload over the time of an iteration.",
    "communication time": "communication time: the time of an iteration in which at least one "
    "fetch into a worker was under way, mean over the workers.",
    "transfer throughput": "transfer throughput: Σ bytes / Σ durations of all fetches that count.",
    "transfer time": "transfer time: the duration of one fetch, median and quartiles.",
    "pair bandwidth": "pair bandwidth: median, smallest and largest of the ordered pairs' median "
    "bandwidths, of those that NVLink joins if it joins some.",
    "latency": "latency: half a round trip.",
    "bandwidth": "bandwidth: message size / half a round trip.",
}


def _meaning(comparisons: list[PublishedComparison]) -> str:
    said = [
        _MEANINGS[name] for name in dict.fromkeys(comparison.quantity for comparison in comparisons)
    ]
    if any(comparison.unit == "ratio" for comparison in comparisons):
        said.append(
            "Ratios: how many times better, geometric mean over numbers of workers or message "
            "sizes (in brackets the smallest and the largest); below 1 it is worse. The tables of "
            "differences say which differences are significant."
        )
    return " ".join(said)


SECTION = Section(
    title="Compared with the published figure",
    position=10,
    tables=tables,
    figures=("published",),
    opening=tables,
)

"""Bandwidth by class of link, and where the workers were."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from commbench.analysis.run import Run
from commbench.model.units import format_bytes
from commbench.reports.sections.cells import CHANNELS, REST, Table, label, number, quantity
from commbench.stats.selection import in_suite_order

if TYPE_CHECKING:
    import pandas as pd

_MOST = 24
"""Rows of places; in a large cluster each host has several."""


def tables(run: Run) -> Iterator[Table]:
    """Yield a table for each channel in which a case has links of several classes."""
    pairs = run.pairs
    n_classes = pairs.groupby(["case_id", "channel"], observed=True)["link"].nunique()
    if not (n_classes > 1).any():
        return
    for channel, links in run.link_bandwidths.groupby("channel", sort=False, observed=True):
        yield _class_table(run, str(channel), links)


def _class_table(run: Run, channel: str, links: pd.DataFrame) -> Table:
    when, source = CHANNELS.get(channel, (f", {channel}", "Of that channel"))
    least = format_bytes(run.manifest.min_transfer_bytes)
    return Table(
        f"Bandwidth per class of link{when} (transfers ≥ {least})",
        ("backend", "link", "pairs", "n", "bytes", "25 %\nGB/s", "median\nGB/s", "75 %\nGB/s",
         "slowest\npair", "fastest\npair"),
        tuple(
            (
                label(run, row),
                row.link,
                quantity(str, row.n_pairs),
                quantity(str, row.n),
                quantity(format_bytes, row.bytes),
                *(number(bandwidth / 1e9) for bandwidth in
                  (row.q25_Bps, row.q50_Bps, row.q75_Bps, row.slowest_Bps, row.fastest_Bps)),
            )
            for row in links.itertuples()
        ),
        f"{source}. Quantiles over single fetches, of all pairs of a class; slowest, fastest pair: "
        "their medians, in GB/s.",
        text_columns=frozenset({"link"}),
    )  # fmt: skip


def places(run: Run) -> Iterator[Table]:
    """Yield where the workers were: a row for those who share all but their process."""
    found = run.worker_places
    if found.empty:
        return
    by_name = found.sort_values("worker", key=lambda names: names.map(_natural))
    alike = ["case_id", "host", "host_id", "cpus", "numa_nodes", "gpu", "gpu_uuid", "nic"]
    groups = in_suite_order(by_name, run, ["case_id"]).groupby(alike, sort=False)
    gpus = bool((found["gpu"] != "").any())
    rows = []
    for _, group in islice(groups, _MOST):
        first = next(group.itertuples())
        workers = list(dict.fromkeys(group["worker"]))
        some = ", ".join(workers[:8]) + f", … ({len(workers)})" * (len(workers) > 8)
        texts = (first.host, first.cpus, first.numa_nodes, *[first.gpu] * gpus, first.nic)
        rows.append((label(run, first), some, *(text or "—" for text in texts)))
    cut = f" {_MOST} of {groups.ngroups} places. {REST}" if groups.ngroups > _MOST else ""
    yield Table(
        "Where the workers were",
        ("backend", "workers", "host", "CPUs", "NUMA\nnodes", *["GPU"] * gpus, "NIC"),
        tuple(rows),
        "CPUs: those on which the worker might run, and their NUMA nodes. NIC: UCX_NET_DEVICES, "
        "else the interface on which it listened." + cut,
        text_columns=frozenset({"workers", "host", "CPUs", "NIC"}),
    )


def _natural(name: str) -> tuple[int, str]:
    return len(name), name

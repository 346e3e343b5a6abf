"""The tables of a report as text cells, for the formats that people read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.model import Case, ClusterSpec, Comparison
from commbench.reports.content import Content
from commbench.units import format_bandwidth, format_bytes, format_message_size, format_seconds

if TYPE_CHECKING:
    import pandas as pd

_MAX_PAIRS = 24


@dataclass(frozen=True)
class Table:
    """A titled table of text; the first column is aligned left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: frozenset[str] = frozenset()
    """Columns of prose: aligned left, and wrapped where the page is narrow."""


def printable(text: str) -> str:
    """Return `text` without what would steer a terminal: a results file may come from anywhere."""
    lines = text.replace("\r\n", "\n")
    return re.sub(r"[^\t\n -~\xa0-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", lines)


def heading(content: Content) -> str:
    """Return one line that says what was run, where and when."""
    run = content.data.run
    cpu = run.environment.get("cpu") or {}
    return (
        f"{run.suite.name} · {run.started_at[:16].replace('T', ' ')} UTC · "
        f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('usable_cores') or '?'} cores"
    )


def tables(content: Content) -> Iterator[Table]:
    """Yield the tables that the run has data for, the answer first."""
    yield from _time_tables(content)
    yield from _message_tables(content)
    if len(content.pairs):
        yield _pair_table(content)
    if len(content.coverage):
        yield _coverage_table(content)
    if len(content.transports):
        yield _transport_table(content)
    if len(content.data.failures):
        yield _failure_table(content)
    yield _provenance_table(content)


def _time_tables(content: Content) -> Iterator[Table]:
    table = content.summaries[content.summaries["layer"] == "workload"]
    if table.empty:
        return
    cases = {case.id: case for case in content.data.run.suite.cases}
    verdicts = {
        (c.candidate_id, c.payload_bytes): c for c in content.comparisons if c.layer == "workload"
    }
    for _, group in table.groupby(table["case_id"].map(content.tasks), sort=False):
        title = _describe(cases[group["case_id"].iloc[0]])
        baseline = group["backend"].iloc[0]
        rows = []
        for row in group.itertuples():
            verdict = verdicts.get((row.case_id, row.payload_bytes))
            rows.append(
                (
                    row.backend,
                    format_seconds(row.median_s),
                    _interval(row),
                    _ratio(verdict) if verdict else "1",
                    format_bandwidth(row.throughput_Bps),
                    _number(row.cpu_s_per_GB),
                    _number(row.idle_cores),
                )
            )
        yield Table(
            f"{title}: time per iteration",
            ("backend", "median", _interval_title(group), f"time vs\n{baseline}", "payload/s",
             "CPU s\nper GB", "idle\ncores"),
            tuple(rows),
            f"Median over launches of each launch's median ({_counts(group)}). payload/s: the "
            f"workload's {format_bytes(int(group.payload_bytes.iloc[0]))} over that time. CPU: all "
            "processes, client and scheduler included, over the bytes that crossed between "
            "workers. Idle cores: burned by the cluster while nothing is asked of it. "
            "(?): the intervals overlap, or are too weak for a verdict.",
        )  # fmt: skip


def _message_tables(content: Content) -> Iterator[Table]:
    table = content.summaries[content.summaries["layer"] != "workload"]
    tasks = table["case_id"].map(content.tasks)
    for (task, layer), group in table.groupby([tasks, "layer"], sort=False):
        idle = {row.backend: _number(row.idle_cores) for row in group.itertuples()}
        yield _by_size(
            f"{task}, {layer} layer: latency",
            group,
            lambda row: format_seconds(row.median_s),
            "Half the round trip: the median over launches of each launch's median "
            f"({_counts(group)}). Idle cores: "
            + ", ".join(f"{name} {cores}" for name, cores in idle.items())
            + ".",
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


def _pair_table(content: Content) -> Table:
    pairs = content.pairs
    shown = pairs.sort_values("q50_Bps").head(_MAX_PAIRS) if len(pairs) > _MAX_PAIRS else pairs
    least = format_bytes(content.data.run.min_transfer_bytes)
    cut = f" The {_MAX_PAIRS} slowest of {len(pairs)} pairs." if len(pairs) > _MAX_PAIRS else ""
    cut += "".join(f" {text}" for text in _missing_pairs(content))
    return Table(
        f"Bandwidth per pair of workers (transfers ≥ {least})",
        ("backend", "src → dst", "n", "bytes", "25 %\nGB/s", "median\nGB/s", "75 %\nGB/s",
         "busy\nGB/s", "at\nonce"),
        tuple(
            (
                _label(content, row),
                f"{row.src} → {row.dst}",
                str(row.n),
                format_bytes(row.bytes),
                *(_number(bandwidth / 1e9) for bandwidth in
                  (row.q25_Bps, row.q50_Bps, row.q75_Bps, row.busy_Bps)),
                f"{row.concurrency:.1f}",
            )
            for row in shown.itertuples()
        ),
        "From the receivers' transfer logs: one fetch, from request to deserialized data. busy: "
        "Σ bytes over the time in which the pair had a fetch under way; at once: how many, on "
        "average." + cut,
        text_columns=frozenset({"src → dst"}),
    )  # fmt: skip


def _missing_pairs(content: Content) -> Iterator[str]:
    found = content.pairs.groupby("case_id").size()
    for case in content.data.run.suite.cases:
        n_pairs = case.cluster.n_workers * (case.cluster.n_workers - 1)
        n_missing = n_pairs - int(found.get(case.id, 0))
        if n_missing and case.id in set(content.data.transfers["case_id"]):
            yield f"{case.workload} {case.backend}: {n_missing} of {n_pairs} pairs had none."


def _coverage_table(content: Content) -> Table:
    return Table(
        "Coverage: what the transfer logs saw of the traffic between workers",
        ("backend", "logged", "on the\nwire", "cover-\nage", "to self", "on lo", "fetches",
         "busy", "lost"),
        tuple(
            (
                _label(content, row),
                format_bytes(row.logged_bytes),
                format_bytes(row.wire_bytes),
                "—" if math.isnan(row.coverage) else f"{row.coverage:.1%}",
                format_bytes(row.self_bytes),
                format_bytes(row.loopback_bytes),
                str(row.n_started),
                str(row.n_busy + row.n_failed),
                str(row.n_lost),
            )
            for row in content.coverage.itertuples()
        ),
        "Sums over the measured iterations. on the wire: serialized bytes that workers wrote to "
        "each other's comms; to self: to their own; on lo: what the kernel counted on the loopback "
        "interface meanwhile, all processes; fetches: transfer_incoming_count_total; busy: those "
        "that a busy sender refused, or that failed; lost: neither logged nor refused.",
    )  # fmt: skip


def _transport_table(content: Content) -> Table:
    rows = []
    for keys, group in content.transports.groupby(["case_id", "transport"], sort=False):
        first = next(group.itertuples())
        pairs = sorted({f"{row.src}→{row.dst}" for row in group.itertuples()})
        some = ", ".join(pairs[:6]) + (f", … ({len(pairs)})" if len(pairs) > 6 else "")
        rows.append((_label(content, first), str(keys[1]) or "unknown", some, first.evidence))
    return Table(
        "Transport really used",
        ("backend", "transport", "src→dst", "evidence"),
        tuple(rows),
        text_columns=frozenset({"transport", "src→dst", "evidence"}),
    )


def _failure_table(content: Content) -> Table:
    return Table(
        "Failures",
        ("case", "launch", "stage", "message"),
        tuple(
            (_label(content, row), str(row.launch), row.stage, row.message)
            for row in content.data.failures.itertuples()
        ),
        text_columns=frozenset({"stage", "message"}),
    )


def _provenance_table(content: Content) -> Table:
    run = content.data.run
    known = run.environment
    packages = known.get("packages") or {}
    host, memory = known.get("host") or {}, known.get("memory") or {}
    commit = (known.get("git") or {}).get("commbench") or {}
    rows = {
        "command": run.command,
        "run": f"{run.id}, schema {run.schema_version}, seed {run.seed}",
        "system": ", ".join(host[key] for key in ("os", "kernel", "architecture") if host.get(key))
        or "unknown",
        "memory": format_bytes(memory["total_bytes"]) if memory.get("total_bytes") else "unknown",
        "commit": (commit.get("commit") or "unknown") + " and changes" * bool(commit.get("dirty")),
        "packages": ", ".join(f"{name} {text}" for name, text in packages.items() if text),
        "variables": ", ".join(f"{k}={v}" for k, v in (known.get("variables") or {}).items()),
    }
    return Table(
        "Provenance",
        ("what", "value"),
        tuple((key, text) for key, text in rows.items() if text),
        text_columns=frozenset({"value"}),
    )


def _describe(case: Case) -> str:
    cluster = case.cluster
    params = ", ".join(f"{key}={value}" for key, value in case.params.items())
    launcher = () if cluster.launcher == ClusterSpec.launcher else (cluster.launcher,)
    env = (f"{name}={value}" for name, value in cluster.env.items())
    return (
        f"{case.workload} ({params}) on {cluster.n_workers} workers × "
        f"{cluster.threads_per_worker} thread{'s' if cluster.threads_per_worker > 1 else ''}, "
        + ", ".join((cluster.device, *launcher, *cluster.hosts, *env))
    )


def _label(content: Content, row: Any) -> str:
    several = len(set(content.tasks.values())) > 1
    return f"{content.tasks[row.case_id]} {row.backend}" if several else str(row.backend)


def _interval_title(group: pd.DataFrame) -> str:
    low, high = (f"{level:.0%}" for level in (group.confidence.min(), group.confidence.max()))
    return f"{low}\ninterval" if low == high else f"{low} to {high}\ninterval"


def _interval(row: Any) -> str:
    if row.confidence == 0:
        return "none"
    low, high = format_seconds(row.ci_low_s), format_seconds(row.ci_high_s)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return f"{low}…{high}"


def _ratio(comparison: Comparison) -> str:
    mark = "(?)" if comparison.verdict == "inconclusive" else comparison.verdict
    return f"{comparison.ratio:.2f}× {mark}"


def _number(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def _counts(group: pd.DataFrame) -> str:
    def span(column: str) -> str:
        low, high = int(group[column].min()), int(group[column].max())
        return str(low) if low == high else f"{low} to {high}"

    return f"{span('n_launches')} launches, {span('n_samples')} samples"

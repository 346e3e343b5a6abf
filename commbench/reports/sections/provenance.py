"""Tables of the provenance of a run, of the locations of workers, and of failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from commbench.analysis.run import Run
from commbench.model import Placement
from commbench.model.observed import GPU_MEMORY
from commbench.model.units import format_bytes
from commbench.reports.sections import (
    REST,
    Section,
    Table,
    labels,
    natural,
    plural,
    quantities,
    some,
)
from commbench.stats.selection import in_suite_order

_MAX_FAILURES = 3
"""The maximum lines for failures in the opening."""
_MAX_BINDINGS = 16
"""The maximum workers whose placement is shown."""
_MAX_LOCATIONS = 24
"""The maximum rows of locations; in a large cluster each host has several."""


def tables(run: Run) -> Iterator[Table]:
    """Yield the tables of the provenance and of the locations of workers."""
    manifest = run.manifest
    known = manifest.environment
    packages = known.get("packages") or {}
    host, memory = known.get("host") or {}, known.get("memory") or {}
    settings = run.settings
    bound = dict.fromkeys(case.cluster.placement for case in run.suite.cases)
    commit = (known.get("git") or {}).get("commbench") or {}
    rows = {
        "command": manifest.command,
        "run": f"{manifest.id}, schema {manifest.schema_version}, seed {manifest.seed}",
        "launches": _stopping(run),
        "placement": " · ".join(map(_describe_bindings, bound)) if any(bound) else "",
        "GPUs": "; ".join(
            f"{n} × {text}" if n > 1 else text
            for text, n in Counter(map(_describe_gpu, known.get("gpus") or ())).items()
        ),
        "GPU memory": " · ".join(sorted({*settings[settings["name"] == GPU_MEMORY]["value"]})),
        "system": ", ".join(host[key] for key in ("os", "kernel", "architecture") if host.get(key))
        or "unknown",
        "memory": format_bytes(memory["total_bytes"]) if memory.get("total_bytes") else "unknown",
        "commit": (commit.get("commit") or "unknown") + " and changes" * bool(commit.get("dirty")),
        "packages": ", ".join(f"{name} {text}" for name, text in packages.items() if text),
        "variables": ", ".join(f"{k}={v}" for k, v in (known.get("variables") or {}).items()),
    }
    shown = {what: text for what, text in rows.items() if text}
    columns = {"what": [*shown], "value": [*shown.values()]}
    yield Table.from_columns("Provenance", columns, text_columns={"value"})
    yield from _location_tables(run)


def _describe_gpu(gpu: Mapping[str, Any]) -> str:
    size = f", {format_bytes(gpu['memory_bytes'])}" if gpu.get("memory_bytes") else ""
    return f"{gpu.get('name')}{size}, driver {gpu.get('driver')}"


def _describe_bindings(placement: tuple[Placement, ...]) -> str:
    texts = [f"worker {number}: {bound}" for number, bound in enumerate(placement[:_MAX_BINDINGS])]
    n_more = len(placement) - len(texts)
    return "; ".join([*texts, *[f"{n_more} more in run.json"] * (n_more > 0)]) or "none"


def _stopping(run: Run) -> str:
    rule = run.manifest.stopping
    if rule is None:
        return ""
    spent_s = run.ends["seconds"].sum()
    longer = f" (launches took {spent_s:.0f} s)" if spent_s > rule.budget_s else ""
    reason = {
        "decided": f"every comparison was decided (--detect {100 * rule.detect:g}%)",
        "time": f"no other block fitted into --budget {rule.budget_s:.0f} s" + longer,
    }.get(run.ended_by, "one of the limits is reached; continue with --resume")
    return f"blocks of launches until {reason}"


def _location_tables(run: Run) -> Iterator[Table]:
    """Yield the table of locations; workers that only differ in their process share a row."""
    places = run.worker_places
    if places.empty:
        return
    by_name = places.sort_values("worker", key=lambda names: names.map(natural))
    alike = ["case_id", "host", "host_id", "cpus", "numa_nodes", "gpu", "gpu_uuid", "nic"]
    groups = in_suite_order(by_name, run, ["case_id"]).groupby(alike, sort=False)
    gpus = bool((places["gpu"] != "").any())
    rows = []
    for _, group in islice(groups, _MAX_LOCATIONS):
        first = next(group.itertuples())
        workers = some(list(dict.fromkeys(group["worker"])), 8)
        texts = (first.host, first.cpus, first.numa_nodes, *[first.gpu] * gpus, first.nic)
        rows.append((*labels(run, group.head(1)), workers, *(text or "—" for text in texts)))
    is_cut = groups.ngroups > _MAX_LOCATIONS
    cut = f" {_MAX_LOCATIONS} of {groups.ngroups} locations. {REST}" if is_cut else ""
    yield Table(
        "Where the workers were",
        ("backend", "workers", "host", "CPUs", "NUMA\nnodes", *["GPU"] * gpus, "NIC"),
        tuple(rows),
        "CPUs: those on which the worker was allowed to run, and their NUMA nodes. NIC: "
        "UCX_NET_DEVICES, else the interface on which it listened." + cut,
        text_columns=frozenset({"workers", "host", "CPUs", "NIC"}),
    )


def failure_tables(run: Run) -> Iterator[Table]:
    """Yield the table of failures, if there are any."""
    failures = run.failures
    if len(failures):
        yield Table.from_columns(
            "Failures",
            {
                "case": labels(run, failures),
                "launch": quantities(str, failures.launch),
                "stage": failures.stage,
                "message": failures.message,
            },
            text_columns={"stage", "message"},
        )


def failures_opening(run: Run) -> Iterator[str]:
    """Yield a line for each of the first failures; those of a case that are alike share one."""
    # Processes and folders of launches differ in numbers.
    alike = run.failures["message"].str.replace(r"\d+", "", regex=True)
    groups = [rows for _, rows in run.failures.groupby(["case_id", "stage", alike], sort=False)]
    for rows in groups[:_MAX_FAILURES]:
        row = rows.iloc[0]
        n_more = rows["launch"].nunique() - 1
        more = f" and {n_more} more" if n_more else ""
        where = f"{run.case_names[row['case_id']]}, launch {row['launch']}{more}"
        yield f"✗ {where} ({row['stage']}): {row['message']}"
    if n_more := sum(map(len, groups[_MAX_FAILURES:])):
        yield f"✗ {plural(n_more, 'more failure')}"


PROVENANCE = Section(title="Provenance", position=100, tables=tables)
FAILURES = Section(title="Failures", position=90, tables=failure_tables, opening=failures_opening)

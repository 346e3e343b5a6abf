"""What was run, where and with what, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from commbench.analysis.run import Run
from commbench.model import GPU_MEMORY, Manifest, Placement
from commbench.model.units import format_bytes
from commbench.reports.sections import REST, Section, Table, labels, quantities
from commbench.stats.selection import in_suite_order

_MOST_PLACED = 16
"""Workers whose placement is told."""
_MOST_PLACES = 24
"""Rows of places; in a large cluster each host has several."""


def tables(run: Run) -> Iterator[Table]:
    """Yield what was run, and where the workers were."""
    manifest = run.manifest
    known = manifest.environment
    packages = known.get("packages") or {}
    host, memory = known.get("host") or {}, known.get("memory") or {}
    commit = (known.get("git") or {}).get("commbench") or {}
    rows = {
        "command": manifest.command,
        "run": f"{manifest.id}, schema {manifest.schema_version}, seed {manifest.seed}",
        "launches": _stopping(run),
        "placement": _placement(manifest),
        "GPU memory": _gpu_memory(run),
        "system": ", ".join(host[key] for key in ("os", "kernel", "architecture") if host.get(key))
        or "unknown",
        "memory": format_bytes(memory["total_bytes"]) if memory.get("total_bytes") else "unknown",
        "commit": (commit.get("commit") or "unknown") + " and changes" * bool(commit.get("dirty")),
        "packages": ", ".join(f"{name} {text}" for name, text in packages.items() if text),
        "variables": ", ".join(f"{k}={v}" for k, v in (known.get("variables") or {}).items()),
    }
    yield Table(
        "Provenance",
        ("what", "value"),
        tuple((key, text) for key, text in rows.items() if text),
        text_columns=frozenset({"value"}),
    )
    yield from _places(run)


def _placement(run: Manifest) -> str:
    """Return what the workers of each case were bound to; nothing where none were."""
    placements = dict.fromkeys(case.cluster.placement for case in run.suite.cases)
    return " · ".join(map(_bound, placements)) if any(placements) else ""


def _gpu_memory(run: Run) -> str:
    """Return where GPU memory came from, as the processes told."""
    settings = run.settings
    return " · ".join(sorted(set(settings[settings["name"] == GPU_MEMORY]["value"])))


def _bound(placement: tuple[Placement, ...]) -> str:
    texts = [f"worker {number}: {bound}" for number, bound in enumerate(placement[:_MOST_PLACED])]
    n_more = len(placement) - len(texts)
    return "; ".join([*texts, *[f"{n_more} more in run.json"] * (n_more > 0)]) or "none"


def _stopping(run: Run) -> str:
    rule = run.manifest.stopping
    if rule is None:
        return ""
    began = min(case.launches for case in run.suite.cases)
    ends = {
        "precision": f"every median is known within ±{rule.rel_ci:.2g} of itself",
        "launches": f"--max-launches {rule.max_launches} is reached",
        "time": f"--time-budget {rule.time_budget_s:.0f} s is spent",
    }
    reason = ends.get(run.ended_by, "not there yet: the run goes on with --resume")
    return f"{began}, then in blocks until it was enough: {reason}"


def _places(run: Run) -> Iterator[Table]:
    """Yield where the workers were: a row for those who share all but their process."""
    places = run.worker_places
    if places.empty:
        return
    by_name = places.sort_values("worker", key=lambda names: names.map(_natural))
    alike = ["case_id", "host", "host_id", "cpus", "numa_nodes", "gpu", "gpu_uuid", "nic"]
    groups = in_suite_order(by_name, run, ["case_id"]).groupby(alike, sort=False)
    gpus = bool((places["gpu"] != "").any())
    rows = []
    for _, group in islice(groups, _MOST_PLACES):
        first = next(group.itertuples())
        workers = list(dict.fromkeys(group["worker"]))
        some = ", ".join(workers[:8]) + f", … ({len(workers)})" * (len(workers) > 8)
        texts = (first.host, first.cpus, first.numa_nodes, *[first.gpu] * gpus, first.nic)
        rows.append((*labels(run, group.head(1)), some, *(text or "—" for text in texts)))
    is_cut = groups.ngroups > _MOST_PLACES
    cut = f" {_MOST_PLACES} of {groups.ngroups} places. {REST}" if is_cut else ""
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


def failure_tables(run: Run) -> Iterator[Table]:
    """Yield one table, if there are failures."""
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


PROVENANCE = Section(title="Provenance", position=100, tables=tables)
FAILURES = Section(title="Failures", position=90, tables=failure_tables)

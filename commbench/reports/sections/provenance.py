"""What was run, where and with what."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.run import Run
from commbench.model import GPU_MEMORY, Manifest, Placement
from commbench.model.units import format_bytes
from commbench.reports.sections import links
from commbench.reports.sections.cells import Section, Table

_MOST_PLACED = 16
"""Workers whose placement is told."""


def heading(run: Run) -> str:
    """Return one line that says what was run, where and when."""
    return describe(run.manifest)


def describe(run: Manifest) -> str:
    """Return the heading of everything that is told of `run`."""
    cpu = run.environment.get("cpu") or {}
    return (
        f"{run.suite.name}{_scale(run)} · {run.started_at[:16].replace('T', ' ')} UTC · "
        f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('usable_cores') or '?'} cores"
    )


def _scale(run: Manifest) -> str:
    scale = run.suite.scale
    return f" at {100 * scale:.3g} % of its full size" if scale < 1 else ""


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
    yield from links.places(run)


def _placement(run: Manifest) -> str:
    """Return what the workers of each case were bound to; nothing where none were."""
    placements = dict.fromkeys(case.cluster.placement for case in run.suite.cases)
    return " · ".join(map(_bound, placements)) if any(placements) else ""


def _gpu_memory(run: Run) -> str:
    """Return where GPU memory came from, as the processes told."""
    settings = run.settings
    return " · ".join(sorted(set(settings[settings["name"] == GPU_MEMORY]["value"])))


def _bound(placement: tuple[Placement, ...]) -> str:
    told = [f"worker {number}: {place}" for number, place in enumerate(placement[:_MOST_PLACED])]
    n_more = len(placement) - len(told)
    return "; ".join([*told, *[f"{n_more} more in run.json"] * (n_more > 0)]) or "none"


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


SECTION = Section(title="Provenance", position=100, tables=tables)

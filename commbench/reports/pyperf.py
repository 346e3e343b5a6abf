"""``pyperf``: the JSON of pyperf, for ``python -m pyperf stats`` or ``compare_to``.

A benchmark is one layer and size of a case, with all settings in its name, because pyperf compares
benchmarks of the same name. Its runs are the successful launches. Their values are the samples
that count, their warm-ups all others. Samples of 0, below the resolution of the clock, are
omitted, because pyperf rejects them. The format is version 1.0, which pyperf 1 and 2 read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from commbench.analysis.run import Run
from commbench.errors import UsageError
from commbench.machine.environment import recorded
from commbench.model import Case
from commbench.model.units import format_message_size
from commbench.stats.selection import (
    GROUP,
    describe_settings,
    good_launches,
    in_suite_order,
)

_METADATA = {
    "hostname": "host.name",
    "platform": "host.kernel",
    "cpu_model_name": "cpu.model",
    "cpu_count": "cpu.logical_cores",
}
"""The names of pyperf for the fields of a run's provenance."""


def render(run: Run) -> str:
    """Return the suite of benchmarks as JSON.

    Raises
    ------
    UsageError
        If no launch with times above 0 ended well.
    """
    benchmarks = list(_benchmarks(run))
    if not benchmarks:
        raise UsageError(
            f"no launch of {run.manifest.id} ended well with times above 0: pyperf has nothing to "
            "read"
        )
    suite = {"version": "1.0", "metadata": _machine(run), "benchmarks": benchmarks}
    return json.dumps(suite, allow_nan=False) + "\n"


def _benchmarks(run: Run) -> Iterator[dict[str, Any]]:
    samples = _labelled(run)
    samples = samples[samples["case_id"].isin(list(good_launches(run)))]
    for (case_id, layer, size), group in samples.groupby(GROUP, sort=False):
        launches = [_run(launch) for _, launch in group.groupby("launch")]
        if runs := [launch for launch in launches if launch["values"]]:
            nbytes = run.message_bytes(str(case_id), str(layer), size)
            yield {"metadata": _names(run.cases[str(case_id)], str(layer), nbytes), "runs": runs}


def _labelled(run: Run) -> pd.DataFrame:
    """Return the samples of successful launches; ``counts`` says whether a sample counts."""
    values = run.measured
    samples, launch = run.samples, ["case_id", "launch"]
    in_good = samples.set_index(launch).index.isin(values.set_index(launch).index)
    sound = (samples["verified"].astype(bool) | (samples["tool"] != "")) & (samples["seconds"] >= 0)
    kept = samples.assign(counts=samples.index.isin(values.index))[sound & in_good]
    return in_suite_order(kept, run, ["layer", "payload_bytes", "launch", "started_at_s"])


def _run(launch: pd.DataFrame) -> dict[str, Any]:
    values = launch[launch["counts"] & (launch["seconds"] > 0)]
    warmups = launch[~launch["counts"]]
    began = datetime.fromtimestamp(float(launch["started_at_s"].min()), UTC)
    run: dict[str, Any] = {
        "metadata": {"date": f"{began:%Y-%m-%d %H:%M:%S}"},
        "values": values["seconds"].tolist(),
    }
    if len(warmups):
        run["warmups"] = [[1, seconds] for seconds in warmups["seconds"].tolist()]
    return run


def _names(case: Case, layer: str, size: int) -> dict[str, Any]:
    at = "" if layer == "workload" else f" {layer} {format_message_size(size)}"
    settings = describe_settings(case)
    return {
        "name": f"{case.workload} over {case.backend}{at} ({settings})",
        "workload": case.workload,
        "backend": case.backend,
        "layer": layer,
        "payload_bytes": size,
        "settings": settings,
        "unit": "second",
    }


def _machine(run: Run) -> dict[str, Any]:
    known = run.manifest.environment
    metadata: dict[str, Any] = {"commbench_run": run.manifest.id}
    metadata |= {name: recorded(known, key) for name, key in _METADATA.items()}
    implementation, _, version = str(known.get("python") or "").partition(" ")
    metadata |= {"python_implementation": implementation.lower(), "python_version": version}
    packages = known.get("packages") or {}
    metadata |= {f"{name}_version": packages.get(name) for name in ("commbench", "distributed")}
    # pyperf rejects empty texts and line breaks.
    texts = {
        name: re.sub(r"\s+", " ", value) if isinstance(value, str) else value
        for name, value in metadata.items()
    }
    return {name: value for name, value in texts.items() if value}

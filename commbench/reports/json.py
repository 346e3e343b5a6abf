"""``json``: the stable machine interface, in base units; a number that is unknown is null."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import TYPE_CHECKING, Any

from commbench.reports.content import Content
from commbench.reports.tables import all_to_all

if TYPE_CHECKING:
    import pandas as pd


def render(content: Content) -> str:
    """Return the whole report as one JSON object."""
    run = content.data.run
    cases = {case.id: case for case in run.suite.cases}
    described = _rows(content.summaries)
    for row in described:
        case = cases[row["case_id"]]
        row["params"] = dict(case.params)
        row["cluster"] = dataclasses.asdict(case.cluster)
        if row["workload"] == "pingpong":
            row["message_bytes"] = row["payload_bytes"]
    swept = content.summaries["workload"] == "all-to-all"
    sizes = all_to_all.block_bytes(content, content.summaries[swept])
    for row, size in zip(itertools.compress(described, swept), sizes, strict=True):
        row["message_bytes"] = size
    report = {
        "run": {
            "id": run.id,
            "suite": run.suite.name,
            "started_at": run.started_at,
            "command": run.command,
            "seed": run.seed,
            "schema_version": run.schema_version,
            "min_transfer_bytes": run.min_transfer_bytes,
            "environment": run.environment,
        },
        "warnings": list(content.warnings),
        "cases": described,
        "pairs": _rows(content.pairs),
        "slow_pairs": _rows(content.slow_pairs),
        "comparisons": [dataclasses.asdict(c) for c in content.comparisons],
        "transports": _rows(content.transports),
        "coverage": _rows(content.coverage),
        "failures": _rows(content.data.failures),
    }
    return as_json(report)


def as_json(report: Any) -> str:
    """Return `report` as JSON that every parser takes: what is not finite is null."""
    return json.dumps(_finite(report), indent=1, allow_nan=False) + "\n"


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_dict(orient="records")
    return rows


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # NumPy's scalars know their Python equals.
    return _finite(value.item()) if hasattr(value, "item") else value

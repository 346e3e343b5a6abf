"""``json``: the stable machine interface, in base units; unknown numbers are null.

Each pair of workers has one line, because there may be a million pairs.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from commbench.analysis.run import Run
from commbench.model import FETCHES, LAYERS
from commbench.reports.opening import verdicts

_CHUNK = 10_000
"""The rows to convert to Python objects at a time."""


def render(run: Run) -> str:
    """Return the whole report as one JSON object."""
    manifest = run.manifest
    described = _rows(run.costs)
    for row in described:
        case = run.cases[row["case_id"]]
        row["given_backend"] = case.backend
        row["params"] = dict(case.params)
        row["cluster"] = dataclasses.asdict(case.cluster)
        row["settings"] = case.settings
        if row["layer"] in (*LAYERS, *FETCHES):
            row["message_bytes"] = run.message_bytes(case.id, row["layer"], row["payload_bytes"])
    report: dict[str, Any] = {
        "run": {
            **vars(manifest),
            "suite": run.suite.name,
            "reproduces": run.suite.reproduces or None,
            "scale": run.suite.scale,
            "stopping": manifest.stopping and vars(manifest.stopping),
            "ended_by": run.ended_by or None,
        },
        "warnings": list(run.warnings),
        "verdicts": [*verdicts(run)],
        "findings": findings(run),
        "cases": described,
        "pairs": run.pairs,
        "links": _rows(run.link_bandwidths),
        "shuffles": _rows(run.shuffles),
        "slow_pairs": _rows(run.slow_pairs),
        "scaling": _rows(run.scaling),
        "comparisons": [dataclasses.asdict(c) for c in run.comparisons],
        "published": [
            {
                **vars(comparison),
                "value": comparison.value and vars(comparison.value),
                "comparable": comparison.comparable,
            }
            for comparison in run.published_comparisons
        ],
        "transports": run.pair_transports,
        "places": run.worker_places,
        "coverage": _rows(run.coverage),
        "profile": _rows(run.profile_shares),
        "failures": _rows(run.failures),
    }
    text = ""
    for part in _parts(report):
        # A join would keep half a gigabyte twice, where this extends the text.
        text += part
    return text


def findings(run: Run) -> list[dict[str, Any]]:
    """Return the fields of all findings; the limits of an effect without an interval are null."""
    described = [dataclasses.asdict(finding) for finding in run.findings]
    for fields, finding in zip(described, run.findings, strict=True):
        if not finding.effect.has_interval:
            fields["effect"] |= {"low": None, "high": None}
    return described


def dumps(value: Any) -> str:
    """Return `value` as JSON in which every number is finite or null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False) + "\n"


def _parts(report: dict[str, Any]) -> Iterator[str]:
    """Yield the JSON text in parts."""
    opening = "{\n"
    for name, section in report.items():
        yield f'{opening} "{name}": '
        yield from _text(section)
        opening = ",\n"
    yield "\n}\n"


def _text(section: Any) -> Iterator[str]:
    """Yield the parts of the JSON text of a section of the report."""
    if not isinstance(section, pd.DataFrame):
        yield dumps(section).rstrip().replace("\n", "\n ")
        return
    encode = json.JSONEncoder(allow_nan=False).encode
    yield "["
    for begin in range(0, len(section), _CHUNK):
        lines = map(encode, _rows(section[begin : begin + _CHUNK]))
        yield ("," if begin else "") + ",".join(f"\n  {line}" for line in lines)
    yield "\n ]" if len(section) else "]"


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    # Column by column: row by row, a million pairs take a minute.
    names = [str(name) for name in table.columns]
    columns = (_cells(table[name]) for name in table.columns)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _cells(column: pd.Series[Any]) -> list[Any]:
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f":
        return [value if math.isfinite(value) else None for value in values]
    return [value if isinstance(value, str | int) else _finite(value) for value in values]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # NumPy's scalars have a Python equivalent.
    return _finite(value.item()) if hasattr(value, "item") else value

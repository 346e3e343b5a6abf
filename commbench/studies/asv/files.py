"""The result files of asv's and its list of benchmarks, written and added to."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import UsageError
from commbench.stats.summary import median_interval
from commbench.studies.asv import documents
from commbench.studies.asv.benchmarks import PARAM_NAMES, UNIT, VERSION, benchmark, medians
from commbench.studies.asv.origin import Commit

if TYPE_CHECKING:
    from commbench.analysis.run import Run

_CONFIDENCE = 0.99
_CELLS = (
    "result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number",
    "stats_repeat", "samples",
)  # fmt: skip
"""The columns of a result that have a value for each combination of parameters."""
_COLUMNS = (*_CELLS, "params", "version", "started_at", "duration")
_Cells = dict[tuple[str, ...], dict[str, Any]]


def write(run: Run, results: Path, machine: Mapping[str, str], commit: Commit) -> Path:
    """Add the medians of `run` to asv's `results` and return the file of the commit's.

    What the file has of other parameters and benchmarks stays, what it has of the same is
    replaced: to export a run again changes nothing.

    Raises
    ------
    UsageError
        Where no launch ended well, or another benchmark has the name.
    ResultsError
        Where asv's files can't be read or written.
    """
    found = medians(run)
    if not found:
        raise UsageError(f"no launch of {run.manifest.id} ended well: there is nothing to export")
    python = re.search(r"\d+\.\d+", str(run.manifest.environment.get("python")))
    version = python[0] if python else ""
    env_name = f"commbench-py{version}"
    file = results / machine["machine"] / f"{commit.hash[:8]}-{env_name}.json"
    stored = documents.read(file) if file.exists() else {}
    rows = _rows(stored)
    for name, cells in found.items():
        old, known = rows.get(name, {}), {}
        if old.get("version") == VERSION:
            known = _cells(old)
        known |= {tuple(map(repr, key)): _cell(samples) for key, samples in cells.items()}
        rows[name] = _row(known, _axes(known), run, name)
    join(results, [_benchmark(name, _axes(_cells(rows[name]))) for name in found])
    documents.write(results / machine["machine"] / "machine.json", {**machine, "version": 1})
    documents.write(
        file,
        {
            "commit_hash": commit.hash,
            "env_name": env_name,
            "date": commit.date_ms,
            "params": {**machine, "python": version},
            "python": version,
            "requirements": {},
            "env_vars": {},
            "result_columns": list(_COLUMNS),
            "results": {
                name: [row.get(column) for column in _COLUMNS] for name, row in rows.items()
            },
            "durations": {},
            "version": 2,
        },
    )
    return file


def join(results: Path, benchmarks: Iterable[Mapping[str, Any]]) -> None:
    """Add `benchmarks` to ``benchmarks.json``; of one that is there the parameters are united.

    ``asv publish`` shows what that file lists.
    """
    file = results / "benchmarks.json"
    listed = documents.read(file) if file.exists() else {}
    for entry in benchmarks:
        name, old = entry["name"], listed.get(entry["name"])
        if old is None:
            listed[name] = dict(entry)
            continue
        for key in ("param_names", "version"):
            if old.get(key) != entry[key]:
                raise UsageError(
                    f"{file} has another benchmark {name}: its {key} is {old.get(key)}, not "
                    f"{entry[key]}; give another --output, or remove it there"
                )
        # Theirs may well be told better than ours.
        listed[name] = {**old, "params": _united(old["params"], entry["params"])}
    documents.write(file, {**listed, "version": 2})


def _benchmark(name: str, axes: list[list[str]]) -> dict[str, Any]:
    return {
        "name": name, "type": "track", "unit": UNIT, "version": VERSION, "timeout": 60.0,
        "param_names": list(PARAM_NAMES), "params": axes,
        "code": "the median over launches of each launch's median, by commbench",
    }  # fmt: skip


def _cell(samples: Sequence[float]) -> dict[str, Any]:
    import numpy as np

    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
    cell = {
        "result": median, "stats_q_25": low, "stats_q_75": high, "stats_number": 1,
        "stats_repeat": len(samples), "samples": list(samples),
    }  # fmt: skip
    k, level = median_interval(len(samples), _CONFIDENCE)
    if level >= _CONFIDENCE:
        ordered = sorted(samples)
        cell |= {"stats_ci_99_a": ordered[k - 1], "stats_ci_99_b": ordered[-k]}
    return cell


def _rows(stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    columns = stored.get("result_columns", ())
    return {
        name: dict(zip(columns, row, strict=False))
        for name, row in stored.get("results", {}).items()
    }


def _cells(row: Mapping[str, Any]) -> _Cells:
    """Return by parameters what a row of a result file has for each of their combinations."""
    places = list(itertools.product(*row["params"]))
    columns = {name: row.get(name) or [None] * len(places) for name in _CELLS}
    return {
        place: {name: columns[name][number] for name in _CELLS}
        for number, place in enumerate(places)
        if isinstance(value := columns["result"][number], int | float) and not math.isnan(value)
    }


def _axes(places: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Return the values of each parameter, in the order in which they occur."""
    return [list(dict.fromkeys(values)) for values in zip(*places, strict=True)]


def _united(one: Sequence[Sequence[str]], two: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(dict.fromkeys([*a, *b])) for a, b in zip(one, two, strict=True)]


def _row(cells: _Cells, axes: list[list[str]], run: Run, name: str) -> dict[str, Any]:
    """Return a benchmark's row; what was not measured is nan, which asv shows as ``n/a``."""
    nothing = {"result": math.nan}
    places = [cells.get(place, nothing) for place in itertools.product(*axes)]
    mine = run.ends[run.ends["workload"].map(benchmark) == name]
    return {
        **{column: [cell.get(column) for cell in places] for column in _CELLS},
        "params": axes,
        "version": VERSION,
        "started_at": int(datetime.fromisoformat(run.manifest.started_at).timestamp() * 1000),
        "duration": float(mine["seconds"].sum()),
    }

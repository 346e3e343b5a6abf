"""Write results of a run in the format of asv, for ``asv publish``.

In asv's terms, a workload is a benchmark, ``workloads.track_<workload>``, with four parameters:
``backend``, ``layer``, ``payload_bytes`` (None if it depends on the settings) and ``settings``.
Its samples are the medians of the launches, in seconds; its value is their median. The benchmarks
in ``suites/asv`` have the same names and parameters.

The files are those of asv 0.6: version 2 of results and benchmarks, version 1 of machines.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from commbench.analysis.run import Run
from commbench.errors import ResultsError, UsageError
from commbench.machine import environment
from commbench.machine.environment import recorded
from commbench.model import Manifest
from commbench.stats.inference import launches_interval
from commbench.stats.selection import GROUP, describe_settings, good_launches
from commbench.store import files

PARAM_NAMES = ("backend", "layer", "payload_bytes", "settings")
UNIT = "seconds"
"""The unit of all benchmarks; for asv lower is always better, so bandwidths are not tracked."""
VERSION = "1"
"""The version of all benchmarks; asv discards results of other versions."""

Key = tuple[str, str, int | None, str]
"""The values of a benchmark's parameters."""
Medians = dict[str, dict[Key, list[float]]]
"""The medians of the launches in seconds, by benchmark and parameters."""

_CONFIDENCE = 0.99
_CELLS = (
    "result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number",
    "stats_repeat", "samples",
)  # fmt: skip
"""The columns of a result that have a value for each combination of parameters."""
_COLUMNS = (*_CELLS, "params", "version", "started_at", "duration")
_Cells = dict[tuple[str, ...], dict[str, Any]]
_GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Commit:
    """A commit of the measured project, with the author's date."""

    hash: str
    date_ms: int


def find_commit(
    run: Manifest, name: str | None, repository: Path, *, force: bool = False
) -> Commit:
    """Return the commit in `repository` that `run` has measured.

    Parameters
    ----------
    name
        A revision of git; None for that of the checkout in which the run was started.
    force
        Whether to accept a run that was measured with uncommitted changes.

    Raises
    ------
    UsageError
        If the commit isn't known, isn't in the repository, or had uncommitted changes.
    """
    commit, dirty = (
        recorded(run.environment, f"git.working_directory.{key}") for key in ("commit", "dirty")
    )
    if name is None and not commit:
        raise UsageError(
            f"{run.id} doesn't say of which commit it is: it was not started in a git checkout, "
            "or git gave no answer. Name the commit: --commit COMMIT"
        )
    asked = name or str(commit)
    said, problem = environment.run_tool(
        ("git", "-C", repository, "log", "-1", "--format=%H %at", "--end-of-options", asked, "--"),
        _GIT_TIMEOUT_S,
    )
    match = re.fullmatch(r"([0-9a-f]{40,64}) ([0-9]+)\s*", said)
    if match is None:
        raise UsageError(
            f"{repository} has no commit {asked!r} ({problem or 'git printed nothing'}); name the "
            "project's checkout with --repository, fetch what it lacks, or name another --commit"
        )
    if commit == match[1] and dirty and not force:
        raise UsageError(
            f"{run.id} was measured with changes that are not in {match[1][:12]}, and would be "
            "taken for that commit's. Commit them and measure again, or export it all the same: "
            "--force"
        )
    return Commit(match[1], int(match[2]) * 1000)


def describe_machine(run: Manifest, name: str | None, results: Path) -> dict[str, str]:
    """Return asv's description of the machine, from `results` or else from the run.

    Raises
    ------
    UsageError
        If the name of the machine is missing, or not valid for a folder.
    """
    name = name or recorded(run.environment, "host.name")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        why = f"{name!r} is no name for a folder" if name else "its provenance names none"
        raise UsageError(
            f"asv keeps a folder per machine, and for {run.id} {why}; name the machine in letters, "
            "digits, '.' and '-': --machine NAME"
        )
    file = results / name / "machine.json"
    if os.path.exists(file):
        fields = {key: str(value) for key, value in _read(file).items() if key != "version"}
        return {**fields, "machine": name}
    kernel = str(recorded(run.environment, "host.kernel") or "")
    memory = recorded(run.environment, "memory.total_bytes")
    return {
        "machine": name,
        "os": " ".join(kernel.split()[:2]),
        "arch": str(recorded(run.environment, "host.architecture") or ""),
        "cpu": str(recorded(run.environment, "cpu.model") or ""),
        "num_cpu": str(recorded(run.environment, "cpu.logical_cores") or ""),
        "ram": str(memory) if isinstance(memory, int) else "",
    }


def benchmark(workload: str) -> str:
    """Return the name of a workload's benchmark.

    Examples
    --------
    >>> benchmark("transpose-sum")
    'workloads.track_transpose_sum'
    """
    return "workloads.track_" + re.sub(r"\W", "_", workload)


def medians(run: Run) -> Medians:
    """Return the medians of the successful launches of `run`."""
    table = run.launch_medians
    table = table[table["case_id"].isin(list(good_launches(run)))]
    by_benchmark: Medians = {}
    for (case_id, layer, size), group in table.groupby(GROUP, sort=False):
        case = run.cases[str(case_id)]
        # On a cluster, the size depends on the settings, and is only known after measuring.
        size = None if layer == "workload" else int(size)
        key = (case.backend, str(layer), size, describe_settings(case))
        launches = by_benchmark.setdefault(benchmark(case.workload), {}).setdefault(key, [])
        launches += group["median_s"].tolist()
    return by_benchmark


def write(run: Run, results: Path, machine: Mapping[str, str], commit: Commit) -> Path:
    """Add the medians of `run` to asv's `results` and return the file of the commit.

    Results of the same benchmarks and parameters in the file are replaced; others are kept.

    Raises
    ------
    UsageError
        If no launch ended well, or the name belongs to another benchmark.
    ResultsError
        If asv's files can't be read or written.
    """
    by_benchmark = medians(run)
    if not by_benchmark:
        raise UsageError(f"no launch of {run.manifest.id} ended well: there is nothing to export")
    python = re.search(r"\d+\.\d+", str(run.manifest.environment.get("python")))
    version = python[0] if python else ""
    env_name = f"commbench-py{version}"
    file = results / machine["machine"] / f"{commit.hash[:8]}-{env_name}.json"
    stored = _read(file) if os.path.exists(file) else {}
    rows = _rows(stored)
    for name, cells in by_benchmark.items():
        old, known = rows.get(name, {}), {}
        if old.get("version") == VERSION:
            known = _cells(old)
        known |= {tuple(map(repr, key)): _cell(samples) for key, samples in cells.items()}
        rows[name] = _row(known, run, name)
    join(results, [_benchmark(name, rows[name]["params"]) for name in by_benchmark])
    _write(results / machine["machine"] / "machine.json", {**machine, "version": 1})
    _write(
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
    """Add `benchmarks` to ``benchmarks.json``, merging the parameters of existing ones.

    ``asv publish`` shows the benchmarks in that file.
    """
    file = results / "benchmarks.json"
    listed = _read(file) if os.path.exists(file) else {}
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
        # Other fields, such as a description, are kept.
        both = zip(old["params"], entry["params"], strict=True)
        listed[name] = {**old, "params": [list(dict.fromkeys([*a, *b])) for a, b in both]}
    _write(file, {**listed, "version": 2})


def _benchmark(name: str, axes: list[list[str]]) -> dict[str, Any]:
    return {
        "name": name, "type": "track", "unit": UNIT, "version": VERSION, "timeout": 60.0,
        "param_names": list(PARAM_NAMES), "params": axes,
        "code": "the median over launches of each launch's median, by commbench",
    }  # fmt: skip


def _cell(samples: Sequence[float]) -> dict[str, Any]:
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
    cell = {
        "result": median, "stats_q_25": low, "stats_q_75": high, "stats_number": 1,
        "stats_repeat": len(samples), "samples": list(samples),
    }  # fmt: skip
    low, high, level = launches_interval(samples, _CONFIDENCE)
    if level >= _CONFIDENCE:
        cell |= {"stats_ci_99_a": low, "stats_ci_99_b": high}
    return cell


def _rows(stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    columns = stored.get("result_columns", ())
    return {
        name: dict(zip(columns, row, strict=False))
        for name, row in stored.get("results", {}).items()
    }


def _cells(row: Mapping[str, Any]) -> _Cells:
    """Return the cells of a row of a result file for each combination of parameters."""
    combinations = list(itertools.product(*row["params"]))
    columns = {name: row.get(name) or [None] * len(combinations) for name in _CELLS}
    return {
        params: {name: columns[name][number] for name in _CELLS}
        for number, params in enumerate(combinations)
        if isinstance(value := columns["result"][number], int | float) and not math.isnan(value)
    }


def _row(cells: _Cells, run: Run, name: str) -> dict[str, Any]:
    """Return a benchmark's row; unmeasured values are nan, which asv shows as ``n/a``."""
    nothing = {"result": math.nan}
    # The distinct values of each parameter.
    axes = [list(dict.fromkeys(values)) for values in zip(*cells, strict=True)]
    ordered = [cells.get(params, nothing) for params in itertools.product(*axes)]
    mine = run.ends[run.ends["workload"].map(benchmark) == name]
    return {
        **{column: [cell.get(column) for cell in ordered] for column in _CELLS},
        "params": axes,
        "version": VERSION,
        "started_at": int(datetime.fromisoformat(run.manifest.started_at).timestamp() * 1000),
        "duration": float(mine["seconds"].sum()),
    }


def _read(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`, or raise a ResultsError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"can't read asv's {file}: {error}") from error
    if not isinstance(content, dict):
        raise ResultsError(f"{file} is not a file of asv's: it holds no object")
    return content


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """Write `file` atomically, and create its folders, or raise an UnwritableError."""
    temporary = file.with_name(file.name + ".part")
    with files.writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        temporary.replace(file)

"""Compare a run with reference values, as in ReFrame.

A file has one table per expected number::

    [[reference]]
    system = "node*"            # the host's name; * and ? are wildcards
    workload = "merge"
    backend = "tcp"
    params = { rows = 250000 }  # those that distinguish cases; others may have any value
    cluster = { n_workers = 2 }
    metric = "time"             # or "throughput"
    value = 0.176
    lower = -0.1                # at most 10 % below; absent: no lower limit
    upper = 0.1
    unit = "s"

For a ping-pong, ``layer`` and ``message_bytes`` select one of its numbers.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from commbench.errors import ReferenceFileError, UnknownNameError, UsageError
from commbench.harness.suite import structure
from commbench.machine.environment import recorded
from commbench.model import Case
from commbench.model.units import format_message_size

if TYPE_CHECKING:
    from commbench.analysis.run import Run

UNITS = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "throughput": {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9},
}
"""The factors of units to seconds, or to bytes per second."""
_COLUMNS = {"time": "median_s", "throughput": "throughput_Bps"}
_CLUSTER = ("n_workers", "threads_per_worker", "device")
_TOLERANCE = 0.1


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A ``reference`` table: the expected value of a metric of one case."""

    system: str
    workload: str
    backend: str
    value: float
    unit: str
    metric: Literal["time", "throughput"] = "time"
    lower: float | None = None
    upper: float | None = None
    params: dict[str, Any] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)
    layer: str | None = None
    message_bytes: int | None = None

    @property
    def name(self) -> str:
        """The metric, the case and its settings in one line."""
        settings = [*self.params.items(), *self.cluster.items()]
        apart = ", ".join(f"{key}={value}" for key, value in settings)
        return self.short_name + (f" ({apart})" if apart else "")

    @property
    def short_name(self) -> str:
        """The ``name`` without the settings."""
        size = "" if self.message_bytes is None else f" {format_message_size(self.message_bytes)}"
        layer = f" {self.layer}" if self.layer else ""
        return f"{self.metric} of {self.workload} over {self.backend}{layer}{size}"

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest accepted value, in the reference's unit."""
        return (
            -math.inf if self.lower is None else self.value * (1 + self.lower),
            math.inf if self.upper is None else self.value * (1 + self.upper),
        )


@dataclass(frozen=True, kw_only=True)
class _ReferenceFile:
    reference: tuple[Reference, ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A reference and the measured value in the same unit, nan if there is none."""

    reference: Reference
    value: float

    @property
    def ok(self) -> bool:
        """Whether the value is known and within the limits."""
        low, high = self.reference.limits
        return low <= self.value <= high


def read(path: Path) -> tuple[Reference, ...]:
    """Return the references in the TOML file `path`.

    Raises
    ------
    ReferenceFileError
        If it can't be read, or a key, type, unit or tolerance is wrong.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ReferenceFileError(f"can't read the references {path}: {error}") from error
    parsed: _ReferenceFile = structure(content, _ReferenceFile, str(path))
    if not parsed.reference:
        raise ReferenceFileError(f"{path} has no [[reference]] table; add one")
    for number, reference in enumerate(parsed.reference):
        try:
            _validate(reference)
        except UsageError as error:
            raise ReferenceFileError(f"{path}: reference[{number}]: {error}") from error
    return parsed.reference


def _validate(reference: Reference) -> None:
    if reference.unit not in UNITS[reference.metric]:
        raise UnknownNameError(
            f"unit of a {reference.metric}", reference.unit, UNITS[reference.metric]
        )
    if reference.value <= 0:
        raise UsageError(f"value is {reference.value:g}; it must be above 0")
    if reference.lower is not None and not -1 <= reference.lower <= 0:
        raise UsageError(
            f"lower is {reference.lower:g}; it is the share by which a value may fall below, "
            "from -1 to 0, for example -0.1"
        )
    if reference.upper is not None and reference.upper < 0:
        raise UsageError(
            f"upper is {reference.upper:g}; it is the share by which a value may lie above, 0 or "
            "more, for example 0.1"
        )


def compare_with_references(run: Run, references: Sequence[Reference]) -> list[Check]:
    """Compare a run with the references for its system.

    Raises
    ------
    ReferenceFileError
        If there is no reference for this system, or one matches no case or several numbers.
    """
    system = _system(run)
    mine = [r for r in references if fnmatchcase(system, r.system)]
    if not mine:
        known = ", ".join(dict.fromkeys(r.system for r in references))
        raise ReferenceFileError(
            f"no reference is for the system {system!r} of {run.manifest.id}; known: {known}"
        )
    return [Check(reference=r, value=_value(run, r)) for r in mine]


def _value(run: Run, reference: Reference) -> float:
    cases = [case for case in run.suite.cases if _matches(case, reference)]
    if not cases:
        known = ", ".join(f"{case.workload} over {case.backend}" for case in run.suite.cases)
        raise ReferenceFileError(
            f"{reference.name}: no case of {run.manifest.id} is that; known: {known}"
        )
    rows = run.summaries[run.summaries["case_id"].isin([case.id for case in cases])]
    if reference.layer is not None:
        rows = rows[rows["layer"] == reference.layer]
    if reference.message_bytes is not None:
        rows = rows[rows["payload_bytes"] == reference.message_bytes]
    if len(cases) > 1 or len(rows) > 1:
        raise ReferenceFileError(
            f"{reference.name}: {max(len(cases), len(rows))} numbers of {run.manifest.id} are "
            "that; say which by params, cluster, layer or message_bytes"
        )
    # Launches that were cut short are not compared.
    rows = rows[rows["n_launches"] > 0]
    if rows.empty:
        return math.nan
    in_base_units = float(rows[_COLUMNS[reference.metric]].iloc[0])
    return in_base_units / UNITS[reference.metric][reference.unit]


def _matches(case: Case, reference: Reference) -> bool:
    if (case.workload, case.backend) != (reference.workload, reference.backend):
        return False
    cluster = vars(case.cluster)
    for what, given, has in (
        ("parameter", reference.params, case.params),
        ("key of cluster", reference.cluster, cluster),
    ):
        for key, value in given.items():
            if key not in has:
                raise ReferenceFileError(f"{reference.name}: {UnknownNameError(what, key, has)}")
            if _plain(has[key]) != _plain(value):
                return False
    return True


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value


def _system(run: Run) -> str:
    return str(recorded(run.manifest.environment, "host.name") or "unknown")


def render_references(run: Run) -> str:
    """Return the text of a file of references to the values of this run, within 10 %.

    Raises
    ------
    UsageError
        If the run has no values.
    """
    cases, summaries = {case.id: case for case in run.suite.cases}, run.summaries
    tables = []
    for row in summaries[(summaries["n_launches"] > 0) & (summaries["median_s"] > 0)].itertuples():
        case = cases[row.case_id]
        lines: dict[str, Any] = {
            "system": _system(run), "workload": case.workload, "backend": case.backend,
            "params": {k: v for k, v in case.params.items() if k not in ("sizes", "layers")},
            "cluster": {key: getattr(case.cluster, key) for key in _CLUSTER},
        }  # fmt: skip
        if row.layer != "workload":
            lines |= {"layer": row.layer, "message_bytes": int(row.payload_bytes)}
        lines |= {
            "metric": "time", "value": float(f"{row.median_s:.4g}"),
            "lower": -_TOLERANCE, "upper": _TOLERANCE, "unit": "s",
        }  # fmt: skip
        table = (f"{key} = {_toml(value)}" for key, value in lines.items())
        tables.append("\n".join(["[[reference]]", *table]))
    if not tables:
        raise UsageError(f"{run.manifest.id} has no number to expect: no launch ended well")
    command = " ".join(run.manifest.command.split())
    return f"# From {run.manifest.id}: {command}\n\n" + "\n\n".join(tables) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        items = (f"{_key(key)} = {_toml(item)}" for key, item in value.items())
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # TOML and JSON have the same notation for strings, numbers and booleans.
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)

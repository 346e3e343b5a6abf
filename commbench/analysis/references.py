"""Compare a run with reference values, as in ReFrame.

docs/measurements.md has an example of a file, and the limits that follow from a spread.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy

from commbench.analysis.run import Run
from commbench.errors import UnknownNameError, UsageError
from commbench.harness.cases import structure
from commbench.machine.environment import recorded
from commbench.model import Case
from commbench.model.units import format_message_size
from commbench.stats.selection import GROUP

UNITS = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "throughput": {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9},
}
"""The factors of units to seconds, or to bytes per second."""
_CLUSTER = ("n_workers", "threads_per_worker", "device")
_MIN_TOLERANCE = 0.1
_FALSE_ALARMS = 0.05
"""The probability that one of the values of equal software is out of the limits of the spread."""
MIN_SLOWDOWN = 1.5
"""The slowdown that a value should show."""


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
    spread: float | None = None
    launches: int | None = None
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

    def limits(self, n_launches: int, n_checks: int) -> tuple[float, float]:
        """Return the smallest and the largest accepted value, in the reference's unit.

        Parameters
        ----------
        n_launches
            The launches of the value to accept.
        n_checks
            The number of values that are checked together.

        Notes
        -----
        With the standard deviation s of the logarithms of n launches, the median of m others has
        the prediction interval of log-normal launches, ``exp(± t c s sqrt(1 / n + 1 / m))``: t is
        Student's quantile for n - 1 degrees of freedom, with Bonferroni's correction, and
        c = sqrt(pi / 2) is the standard error of a median over that of a mean.
        """
        factor = math.inf
        if self.spread is not None and self.launches is not None:
            quantile = -float(
                scipy.special.stdtrit(self.launches - 1, _FALSE_ALARMS / 2 / n_checks)
            )
            error = self.spread * math.sqrt(math.pi / 2 * (1 / self.launches + 1 / n_launches))
            factor = max(1 + _MIN_TOLERANCE, math.exp(min(quantile * error, 700)))
        return (
            self.value / factor if self.lower is None else self.value * (1 + self.lower),
            self.value * factor if self.upper is None else self.value * (1 + self.upper),
        )


@dataclass(frozen=True, kw_only=True)
class _ReferenceFile:
    reference: tuple[Reference, ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """A reference, the measured value in the same unit, and the limits.

    There are two ``values`` if launches split into modes, and none if nothing was measured.
    """

    reference: Reference
    values: tuple[float, ...]
    limits: tuple[float, float]

    @property
    def ok(self) -> bool:
        """Whether the values are known and within the limits."""
        low, high = self.limits
        return bool(self.values) and low <= min(self.values) and max(self.values) <= high

    @property
    def slowdown(self) -> float:
        """The slowdown up to which a value passes."""
        if self.reference.metric == "time":
            return self.limits[1] / self.reference.value
        return self.reference.value / self.limits[0] if self.limits[0] else math.inf

    @property
    def is_undecided(self) -> bool:
        """Whether the spread, and no limit of the file, lets ``MIN_SLOWDOWN`` pass."""
        given = self.reference.upper if self.reference.metric == "time" else self.reference.lower
        follows = given is None and self.reference.spread is not None
        return self.ok and follows and self.slowdown > MIN_SLOWDOWN


def read(path: Path) -> tuple[Reference, ...]:
    """Return the references in the TOML file `path`.

    Raises
    ------
    UsageError
        If it can't be read, or a key, type, unit or tolerance is wrong.
    """
    command = f"commbench check RUN --write-reference {shlex.quote(str(path))}"
    make = f"make it from a good run: {command}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no {path} yet; {make}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"can't read the references {path}: {error}") from error
    # Of a file with other keys only, these are named.
    if not content.get("reference", content):
        raise UsageError(f"{path} has no [[reference]] table; remove it, and {make}")
    parsed: _ReferenceFile = structure(content, _ReferenceFile, str(path))
    for number, reference in enumerate(parsed.reference):
        try:
            _validate(reference)
        except UsageError as error:
            raise UsageError(f"{path}: reference[{number}]: {error}") from error
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
    if (reference.spread is None) != (reference.launches is None):
        raise UsageError("spread and launches belong together; give both, or neither")
    if reference.spread is not None and reference.spread < 0:
        raise UsageError(f"spread is {reference.spread:g}; it must be 0 or more")
    if reference.launches is not None and reference.launches < 2:
        raise UsageError(f"launches is {reference.launches}; a spread needs at least 2")


def compare_with_references(run: Run, references: Sequence[Reference]) -> list[Check]:
    """Compare a run with the references for its system.

    Raises
    ------
    UsageError
        If there is no reference for this system, or one matches no case or several numbers, or is
        the throughput of a workload that counts no bytes.
    """
    system = _system(run)
    mine = [r for r in references if fnmatchcase(system, r.system)]
    if not mine:
        known = ", ".join(dict.fromkeys(r.system for r in references))
        raise UsageError(
            f"no reference is for the system {system!r} of {run.manifest.id}; known: {known}"
        )
    checks = []
    for reference in mine:
        values, n_launches = _values(run, reference)
        limits = reference.limits(n_launches or 1, len(mine))
        checks.append(Check(reference=reference, values=values, limits=limits))
    return checks


def repeated(references: Sequence[Reference]) -> list[Check]:
    """Return the checks of a run that has the values and launches of the references."""
    return [
        Check(
            reference=each, values=(each.value,),
            limits=each.limits(each.launches or 1, len(references)),
        )
        for each in references
    ]  # fmt: skip


def _values(run: Run, reference: Reference) -> tuple[tuple[float, ...], int]:
    """Return the value, or that of both modes, in the reference's unit, and the launches."""
    cases = [case for case in run.suite.cases if _matches(case, reference)]
    if not cases:
        known = ", ".join(f"{case.workload} over {case.variant}" for case in run.suite.cases)
        raise UsageError(f"{reference.name}: no case of {run.manifest.id} is that; known: {known}")
    rows = run.summaries[run.summaries["case_id"].isin([case.id for case in cases])]
    if reference.layer is not None:
        rows = rows[rows["layer"] == reference.layer]
    if reference.message_bytes is not None:
        sizes = [run.message_bytes(*key) for key in rows[GROUP].itertuples(index=False)]
        rows = rows[np.array(sizes) == reference.message_bytes]
    if len(cases) > 1 or len(rows) > 1:
        raise UsageError(
            f"{reference.name}: {max(len(cases), len(rows))} numbers of {run.manifest.id} are "
            "that; say which by params, cluster, layer or message_bytes"
        )
    if reference.metric == "throughput" and (rows["payload_bytes"] == 0).any():
        raise UsageError(
            f"{reference.name}: {reference.workload} counts no bytes, and has no throughput; use "
            'metric = "time"'
        )
    # Launches that were cut short are not compared.
    rows = rows[rows["n_launches"] > 0]
    if rows.empty:
        return (), 0
    row = rows.iloc[0]
    # A median between modes is the time of no launch.
    times = (
        [row["median_s"]] if math.isnan(row["low_mode_s"]) else row[["low_mode_s", "high_mode_s"]]
    )
    if reference.metric == "throughput" and min(times) == 0:
        return (), int(row["n_launches"])
    unit = UNITS[reference.metric][reference.unit]
    values = tuple(
        float(
            seconds / unit if reference.metric == "time" else row["payload_bytes"] / seconds / unit
        )
        for seconds in times
    )
    return values, int(row["n_launches"])


def _matches(case: Case, reference: Reference) -> bool:
    if (case.workload, case.variant) != (reference.workload, reference.backend):
        return False
    cluster = asdict(case.cluster)
    for what, given, has in (
        ("parameter", reference.params, case.params),
        ("key of cluster", reference.cluster, cluster),
    ):
        for key, value in given.items():
            if key not in has:
                raise UsageError(f"{reference.name}: {UnknownNameError(what, key, has)}")
            if _plain(has[key]) != _plain(value):
                return False
    return True


def _plain(value: Any) -> Any:
    """Return a value as TOML has it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


def _system(run: Run) -> str:
    return str(recorded(run.manifest.environment, "host.name") or "unknown")


def render_references(run: Run) -> str:
    """Return the text of a file of references to the values of this run, with their spread.

    The values of a single launch, of unknown spread, are expected within 10 %.

    Raises
    ------
    UsageError
        If the run has no values.
    """
    summaries = run.summaries
    launches = run.launch_medians[run.launch_medians["median_s"] > 0]
    logarithms = np.log(launches.set_index(GROUP)["median_s"])
    spreads = logarithms.groupby(level=GROUP).agg(["std", "size"])
    tables, split = [], []
    for row in summaries[(summaries["n_launches"] > 0) & (summaries["median_s"] > 0)].itertuples():
        case = run.cases[row.case_id]
        if not math.isnan(row.low_mode_s):
            where = f" {row.layer}" * (row.layer != "workload")
            nbytes = run.message_bytes(row.case_id, row.layer, row.payload_bytes)
            where += f" {format_message_size(nbytes)}" * bool(where)
            split.append(
                f"# {run.case_names[row.case_id]}{where}: launches split into two modes, so that "
                "no single value is to be expected\n"
            )
            continue
        lines: dict[str, Any] = {
            "system": _system(run), "workload": case.workload, "backend": case.variant,
            "params": _params(run, case),
            "cluster": _cluster(run, case),
        }  # fmt: skip
        if row.layer != "workload":
            size = run.message_bytes(row.case_id, row.layer, row.payload_bytes)
            lines |= {"layer": row.layer, "message_bytes": size}
        lines |= {
            "metric": "time", "value": float(f"{row.median_s:.4g}"), "unit": "s",
        }  # fmt: skip
        # Launches whose median is 0 have no logarithm.
        spread, n_launches = spreads.loc[row.case_id, row.layer, row.payload_bytes]
        if n_launches > 1:
            lines |= {"spread": float(f"{spread:.2g}"), "launches": int(n_launches)}
        else:
            lines |= {"lower": -_MIN_TOLERANCE, "upper": _MIN_TOLERANCE}
        table = (f"{key} = {_toml(value)}" for key, value in lines.items())
        tables.append("\n".join(["[[reference]]", *table]))
    if not tables:
        why = "launches split into two modes" if split else "no launch ended well"
        raise UsageError(f"{run.manifest.id} has no number to expect: {why}")
    command = " ".join(run.manifest.command.split())
    head = [f"# From {run.manifest.id}: {command}\n", *split]
    return "".join(head) + "\n" + "\n\n".join(tables) + "\n"


def _alike(run: Run, case: Case) -> list[Case]:
    what = (case.workload, case.variant)
    return [each for each in run.suite.cases if (each.workload, each.variant) == what]


def _params(run: Run, case: Case) -> dict[str, Any]:
    """Return the parameters but those that a reference has a value of, if cases don't differ."""
    every = [each.params for each in _alike(run, case)]
    return {
        key: value
        for key, value in case.params.items()
        if (key not in ("sizes", "layers") or any(params.get(key) != value for params in every))
        # A function is compared with its other versions.
        and not (key == "sha256" and ":" in case.workload)
    }


def _cluster(run: Run, case: Case) -> dict[str, Any]:
    """Return the fields of the cluster that are always written, and those in which cases differ."""
    clusters = [each.cluster.measured() for each in _alike(run, case)]
    return {
        key: value
        for key, value in case.cluster.measured().items()
        if key in _CLUSTER or any(cluster[key] != value for cluster in clusters)
    }


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        # TOML has no null.
        known = ((key, item) for key, item in value.items() if item is not None)
        items = (f"{_key(key)} = {_toml(item)}" for key, item in known)
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # TOML and JSON have the same notation for strings, numbers and booleans.
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)

"""Match the cases of two runs, and find the differences that make them incomparable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.machine.environment import recorded
from commbench.model import Case, ClusterSpec, Manifest
from commbench.model.units import format_bytes

_MACHINE = (
    "host.name", "host.kernel", "host.architecture", "cpu.model", "cpu.logical_cores",
    "cpu.usable_cores", "cpu.cgroup_quota_cores", "cpu.governors", "cpu.turbo", "cpu.clock_source",
    "memory.total_bytes", "memory.cgroup_limit_bytes", "memory.transparent_huge_pages", "python",
)  # fmt: skip
_TABLES = ("packages", "variables")


@dataclass(frozen=True)
class Difference:
    """A difference between two runs; a value that was not recorded is None."""

    key: str
    baseline: Any
    candidate: Any

    def __str__(self) -> str:
        return f"{self.key}: {_format_value(self.baseline)} against {_format_value(self.candidate)}"


@dataclass(frozen=True)
class Match:
    """The matching cases of two runs, and their differences.

    ``same`` maps the ids of the baseline's cases to those of the candidate. ``alone`` describes
    the cases that only one of the runs has.
    """

    same: Mapping[str, str]
    differences: tuple[Difference, ...]
    alone: tuple[str, ...]


def match(baseline: Manifest, candidate: Manifest) -> Match:
    """Match the cases of two runs and collect the differences that make them incomparable.

    Cases with the same id match. Other cases match if both runs have one case with the workload
    and the backend; their settings are differences.
    """
    theirs = {case.id: case for case in candidate.suite.cases}
    pairs = [(case, theirs[case.id]) for case in baseline.suite.cases if case.id in theirs]
    taken = {case.id for case, _ in pairs}
    ours = [case for case in baseline.suite.cases if case.id not in taken]
    rest = [case for case in candidate.suite.cases if case.id not in taken]
    for case in ours:
        alike, equals = (
            [other for other in run.suite.cases if _kind(other) == _kind(case)]
            for run in (baseline, candidate)
        )
        if len(alike) == len(equals) == 1:
            pairs.append((case, equals[0]))
    matched = {case.id for pair in pairs for case in pair}
    alone = [
        f"{case.workload} over {case.variant} is in {run.id} alone"
        for run, cases in ((baseline, ours), (candidate, rest))
        for case in cases
        if case.id not in matched
    ]
    differences = [*environments(baseline.environment, candidate.environment)]
    # Replication and deadline change the precision of times, not the times.
    settings = ["iterations", "warmups"]
    rules = [run.stopping for run in (baseline, candidate)]
    if any(rule is not None and not rule.fixed_iterations for rule in rules):
        settings.remove("iterations")
    for pair in pairs:
        differences += _cases(*pair, settings)
    return Match(
        same={one.id: two.id for one, two in pairs},
        differences=tuple(differences),
        alone=tuple(alone),
    )


def environments(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences of two environments that change times."""
    for key in _MACHINE:
        yield from _difference(key, _value(one, key), _value(two, key))
    gpus = [
        [f"{gpu['name']}, driver {gpu['driver']}" for gpu in run.get("gpus") or ()]
        for run in (one, two)
    ]
    yield from _difference("gpus", *gpus)
    for table in _TABLES:
        yield from _tables(table, one.get(table) or {}, two.get(table) or {})


def commits(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences of known commits, of commbench and of the working directory."""
    for name in ("commbench", "working_directory"):
        known = [(run.get("git") or {}).get(name) or {} for run in (one, two)]
        if all(known):
            texts = [f"{each['commit'][:10]}{', changed' * bool(each['dirty'])}" for each in known]
            yield from _difference(f"git.{name}", *texts)


def _value(environment: Mapping[str, Any], key: str) -> Any:
    value = recorded(environment, key)
    # The exact number depends on the build of the kernel.
    return format_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else value


def _cases(one: Case, two: Case, settings: Sequence[str]) -> Iterator[Difference]:
    where = f"{one.workload} over {one.variant}: "
    # What an earlier version of the workload had no parameter for, it did as the default does.
    later = {name: case.params[name] for case in (one, two) for name in case.later_params}
    yield from _tables(f"{where}params", {**later, **one.params}, {**later, **two.params})
    clusters = (_cluster_settings(case.cluster) for case in (one, two))
    yield from _tables(f"{where}cluster", *clusters)
    for key in settings:
        yield from _difference(where + key, getattr(one, key), getattr(two, key))


def _cluster_settings(cluster: ClusterSpec) -> dict[str, Any]:
    settings = cluster.measured() | {"placement": cluster.placed}
    return {name: "none" if value in ("", {}) else value for name, value in settings.items()}


def _tables(where: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[Difference]:
    for key in sorted({*one, *two}):
        yield from _difference(f"{where}.{key}", one.get(key), two.get(key))


def _difference(key: str, one: Any, two: Any) -> Iterator[Difference]:
    # Tuples become lists in a file.
    one, two = (list(each) if isinstance(each, tuple) else each for each in (one, two))
    if one != two and (one, two) not in (([], None), (None, [])):
        yield Difference(key, one, two)


def _kind(case: Case) -> tuple[str, str]:
    return case.workload, case.variant


def _format_value(value: Any) -> str:
    return "unknown" if value is None else str(value)

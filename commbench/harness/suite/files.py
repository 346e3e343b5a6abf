"""The suite file: its tables as dataclasses, and the cases that they ask for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commbench.errors import CommbenchError, SuiteError
from commbench.harness.suite import scaling
from commbench.harness.suite.cases import cases_for, structure, suite_of
from commbench.harness.suite.clusters import ClusterOverrides, GivenCluster, merged
from commbench.harness.suite.placement import place
from commbench.model import Case, ClusterSpec, Suite, published
from commbench.workloads import device


@dataclass(frozen=True, kw_only=True)
class CaseEntry:
    """A ``case`` table."""

    workload: str
    params: dict[str, Any] = field(default_factory=dict)
    scaling: dict[str, str] = field(default_factory=dict)
    from_scale: float = 0.0
    workers: tuple[int, ...] | None = None
    backends: tuple[str, ...] | None = None
    cluster: ClusterOverrides = field(default_factory=ClusterOverrides)
    launches: int | None = None
    iterations: int | None = None
    warmups: int | None = None
    seed: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteFile:
    """The whole file."""

    case: tuple[CaseEntry, ...]
    name: str | None = None
    reproduces: str = ""
    scale: float = 1.0
    backends: tuple[str, ...] = ("tcp",)
    cluster: ClusterOverrides = field(default_factory=ClusterOverrides)
    launches: int | None = None
    iterations: int | None = None
    warmups: int | None = None
    seed: int | None = None
    timeout_s: float | None = None


_REPLICATION = ("launches", "iterations", "warmups", "seed", "timeout_s")
_THREADS = "threads_per_worker"


def read_suite(path: Path, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Return the suite in the TOML file `path`.

    Parameters
    ----------
    path
        The file.
    overrides
        Values for ``backends``, ``launches``, ``scale`` and the like that win over all of the
        file's; those that are None don't count. ``cluster`` has those of ``ClusterSpec``.

    Raises
    ------
    SuiteError
        Where the file can't be read, a key is unknown or a value has the wrong type, with the
        path of the key and the known ones; where the scale is none, or a case has no rule for it.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SuiteError(f"can't read the suite {path}: {error}") from error
    file = structure(content, SuiteFile, str(path))
    given = overrides or {}
    given_cluster = GivenCluster(given.get("cluster") or {})
    scale = _first(given.get("scale"), file.scale)
    try:
        scaling.check(scale)
        if file.reproduces:
            published.figure(file.reproduces)
    except CommbenchError as error:
        raise SuiteError(f"{path}: {error}") from error
    cases: list[Case] = []
    for number, entry in enumerate(file.case):
        if scale < entry.from_scale:
            continue
        try:
            clusters = _clusters(file, entry, scale, given_cluster)
            for cluster in _placed(path, file, entry, clusters, given.get("placement")):
                cases += _cases(file, entry, cluster, scale, given)
        except CommbenchError as error:
            raise SuiteError(f"{path}: case[{number}]: {error}") from error
    given_cluster.check_used(file.name or path.stem)
    if given.get("backends"):
        # Cases that differ in their backends only are one where others are asked for.
        cases = list({case.id: case for case in cases}.values())
    suite = suite_of(file.name or path.stem, cases)
    return replace(suite, reproduces=file.reproduces, scale=scale)


def _cases(
    file: SuiteFile, entry: CaseEntry, cluster: ClusterSpec, scale: float, given: Mapping[str, Any]
) -> list[Case]:
    rules = {name: rule for name, rule in entry.scaling.items() if name != _THREADS}
    settings = {
        key: value
        for key in _REPLICATION
        if (value := _first(given.get(key), getattr(entry, key), getattr(file, key))) is not None
    }
    return cases_for(
        entry.workload,
        _first(given.get("backends"), entry.backends, file.backends),
        scaling.scaled(entry.params, rules, scale),
        cluster,
        **settings,
    )


def _clusters(
    file: SuiteFile, entry: CaseEntry, scale: float, given: GivenCluster
) -> Iterator[ClusterSpec]:
    if scale < 1 and not entry.scaling:
        raise SuiteError(
            f"scale is {scale:g}, and nothing says what that does to the case; add for example "
            'scaling = { rows = "linear" }'
        )
    if entry.workers == ():
        raise SuiteError("workers is empty; name at least one number, or leave it out")
    cluster = merged(file.cluster, entry.cluster)
    if _THREADS in entry.scaling:
        rules = {_THREADS: entry.scaling[_THREADS]}
        threads = scaling.scaled({_THREADS: cluster.threads_per_worker}, rules, scale)
        cluster = replace(cluster, **threads)
    if cluster.device == "auto":
        cluster = replace(cluster, device=device.detect())
    cluster = given.win_over(cluster, entry.workload)
    for n_workers in entry.workers or (cluster.n_workers,):
        yield replace(cluster, n_workers=n_workers)


def _placed(
    path: Path,
    file: SuiteFile,
    entry: CaseEntry,
    clusters: Iterator[ClusterSpec],
    given: str | None,
) -> Iterator[ClusterSpec]:
    """Yield the clusters with their workers placed; the file's placement lies beside it."""
    own = _first(entry.cluster.placement, file.cluster.placement, "none")
    choice, folder = (own, path.parent) if given is None else (given, Path())
    for cluster in clusters:
        placement = place(
            choice, cluster.n_workers, cluster.device, folder, cluster.workers_per_gpu
        )
        yield replace(cluster, placement=placement)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)

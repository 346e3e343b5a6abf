"""Read suites from TOML files, with overrides from the command line.

A suite file with all of its keys (no launcher uses all of them). Numbers may be texts as on the
command line: "5m" for a duration, "8MiB" for a size, "250k" for a count, "1%" for a scale::

    name = "smoke"            # every key but case and its workload is optional
    backends = ["tcp", "ucx:shm"]
    vary = ["UCX_TLS=tcp|tcp,sm"]  # settings to compare, as backends are: docs/suites.md
    launches = 6              # fresh clusters per case
    iterations = 3            # timed calls per launch
    warmups = 1
    seed = 0
    timeout_s = 300.0         # of one launch
    reproduces = "mpi4dask.merge_ri2"  # a figure in commbench.model.published to compare with
    scale = 0.01              # 1: the full size

    [cluster]
    n_workers = 2
    threads_per_worker = 1
    device = "cpu"            # or gpu, or auto: gpu if there is one and CuPy
    placement = "none"        # or auto, or a placement file relative to this one
    launcher = "local"        # or mpirun, ssh, slurm, pbs, lsf, external: docs/launchers.md
    launcher_options = { memory = "8GB" }  # further options of the launcher, as text
    hosts = ["head", "node1"]  # ssh, mpirun: the scheduler's first
    scheduler = "tcp://10.0.0.1:8786"  # external: its address or file
    start_timeout_s = 60.0    # for all workers to be there; below timeout_s
    cpus_per_worker = 2       # CPUs that no other worker has; not together with placement
    task_placement = "pinned"  # or dask: as Dask's scheduler decides, with other bytes each time
    memory_limit = "4GB"      # of each worker, or a share of its host's memory, as "0.25"
    env = { UCX_TLS = "tcp" }  # in every process, after what the backend sets
    dask_config = { "distributed.comm.compression" = "zlib" }  # likewise
    workers_per_gpu = 1       # this and the next three with GPUs only: docs/gpu.md
    rmm_pool = "10GB"         # or a share of the GPU's memory, as "0.5"
    rmm_async = false         # CUDA's asynchronous allocator; not together with:
    rmm_managed = false       # managed memory

    [[case]]                  # at least one; it may override backends to timeout_s and the cluster,
                              # this as cluster = { n_workers = 4 } or in a table [case.cluster]
    workload = "merge"        # or "my_job.py", relative to this file, or "module:function"
    params = { rows = 1000 }
    workers = [2, 4, 6]       # a case for each of these numbers of workers
    scaling = { rows = "linear" }  # the effect of scale, by the rules of `scaled`
    from_scale = 0.001        # leave the case out at smaller scales
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, get_type_hints

from commbench import workloads
from commbench.errors import CommbenchError, UnknownNameError, UsageError
from commbench.harness import vary as vary_
from commbench.harness.cases import cases_for, make_suite, structure
from commbench.machine import cores
from commbench.machine.topology import discovery, workers
from commbench.model import Case, ClusterSpec, Placement, Suite, published, registry
from commbench.workloads import device, user_code

_THREADS = "threads_per_worker"
_EXPONENTS = {"linear": 1.0, "root": 0.5}
_TYPES = get_type_hints(ClusterSpec) | {
    "placement": str, "env": dict[str, str], "launcher_options": dict[str, str],
    "dask_config": dict[str, Any],
}  # fmt: skip
ClusterOverrides: Any = make_dataclass(
    "ClusterOverrides",
    [(f.name, _TYPES[f.name] | None, None) for f in fields(ClusterSpec)],
    frozen=True,
    kw_only=True,
)
"""The ``cluster`` table; values that are None are taken from the level above."""


_REPLICATION = {**dict.fromkeys(Case.counts(), int), "timeout_s": float}
_Replication: Any = make_dataclass(
    "_Replication",
    [
        ("cluster", ClusterOverrides, field(default_factory=ClusterOverrides)),
        *((name, kind | None, None) for name, kind in _REPLICATION.items()),
    ],
    frozen=True,
    kw_only=True,
)
"""The keys of both the file and its cases."""


@dataclass(frozen=True, kw_only=True)
class CaseEntry(_Replication):  # type: ignore[misc]
    """A ``case`` table."""

    workload: str
    params: dict[str, Any] = field(default_factory=dict)
    scaling: dict[str, str] = field(default_factory=dict)
    from_scale: float = field(default=0.0, metadata={"unit": "share"})
    workers: tuple[int, ...] | None = None
    backends: tuple[str, ...] | None = None
    vary: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteFile(_Replication):  # type: ignore[misc]
    """The whole file."""

    case: tuple[CaseEntry, ...]
    name: str | None = None
    reproduces: str = ""
    scale: float = field(default=1.0, metadata={"unit": "share"})
    backends: tuple[str, ...] = ("tcp",)
    vary: tuple[str, ...] = ()


def read_suite(path: Path, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Return the suite in the TOML file `path`.

    Values in `overrides` for ``backends``, ``launches``, ``scale`` and the like override the file's
    unless they are None. ``cluster`` has those of ``ClusterSpec``.

    Raises
    ------
    UsageError
        If the file can't be read, a key is unknown or a value has the wrong type; the message has
        the path of the key and the known ones. If the scale is invalid, or a case has no rule.
    """
    file: SuiteFile = _read(path, SuiteFile, "a suite file")
    given = overrides or {}
    given_cluster = GivenCluster(given.get("cluster") or {})
    scale = _first(given.get("scale"), file.scale)
    try:
        if not 0 < scale <= 1:
            raise UsageError(
                f"scale is {scale:g}; it must be above 0 and at most 1, which is the full size"
            )
        if file.reproduces:
            published.published_figure(file.reproduces)
    except CommbenchError as error:
        raise UsageError(f"{path}: {error}") from error
    cases: list[Case] = []
    for number, entry in enumerate(file.case):
        if scale < entry.from_scale:
            continue
        try:
            cases += _cases(file, entry, path.parent, scale, given, given_cluster)
        except CommbenchError as error:
            raise UsageError(f"{path}: case[{number}]: {error}") from error
    if file.case and not cases:
        least = min(entry.from_scale for entry in file.case)
        raise UsageError(f"{path}: scale is {scale:g}, and the first case begins at {least:g}")
    given_cluster.validate_used(file.name or path.stem)
    has_cluster = any(workloads.load(case.workload).has_cluster for case in cases)
    if given.get("placement") not in (None, "none") and not has_cluster:
        raise UsageError(
            f"--placement: no case of the suite {file.name or path.stem!r} has a cluster; leave it "
            "out"
        )
    if given.get("backends"):
        # Cases that only differ in their backends become equal: that with most launches counts.
        ids = [case.id for case in cases]
        cases.sort(key=lambda case: case.launches)
        last = {case.id: case for case in cases}
        cases = [last[case_id] for case_id in dict.fromkeys(ids)]
    suite = make_suite(file.name or path.stem, cases)
    return replace(suite, reproduces=file.reproduces, scale=scale)


def _cases(
    file: SuiteFile, entry: CaseEntry, folder: Path, scale: float, given: Mapping[str, Any],
    given_cluster: GivenCluster,
) -> Iterator[Case]:  # fmt: skip
    if scale < 1 and not entry.scaling:
        raise UsageError(
            f"scale is {scale:g}, and nothing says what that does to the case; add for example "
            'scaling = { rows = "linear" }'
        )
    entry = replace(entry, workload=user_code.normalize(entry.workload, folder))
    if entry.workers == ():
        raise UsageError("workers is empty; name at least one number, or leave it out")
    levels = (entry.cluster, file.cluster)
    spec = {
        f.name: _first(*(getattr(level, f.name) for level in levels)) for f in fields(ClusterSpec)
    }
    kind = workloads.load(entry.workload)
    # Placement files are relative to the suite file, or to the working directory.
    choice = _first(given.get("placement"), spec.pop("placement"), "none")
    if given.get("placement") is not None:
        folder = Path()
        if not kind.has_cluster:
            choice = "none"
    spec["task_placement"] = _first(spec["task_placement"], kind.task_placement)
    cluster = ClusterSpec(**{name: value for name, value in spec.items() if value is not None})
    rules = dict(entry.scaling)
    if _THREADS in rules:
        rule = {_THREADS: rules.pop(_THREADS)}
        threads = scaled({_THREADS: cluster.threads_per_worker}, rule, scale)
        cluster = replace(cluster, **threads)
    if cluster.device == "auto":
        cluster = replace(cluster, device=device.detect(on_gpu=kind.on_gpu))
    cluster = given_cluster.win_over(cluster, entry.workload)
    settings = {
        key: value
        for key in _REPLICATION
        if (value := _first(given.get(key), getattr(entry, key), getattr(file, key))) is not None
    }
    filled = structure(entry.params, kind.Params, f"{entry.workload}: params")
    params = {name: getattr(filled, name) for name in entry.params}
    vary = given.get("vary") or _first(entry.vary, file.vary, ())
    varied = {setting.name for setting in vary_.settings(vary)}
    if entry.workers and not kind.has_cluster:
        raise UsageError(f"workers: {entry.workload} runs between two processes; leave it out")
    if entry.workers and "workers" in varied and not given.get("vary"):
        raise UsageError("workers are given and varied; leave one of them out")
    for n_workers in ("workers" not in varied and entry.workers) or (cluster.n_workers,):
        yield from varied_cases(
            entry.workload,
            _first(given.get("backends"), entry.backends, file.backends),
            scaled(params, rules, scale),
            replace(cluster, n_workers=n_workers),
            vary,
            lambda spec: choose_placement(choice, spec, folder),
            **settings,
        )


def varied_cases(
    workload: str, backends: Sequence[str], params: Mapping[str, Any], cluster: ClusterSpec,
    vary: Sequence[str], locate: Callable[[ClusterSpec], tuple[Placement, ...]],
    **replication: Any,
) -> Iterator[Case]:  # fmt: skip
    """Yield the cases of ``cases_for``, for each combination of the values in `vary`.

    Parameters
    ----------
    vary
        Settings with their values, such as ``workers=2|4``.
    locate
        Returns the placement for a cluster.

    Raises
    ------
    UsageError
        If a name is unknown, or a number or a setting is invalid.
    """

    def cases(names: Sequence[str], spec: ClusterSpec) -> list[Case]:
        return cases_for(
            workload, names, params, replace(spec, placement=locate(spec)), **replication
        )

    for key in cluster.dask_config:
        vary_.validate_key(key)
    settings = vary_.settings(vary)
    if not settings:
        yield from cases(backends, cluster)
        return
    if not workloads.load(workload).has_cluster:
        for setting in settings:
            if setting.name in vary_.OPTIONS:
                raise UsageError(
                    f"{setting.name} can't be varied: {workload} runs between two processes, "
                    "without a cluster; vary variables or keys of Dask's configuration"
                )
    # Controls are validated with all backends.
    names = [case.backend for case in cases(backends, cluster)]
    varied = (*["backend"] * (len(names) > 1), *(setting.name for setting in settings))
    for name, spec in vary_.combinations(cluster, settings, names):
        *_, case = cases(list(dict.fromkeys([name.partition("@")[0], name])), spec)
        yield replace(case, varied=varied)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


class GivenCluster:
    """Values of the command line for fields of ``ClusterSpec``, for all clusters of a suite.

    Those about GPUs apply to cases with the device gpu, the others to cases that have a cluster.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._unused = set(given)

    def win_over(self, spec: ClusterSpec, workload: str) -> ClusterSpec:
        """Return `spec`, of a case of `workload`, with the overrides.

        With another launcher, the hosts, options and scheduler of `spec` are dropped. With the same
        launcher, its options are overridden one by one.
        """
        has_cluster = workloads.load(workload).has_cluster
        for_gpus = ClusterSpec.settings("gpu")
        chosen = {
            name: value
            for name, value in self._given.items()
            if (spec.device == "gpu" if name in for_gpus else has_cluster)
        }
        self._unused -= set(chosen)
        if chosen.get("launcher", spec.launcher) != spec.launcher:
            default, settings = ClusterSpec(), ClusterSpec.settings()
            defaults = {name: getattr(default, name) for name in settings
                        if settings[name].launcher_specific}  # fmt: skip
            spec = replace(spec, **defaults)
        if "launcher_options" in chosen:
            chosen["launcher_options"] = {**spec.launcher_options, **chosen["launcher_options"]}
        return replace(spec, **chosen)

    def validate_used(self, suite: str) -> None:
        """Raise a UsageError if an override applied to no case."""
        for group, requirement in (
            ("launcher", "has a cluster: each runs between two processes, which it starts itself"),
            ("gpu", "works on a GPU: their device is cpu, or auto where there is none"),
        ):  # fmt: skip
            settings = ClusterSpec.settings(group)
            if unused := [settings[name].option for name in settings if name in self._unused]:
                raise UsageError(
                    f"{', '.join(unused)}: no case of the suite {suite!r} {requirement}; "
                    "leave it out"
                )


def scaled(params: Mapping[str, Any], rules: Mapping[str, str], scale: float) -> dict[str, Any]:
    """Return `params` at this scale by the rules of ``docs/suites.md``; others are not changed.

    Parameters with the same rule keep their proportions: the smallest is rounded, and the others
    follow it, so that an array has as many chunks at every scale. The minimum is 1.

    Raises
    ------
    UsageError
        If a rule is unknown, or its parameter is missing or not a number.

    Examples
    --------
    >>> scaled({"size": 16000, "chunk": 4000}, {"size": "root", "chunk": "root"}, 0.05)
    {'size': 3576, 'chunk': 894}
    >>> scaled({"sizes": [1, 64, 4096]}, {"sizes": "largest"}, 0.1)
    {'sizes': [1, 64]}
    """
    for name, rule in rules.items():
        if rule not in (*_EXPONENTS, "largest"):
            raise UnknownNameError(f"rule of scaling for {name}", rule, (*_EXPONENTS, "largest"))
        if name not in params:
            raise UnknownNameError("parameter in scaling", name, params)
        if not _numbers(params[name]):
            raise UsageError(
                f"scaling: {name} is {params[name]!r}; whole numbers from 1 up can be scaled, and "
                "lists of them"
            )
        if rule == "largest" and not isinstance(params[name], list | tuple):
            raise UsageError(f"scaling: largest is for a list of sizes, and {name} is none")
    result = dict(params)
    for rule, exponent in _EXPONENTS.items():
        chosen = {name: params[name] for name in params if rules.get(name) == rule}
        result |= _in_proportion(chosen, scale**exponent)
    for name in params:
        if rules.get(name) == "largest":
            sizes = _numbers(params[name])
            largest = max(min(sizes), scale * max(sizes))
            result[name] = [size for size in sizes if size <= largest]
    return result


def _in_proportion(params: Mapping[str, Any], factor: float) -> dict[str, Any]:
    if not params:
        return {}
    smallest = min(number for value in params.values() for number in _numbers(value))
    kept = Fraction(max(1, round(smallest * factor)), smallest)
    return {
        name: [round(number * kept) for number in value]
        if isinstance(value, list | tuple)
        else round(value * kept)
        for name, value in params.items()
    }


def _numbers(value: Any) -> list[int]:
    """Return the numbers to scale; none if any value can't be scaled."""
    numbers = [*value] if isinstance(value, list | tuple) else [value]
    return numbers if all(type(number) is int and number > 0 for number in numbers) else []


@dataclass(frozen=True, kw_only=True)
class _PlacementFile:
    worker: tuple[Placement, ...]


@dataclass(frozen=True, kw_only=True)
class _RackFile:
    racks: dict[str, tuple[str, ...]]


def choose_placement(
    choice: str, cluster: ClusterSpec, folder: Path = Path()
) -> tuple[Placement, ...]:
    """Return the bindings of the workers: ``none``, ``auto`` or a file relative to `folder`.

    With ``cpus_per_worker`` each worker has that number of CPUs to itself.

    The file, as in ``docs/topology.md``, has a table for each worker, in the order of their names.

    Raises
    ------
    UsageError
        If the file is invalid or has too few workers, or the host has too few GPUs or CPUs.
    """
    n_workers, n_cpus = cluster.n_workers, cluster.cpus_per_worker
    if n_cpus and "placement" not in registry.load("launcher", cluster.launcher).supports:
        raise UsageError(
            "--cpus-per-worker binds workers to CPUs of this host, and the launcher "
            f"{cluster.launcher} may start them on others; leave it out, or add --launcher local"
        )
    if n_cpus and (choice != "none" or cluster.device == "gpu"):
        raise UsageError(
            "--cpus-per-worker and --placement both bind workers, and a worker with a GPU is bound "
            "to the CPUs near it by --placement auto; give one of them"
        )
    if n_cpus:
        return workers.separate_cpus(discovery.this_host(), n_workers, n_cpus)
    if choice == "none":
        return ()
    if choice == "auto":
        host = discovery.this_host()
        host = replace(host, gpus=workers.visible(host.gpus, os.environ))
        return workers.auto(host, n_workers, cluster.device, max(1, cluster.workers_per_gpu))
    path = folder / choice
    file: _PlacementFile = _read(path, _PlacementFile, "auto, none or a placement file")
    for number, worker in enumerate(file.worker):
        try:
            cores.parse(worker.cpus)
        except UsageError as error:
            raise UsageError(f"{path}: worker[{number}].cpus: {error}") from error
    if len(file.worker) < n_workers:
        raise UsageError(
            f"{path} places {len(file.worker)} workers, and the cluster has {n_workers}; add a "
            "[[worker]] table for each, or take fewer --workers"
        )
    return file.worker[:n_workers]


def read_racks(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the hosts of each rack in a file as in ``docs/topology.md`` or raise a UsageError."""
    file: _RackFile = _read(path, _RackFile, "a file of racks")
    return file.racks


def _read(path: Path, kind: type[Any], wanted: str) -> Any:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {path}: {error}; give {wanted}") from error
    return structure(content, kind, str(path))

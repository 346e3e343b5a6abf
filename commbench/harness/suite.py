"""From a TOML file or command line options to cases, and from cases to a plan of launches.

A suite file, with all of its keys (no one cluster has use for all of them)::

    name = "smoke"            # every key but case and its workload is optional
    backends = ["tcp", "ucx:shm"]
    launches = 6              # fresh clusters per case
    iterations = 3            # timed calls per launch
    warmups = 1
    seed = 0
    timeout_s = 300.0         # of one launch
    reproduces = "mpi4dask.merge_ri2"  # a figure in commbench.model.published, to be shown beside
    scale = 0.01              # 1: the full size

    [cluster]
    n_workers = 2
    threads_per_worker = 1
    device = "cpu"            # or gpu, or auto: gpu where there is one and CuPy
    placement = "none"        # or auto, or a placement file beside this one
    launcher = "local"        # or mpirun, ssh, slurm, pbs, lsf, external: docs/launchers.md
    launcher_options = { memory = "8GB" }  # what the launcher takes besides, as text
    hosts = ["head", "node1"]  # ssh, mpirun: the scheduler's first
    scheduler = "tcp://10.0.0.1:8786"  # external: the address of a running one, or its file
    start_timeout_s = 60.0    # for all workers to be there; below timeout_s
    memory_limit = "4GB"      # of each worker, or a share of its host's memory, as "0.25"
    env = { UCX_TLS = "tcp" }  # in every process, after what the backend sets
    dask_config = { "distributed.comm.compression" = "zlib" }  # likewise
    workers_per_gpu = 1       # this and the next three with GPUs only: docs/gpu.md
    rmm_pool = "10GB"         # or a share of the GPU's memory, as "0.5"
    rmm_async = false         # CUDA's asynchronous allocator; not together with:
    rmm_managed = false       # managed memory

    [[case]]                  # at least one; it may override backends to timeout_s and the cluster,
                              # this as cluster = { n_workers = 4 } or in a table [case.cluster]
    workload = "merge"
    params = { rows = 1000 }
    workers = [2, 4, 6]       # a case for each of these numbers of workers
    scaling = { rows = "linear" }  # what scale does, by the rules of `scaled`
    from_scale = 0.001        # leave the case out at smaller scales
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, get_type_hints

from commbench.errors import CommbenchError, SuiteError, UnknownNameError, UsageError
from commbench.harness.cases import cases_for, make_suite, make_workload, plan, shift, structure
from commbench.machine import cores, topology
from commbench.model import Case, ClusterSpec, Placement, Suite, published, registry
from commbench.workloads import device
from commbench.workloads.base import PairWorkload

__all__ = [
    "CaseEntry",
    "SuiteFile",
    "cases_for",
    "check_placements",
    "choose_placement",
    "make_suite",
    "make_workload",
    "plan",
    "read_racks",
    "read_suite",
    "scaled",
    "shift",
    "structure",
]  # fmt: skip

_REPLICATION = ("launches", "iterations", "warmups", "seed", "timeout_s")
_THREADS = "threads_per_worker"
_EXPONENTS = {"linear": 1.0, "root": 0.5}
_RULES = (*_EXPONENTS, "largest")
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
"""The ``cluster`` table; what is None is taken from the level above."""


@dataclass(frozen=True, kw_only=True)
class _Replication:
    """What both the file and its cases may say."""

    cluster: ClusterOverrides = field(default_factory=ClusterOverrides)
    launches: int | None = None
    iterations: int | None = None
    warmups: int | None = None
    seed: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class CaseEntry(_Replication):
    """A ``case`` table."""

    workload: str
    params: dict[str, Any] = field(default_factory=dict)
    scaling: dict[str, str] = field(default_factory=dict)
    from_scale: float = 0.0
    workers: tuple[int, ...] | None = None
    backends: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteFile(_Replication):
    """The whole file."""

    case: tuple[CaseEntry, ...]
    name: str | None = None
    reproduces: str = ""
    scale: float = 1.0
    backends: tuple[str, ...] = ("tcp",)


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
        if not 0 < scale <= 1:
            raise SuiteError(
                f"scale is {scale:g}; it must be above 0 and at most 1, which is the full size"
            )
        if file.reproduces:
            published.figure(file.reproduces)
    except CommbenchError as error:
        raise SuiteError(f"{path}: {error}") from error
    cases: list[Case] = []
    for number, entry in enumerate(file.case):
        if scale < entry.from_scale:
            continue
        try:
            # The file's placement lies beside it, the command line's where that is given.
            choice, folder = given.get("placement"), Path()
            if choice is None:
                choice = _first(entry.cluster.placement, file.cluster.placement, "none")
                folder = path.parent
            for cluster in _clusters(file, entry, scale, given_cluster):
                placement = choose_placement(
                    choice, cluster.n_workers, cluster.device, folder, cluster.workers_per_gpu
                )
                placed = replace(cluster, placement=placement)
                cases += _cases(file, entry, placed, scale, given)
        except CommbenchError as error:
            raise SuiteError(f"{path}: case[{number}]: {error}") from error
    given_cluster.check_used(file.name or path.stem)
    if given.get("backends"):
        # Cases that differ in their backends only are one where others are asked for.
        cases = list({case.id: case for case in cases}.values())
    suite = make_suite(file.name or path.stem, cases)
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
        scaled(entry.params, rules, scale),
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
        threads = scaled({_THREADS: cluster.threads_per_worker}, rules, scale)
        cluster = replace(cluster, **threads)
    if cluster.device == "auto":
        cluster = replace(cluster, device=device.detect())
    cluster = given.win_over(cluster, entry.workload)
    for n_workers in entry.workers or (cluster.n_workers,):
        yield replace(cluster, n_workers=n_workers)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def merged(*levels: ClusterOverrides) -> ClusterSpec:
    """Return the cluster of these levels, of which a later one wins, still to be placed."""
    settings = {
        f.name: value
        for level in levels
        for f in fields(level)
        if f.name != "placement" and (value := getattr(level, f.name)) is not None
    }
    return ClusterSpec(**settings)


class GivenCluster:
    """What the command line says of all clusters of a suite.

    Parameters
    ----------
    given
        Values for fields of ``ClusterSpec``. Those about GPUs are for cases that work on one, and
        the others for cases that have a cluster.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._unused = set(given)

    def win_over(self, spec: ClusterSpec, workload: str) -> ClusterSpec:
        """Return `spec`, of a case of `workload`, with what was given in place of its own.

        Another launcher than its own has no use for the hosts, the options and the scheduler of
        that; options of the same launcher win one by one.
        """
        pair = issubclass(registry.load("workload", workload), PairWorkload)
        for_gpus = ClusterSpec.settings("gpu")
        chosen = {
            name: value
            for name, value in self._given.items()
            if (spec.device == "gpu" if name in for_gpus else not pair)
        }
        self._unused -= set(chosen)
        if chosen.get("launcher", spec.launcher) != spec.launcher:
            default, settings = ClusterSpec(), ClusterSpec.settings()
            own = {name: getattr(default, name) for name in settings
                   if settings[name].of_one_launcher}  # fmt: skip
            spec = replace(spec, **own)
        if "launcher_options" in chosen:
            chosen["launcher_options"] = {**spec.launcher_options, **chosen["launcher_options"]}
        return replace(spec, **chosen)

    def check_used(self, suite: str) -> None:
        """Refuse what was of no use to any case.

        Raises
        ------
        SuiteError
            With the options, and what they are for.
        """
        for of, lacking in (
            ("launcher", "has a cluster: each runs between two processes of this host, which it "
                           "starts itself"),
            ("gpu", "works on a GPU: their device is cpu, or auto where there is none"),
        ):  # fmt: skip
            settings = ClusterSpec.settings(of)
            if unused := [settings[name].option for name in settings if name in self._unused]:
                raise SuiteError(
                    f"{', '.join(unused)}: no case of the suite {suite!r} {lacking}; leave it out"
                )


def scaled(params: Mapping[str, Any], rules: Mapping[str, str], scale: float) -> dict[str, Any]:
    """Return `params` at this scale; those without a rule stay as they are.

    ============  ================================================================================
    rule          a parameter p at scale s
    ============  ================================================================================
    ``linear``    p · s
    ``root``      p · √s: the side of an array that is to have s times the bytes
    ``largest``   of a list of sizes those up to s times the largest
    ============  ================================================================================

    Parameters of the same rule keep their proportions: the smallest is rounded, and the others
    follow it, so that an array has as many chunks at every scale. Nothing becomes less than 1.

    Raises
    ------
    SuiteError
        Where a rule is unknown, or is for something that is not there or no number.

    Examples
    --------
    >>> scaled({"size": 16000, "chunk": 4000}, {"size": "root", "chunk": "root"}, 0.05)
    {'size': 3576, 'chunk': 894}
    >>> scaled({"sizes": [1, 64, 4096]}, {"sizes": "largest"}, 0.1)
    {'sizes': [1, 64]}
    """
    for name, rule in rules.items():
        if rule not in _RULES:
            raise UnknownNameError(f"rule of scaling for {name}", rule, _RULES)
        if name not in params:
            raise UnknownNameError("parameter in scaling", name, params)
        if not _numbers(params[name]):
            raise SuiteError(
                f"scaling: {name} is {params[name]!r}; whole numbers from 1 up can be scaled, and "
                "lists of them"
            )
    found = dict(params)
    for rule, exponent in _EXPONENTS.items():
        chosen = {name: params[name] for name in params if rules.get(name) == rule}
        found |= _in_proportion(chosen, scale**exponent)
    for name in params:
        if rules.get(name) == "largest":
            sizes = _numbers(params[name])
            found[name] = [size for size in sizes if size <= max(min(sizes), scale * max(sizes))]
    return found


def _in_proportion(params: Mapping[str, Any], factor: float) -> dict[str, Any]:
    if not params:
        return {}
    smallest = min(number for value in params.values() for number in _numbers(value))
    kept = Fraction(max(1, round(smallest * factor)), smallest)
    return {
        name: [round(number * kept) for number in value]
        if isinstance(value, list)
        else round(value * kept)
        for name, value in params.items()
    }


def _numbers(value: Any) -> list[int]:
    """Return the numbers that can be scaled; none where anything can't be."""
    numbers = value if isinstance(value, list) else [value]
    return numbers if all(type(number) is int and number > 0 for number in numbers) else []


@dataclass(frozen=True, kw_only=True)
class _PlacementFile:
    worker: tuple[Placement, ...]


@dataclass(frozen=True, kw_only=True)
class _RackFile:
    racks: dict[str, tuple[str, ...]]


def choose_placement(
    choice: str, n_workers: int, device: str, folder: Path = Path(), workers_per_gpu: int = 1
) -> tuple[Placement, ...]:
    """Return what ``none``, ``auto`` or a file, relative to `folder`, binds the workers to.

    The file has a table for each worker, in the order of their names; a key that is left out leaves
    the worker as it is::

        [[worker]]
        cpus = "0-19,40-59"  # those that it may use
        gpu = 0              # by nvidia-smi's number
        nic = "mlx5_0:1"     # for ucx: UCX_NET_DEVICES

    Raises
    ------
    UsageError
        Where the file can't be understood or has too few workers, or the host too few GPUs.
    """
    if choice == "none":
        return ()
    if choice == "auto":
        host = topology.this_host()
        host = replace(host, gpus=topology.visible(host.gpus, os.environ))
        return topology.auto(host, n_workers, device, workers_per_gpu)
    path = folder / choice
    file: _PlacementFile = structure(
        _content(path, "auto, none or a placement file"), _PlacementFile, str(path)
    )
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


def check_placements(suite: Suite) -> None:
    """Refuse cases whose workers are bound to what this host doesn't have.

    Raises
    ------
    UsageError
        With the worker, what it should be bound to, and what there is.
    """
    placements = {case.cluster.placement for case in suite.cases if case.cluster.placement}
    if placements:
        host = topology.this_host()
        for placement in placements:
            topology.validate_placement(placement, host)


def read_racks(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the hosts of each rack in a file: by name, address or pattern.

    For example::

        [racks]
        a = ["node0*"]
        b = ["10.0.1.*", "login1"]

    Raises
    ------
    UsageError
        Where it can't be understood.
    """
    file: _RackFile = structure(_content(path, "a file of racks"), _RackFile, str(path))
    return file.racks


def _content(path: Path, wanted: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"can't read {path}: {error}; give {wanted}") from error

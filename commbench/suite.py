"""From a TOML file or command line options to cases, and from cases to a plan of launches.

A suite file::

    name = "smoke"            # every key below is optional
    backends = ["tcp", "ucx:shm"]
    launches = 6              # fresh clusters per case
    iterations = 3            # timed calls per launch
    warmups = 1
    seed = 0
    timeout_s = 300.0         # of one launch

    [cluster]
    n_workers = 2
    threads_per_worker = 1
    device = "cpu"

    [[case]]                  # at least one; it may override every key above but the name
    workload = "merge"
    params = { rows = 1000 }
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from commbench import registry
from commbench.errors import CommbenchError, SuiteError, UnknownNameError
from commbench.model import Case, ClusterSpec, Launch, Suite

if TYPE_CHECKING:
    import cattrs


@dataclass(frozen=True, kw_only=True)
class ClusterOverrides:
    """The ``cluster`` table; what is None is taken from the level above."""

    n_workers: int | None = None
    threads_per_worker: int | None = None
    device: str | None = None
    launcher: str | None = None
    hosts: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class CaseEntry:
    """A ``case`` table."""

    workload: str
    params: dict[str, Any] = field(default_factory=dict)
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
    backends: tuple[str, ...] = ("tcp",)
    cluster: ClusterOverrides = field(default_factory=ClusterOverrides)
    launches: int | None = None
    iterations: int | None = None
    warmups: int | None = None
    seed: int | None = None
    timeout_s: float | None = None


_REPLICATION = ("launches", "iterations", "warmups", "seed", "timeout_s")


def read_suite(path: Path, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Return the suite in the TOML file `path`.

    Parameters
    ----------
    path
        The file.
    overrides
        Values for ``backends``, ``launches`` and the like that win over all of the file's; those
        that are None don't count.

    Raises
    ------
    SuiteError
        Where the file can't be read, a key is unknown or a value has the wrong type, with the
        path of the key and the known ones.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SuiteError(f"can't read the suite {path}: {error}") from error
    file = structure(content, SuiteFile, str(path))
    given = overrides or {}
    cases: list[Case] = []
    for number, entry in enumerate(file.case):
        where = f"{path}: case[{number}]"
        settings = {
            key: value
            for key in _REPLICATION
            if (value := _first(given.get(key), getattr(entry, key), getattr(file, key)))
            is not None
        }
        try:
            cases += cases_for(
                entry.workload,
                _first(given.get("backends"), entry.backends, file.backends),
                entry.params,
                _cluster(file.cluster, entry.cluster),
                **settings,
            )
        except CommbenchError as error:
            raise SuiteError(f"{where}: {error}") from error
    return suite_of(file.name or path.stem, cases)


def cases_for(
    workload: str,
    backends: Iterable[str],
    params: Mapping[str, Any],
    cluster: ClusterSpec,
    **replication: Any,
) -> list[Case]:
    """Return one case per backend, its parameters complete and checked.

    Raises
    ------
    UsageError
        Where a name is unknown, or a number makes no sense.
    """
    from commbench.backends import parse
    from commbench.workloads.base import Context

    kind = registry.load("workload", workload)
    filled = structure(dict(params), kind.Params, f"{workload}: params")
    given = {**kind.defaults, **replication}
    for key, least in (("launches", 1), ("iterations", 1), ("warmups", 0), ("seed", 0)):
        if given.get(key, least) < least:
            raise SuiteError(f"{key} is {given[key]}; it must be at least {least}")
    names = tuple(backends)
    if not names:
        raise SuiteError("backends is empty; name at least one, for example tcp")
    if given.get("timeout_s", 1) <= 0:
        raise SuiteError(f"timeout is {given['timeout_s']} s; it must be above 0")
    if cluster.n_workers < 1 or cluster.threads_per_worker < 1:
        raise SuiteError("a cluster has at least one worker with at least one thread")
    if cluster.device not in ("cpu", "gpu"):
        raise UnknownNameError("device", cluster.device, ("cpu", "gpu"))
    registry.load("launcher", cluster.launcher)
    context = Context(n_workers=cluster.n_workers, device=cluster.device, seed=given.get("seed", 0))
    kind(filled, context)
    return [
        Case(
            workload=workload,
            backend=parse(name).name,
            params=asdict(filled),
            cluster=cluster,
            **given,
        )
        for name in names
    ]


def suite_of(name: str, cases: Iterable[Case]) -> Suite:
    """Return the suite of `cases`, none of which may ask for the same thing twice."""
    unique: dict[str, Case] = {}
    for case in cases:
        if case.id in unique:
            raise SuiteError(
                f"{case.workload} over {case.backend} with the same parameters is asked for twice"
            )
        unique[case.id] = case
    if not unique:
        raise SuiteError(f"the suite {name!r} has no case; add a [[case]] table")
    return Suite(name=name, cases=tuple(unique.values()))


def plan(suite: Suite, seed: int, *, done: Mapping[str, int] | None = None) -> list[Launch]:
    """Return the launches of `suite` in randomised complete blocks.

    Every block runs each case once, in an order of its own, so that a drift of the machine hits
    all cases alike. `done` counts by case id the launches to leave out.

    Examples
    --------
    >>> suite = Suite(name="s", cases=tuple(
    ...     Case(workload="merge", backend=name, launches=2) for name in ("tcp", "ucx")))
    >>> [(launch.block, launch.index) for launch in plan(suite, seed=1)]
    [(0, 0), (0, 0), (1, 1), (1, 1)]
    """
    order = random.Random(seed)
    remaining = {case.id: case.launches - (done or {}).get(case.id, 0) for case in suite.cases}
    launches: list[Launch] = []
    for block in range(max(0, *remaining.values(), 0)):
        cases = [case for case in suite.cases if block < remaining[case.id]]
        order.shuffle(cases)
        launches += [
            Launch(case=case, index=block, block=block, position=position)
            for position, case in enumerate(cases)
        ]
    return launches


def shift(launches: Iterable[Launch], used: Mapping[str, int]) -> list[Launch]:
    """Return `launches` with indices from ``used[case id]`` on, as a resumed run needs them."""
    n_blocks = max(used.values(), default=0)
    return [
        replace(
            launch,
            index=launch.index + used.get(launch.case.id, 0),
            block=launch.block + n_blocks,
        )
        for launch in launches
    ]


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _cluster(*levels: ClusterOverrides) -> ClusterSpec:
    settings = {
        f.name: value
        for level in levels
        for f in fields(level)
        if (value := getattr(level, f.name)) is not None
    }
    return ClusterSpec(**settings)


def structure(content: Mapping[str, Any], kind: type[Any], where: str) -> Any:
    """Return `content` as an instance of the dataclass `kind`, taking nothing for granted.

    Raises
    ------
    SuiteError
        For an unknown key or a value of another type, naming `where`, the key and what is known.
    """
    import cattrs

    try:
        return _converter().structure(content, kind)
    except cattrs.BaseValidationError as error:
        problems = cattrs.transform_error(error, path=where, format_exception=_explain)
        raise SuiteError("; ".join(problems)) from None


@cache
def _converter() -> cattrs.Converter:
    import cattrs
    from cattrs.gen import make_dict_structure_fn

    def items(value: Any, kind: Any) -> tuple[Any, ...]:
        return tuple(converter.structure(value, GenericAlias(list, get_args(kind)[:1])))  # type: ignore[arg-type]

    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(lambda kind: _origin(kind) is Literal, _one_of)
    # Without it a string would pass for a sequence of characters.
    converter.register_structure_hook_func(
        lambda kind: _origin(kind) is tuple, _only_from((list, tuple), "a list", items)
    )
    converter.register_structure_hook_factory(
        is_dataclass,
        lambda kind: _only_from(Mapping, "a table", make_dict_structure_fn(kind, converter)),
    )
    return converter


def _origin(kind: Any) -> Any:
    return get_origin(kind)


def _exactly(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    return kind(value)


def _one_of(value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        raise ValueError(f"expected one of {', '.join(map(repr, get_args(kind)))}, got {value!r}")
    return value


def _only_from(shape: Any, name: str, structure: Any) -> Any:
    def hook(value: Any, kind: Any) -> Any:
        if not isinstance(value, shape):
            raise TypeError(f"expected {name}, got {value!r}")
        return structure(value, kind)

    return hook


def _explain(error: BaseException, kind: type[Any] | None) -> str:
    import cattrs

    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [f.name for f in fields(error.cl)]
        return "; ".join(
            str(UnknownNameError("key", key, known)) for key in sorted(error.extra_fields)
        )
    if isinstance(error, KeyError):
        return f"the key {error.args[0]!r} is missing"
    if isinstance(error, TypeError | ValueError) and error.args:
        return str(error)
    return cattrs.v.format_exception(error, kind)

"""Cases with validated parameters, suites of cases, and the plan of their launches."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from commbench import workloads
from commbench.backends import parse
from commbench.backends.backend import Backend, Unavailability
from commbench.errors import UnknownNameError, UsageError
from commbench.launchers.launcher import memory_limit
from commbench.machine import gpu
from commbench.model import Case, ClusterSpec, Launch, Suite, registry, units
from commbench.workloads.workload import MODES, Context, PairWorkload, Workload

if TYPE_CHECKING:
    import cattrs


def cases_for(
    workload: str,
    backends: Iterable[str],
    params: Mapping[str, Any],
    cluster: ClusterSpec,
    **replication: Any,
) -> list[Case]:
    """Return one case per backend, with complete and validated parameters.

    Raises
    ------
    UsageError
        If a name is unknown, or a number is invalid.
    """
    kind = workloads.load(workload)
    filled = structure(dict(params), kind.Params, f"{workload}: params")
    given = {**kind.defaults, **replication}
    validate_replication(given, cluster)
    names = tuple(backends)
    if not names:
        raise UsageError("backends is empty; name at least one, for example tcp")
    for option, number, what in (
        ("--workers", cluster.n_workers, "worker"),
        ("--threads", cluster.threads_per_worker, "thread per worker"),
    ):
        if number < 1:
            raise UsageError(f"{option} is {number}; a cluster has at least one {what}")
    if cluster.device not in ("cpu", "gpu"):
        raise UnknownNameError("device", cluster.device, ("auto", "cpu", "gpu"))
    if cluster.task_placement not in ("pinned", "dask"):
        raise UnknownNameError("task placement", cluster.task_placement, ("pinned", "dask"))
    for name, value in cluster.env.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or "\0" in value:
            raise UsageError(f"env: {name!r} = {value!r} is no variable of an environment")
    for key, value in cluster.dask_config.items():
        if not _is_plain(value):
            raise UsageError(
                f"dask_config: {key} is {value!r}; it must be a text, a number, true, false or a "
                "list of these"
            )
        if name := kind.fixed_config.get(key.replace("_", "-")):
            option = name.replace("_", "-")
            raise UsageError(
                f"{key} has no effect on {workload}: its parameter {name} decides (--{option})"
            )
    launcher = registry.load("launcher", cluster.launcher)()
    parsed = [parse(name) for name in names]
    for backend in parsed:
        gpu.validate(cluster, backend.name)
        if kind.has_cluster:
            launcher.validate(cluster, backend)
    if not kind.has_cluster:
        if cluster.launcher != ClusterSpec.launcher:
            raise UsageError(
                f"{workload} runs between two processes, which it starts itself; the launcher "
                f"{cluster.launcher} is for workloads on a cluster, such as all-to-all (pingpong "
                "has --peer HOST)"
            )
        if cluster.placement:
            raise UsageError(
                f"{workload} has no cluster to place: its two processes are bound to nothing; "
                "all-to-all measures each pair of workers that are"
            )
    params = asdict(filled)
    added = (field for field in fields(filled) if "added" in field.metadata)
    later = tuple(field.name for field in added if params[field.name] == field.default)
    common = {
        "workload": workload, "params": params, "later_params": later, "cluster": cluster, **given
    }  # fmt: skip
    cases = [Case(backend=backend.name, **common) for backend in parsed]
    for case in cases:
        if case.original and case.original not in {other.backend for other in cases}:
            raise UsageError(
                f"{case.backend} is a control of {case.original}, which is not measured: name both"
            )
    made = make_workload(cases[0])
    if isinstance(made, PairWorkload):
        _validate_mode(made, cases[0].params)
        secret = next((backend.name for backend in parsed if backend.has_secrets), "")
        if made.peer and secret:
            raise UsageError(
                f"the key of {secret} would be in a command that others on the host {made.peer} "
                f"can read; measure {secret} between processes of this host"
            )
        given = {**os.environ, **cluster.env}
        key = next((each.key_variable for each in parsed if each.key_variable in given), "")
        if made.peer and key:
            raise UsageError(
                f"{key} would be in a command that others on the host {made.peer} can read: unset "
                "it, and put the key into Dask's YAML on each host"
            )
    return cases


def validate_replication(given: Mapping[str, Any], cluster: ClusterSpec) -> None:
    """Raise a UsageError if a count or deadline in `given`, named as in ``Case``, is too small."""
    for key, least in Case.counts().items():
        if given.get(key, least) < least:
            raise UsageError(f"{key} is {given[key]}; it must be at least {least}")
    timeout_s = given.get("timeout_s", Case.timeout_s)
    for key, seconds in (("timeout", timeout_s), ("start_timeout", cluster.start_timeout_s)):
        if seconds <= 0:
            raise UsageError(f"{key} is {seconds} s; it must be above 0")
    if ClusterSpec.start_timeout_s < cluster.start_timeout_s >= timeout_s:
        raise UsageError(
            f"the workers may take {cluster.start_timeout_s:g} s to start (--start-timeout), and "
            f"the whole launch {timeout_s:g} s (--timeout); raise the latter above the former"
        )


def make_workload(case: Case) -> Workload:
    """Return an instance of a case's workload."""
    kind = workloads.load(case.workload)
    params = structure(dict(case.params), kind.Params, case.workload)
    limit = memory_limit(case.cluster, 0)
    context = Context(
        n_workers=case.cluster.n_workers,
        device=case.cluster.device,
        seed=case.seed,
        threads_per_worker=case.cluster.threads_per_worker,
        memory_limit_bytes=limit if isinstance(limit, int) else 0,
    )
    workload: Workload = kind(params, context)
    return workload


def _validate_mode(workload: PairWorkload, params: Mapping[str, Any]) -> None:
    """Raise an error if reports would show the workload's results under a wrong mode."""
    if workload.mode not in MODES:
        raise UnknownNameError("mode", workload.mode, tuple(MODES))
    said = params.get("mode", "latency")
    missing = [name for name in MODES[workload.mode] if name not in params]
    if said != workload.mode or missing:
        raise UsageError(
            f"{workload.name} has the mode {workload.mode}, and reports would take it for {said}: "
            f"its params need mode{''.join(f', {name}' for name in MODES[workload.mode])}"
        )


def _is_plain(value: Any) -> bool:
    """Return whether JSON has the value: a scalar, or a list of such values."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | None)


def make_suite(name: str, cases: Iterable[Case]) -> Suite:
    """Return the suite of `cases`, which must not have duplicates."""
    unique: dict[str, Case] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for case in cases:
        if case.id in unique:
            raise UsageError(
                f"{case.workload} over {case.backend} with the same parameters is asked for twice"
            )
        unique[case.id] = case
        cluster = case.cluster
        size = (cluster.n_workers, cluster.threads_per_worker)
        if cluster.scheduler and (other := sizes.setdefault(cluster.scheduler, size)) != size:
            raise UsageError(
                f"the running cluster of {cluster.scheduler} has one size, and the cases ask for "
                f"{other[0]} workers of {other[1]} threads and for {size[0]} of {size[1]}; measure "
                "them with a launcher that starts clusters, or make a suite of each size"
            )
    if not unique:
        raise UsageError(f"the suite {name!r} has no case; add a [[case]] table")
    return Suite(name=name, cases=tuple(unique.values()))


def structure(content: Mapping[str, Any], kind: type[Any], where: str) -> Any:
    """Return `content` as an instance of the dataclass `kind`, after validation.

    Raises
    ------
    UsageError
        For an unknown key or a value of a wrong type; the message has `where` and the key.
    """
    import cattrs

    try:
        return _converter().structure(content, kind)
    except cattrs.BaseValidationError as error:
        problems = cattrs.transform_error(error, path=where, format_exception=_explain)
        raise UsageError("; ".join(problems)) from None


@cache
def _converter() -> cattrs.Converter:
    import cattrs
    from cattrs.gen import make_dict_structure_fn, override

    def items(value: Any, kind: Any) -> tuple[Any, ...]:
        return tuple(converter.structure(value, GenericAlias(list, get_args(kind)[:1])))  # type: ignore[arg-type]

    origin: Any = get_origin
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (int, float, str, bool):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook_func(lambda kind: origin(kind) is Literal, _literal)
    # cattrs would accept a string as a sequence of characters.
    converter.register_structure_hook_func(
        lambda kind: origin(kind) is tuple, _only_from((list, tuple), "a list", items)
    )

    def tables(kind: Any) -> Any:
        parsed: dict[str, Any] = {
            name: override(struct_hook=_parse_texts(parse, converter))
            for name, parse in _parsers(kind).items()
        }
        return _only_from(Mapping, "a table", make_dict_structure_fn(kind, converter, **parsed))

    converter.register_structure_hook_factory(is_dataclass, tables)
    return converter


def _parsers(kind: type[Any]) -> dict[str, Callable[[str], Any]]:
    """Return the parsers of those fields of a dataclass that are numbers with a unit, or counts."""
    parsers = {}
    hints = get_type_hints(kind)
    for field in fields(kind):
        ends = {"s": "seconds", "bytes": "bytes"}
        unit, types = field.metadata.get("unit", ""), _types(hints[field.name])
        if not unit and types & {int, float}:
            unit = ends.get(field.name.rpartition("_")[2], "count" if int in types else "")
        if unit:
            parsers[field.name] = units.PARSERS[unit]
    return parsers


def _types(hint: Any) -> set[Any]:
    """Return the types in a hint, such as int in ``tuple[int, ...] | None``."""
    return {hint}.union(*map(_types, get_args(hint)))


def _parse_texts(parse: Callable[[str], Any], converter: cattrs.Converter) -> Any:
    """Return a hook for a number, or a list of numbers, that may be texts."""

    def hook(value: Any, kind: Any) -> Any:
        if isinstance(value, list):
            value = [parse(item) if isinstance(item, str) else item for item in value]
        return converter.structure(parse(value) if isinstance(value, str) else value, kind)

    return hook


def _exactly(value: Any, kind: type[Any]) -> Any:
    if kind is int and type(value) is float and value.is_integer():
        # As a person writes a large number: 1e6.
        return int(value)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    return kind(value)


def _literal(value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        raise ValueError(f"expected one of {', '.join(map(repr, get_args(kind)))}, got {value!r}")
    return value


def _only_from(shape: Any, name: str, structure: Any) -> Any:
    def hook(value: Any, kind: Any) -> Any:
        if not isinstance(value, shape):
            how = f"; write [{json.dumps(value)}]" * (name == "a list" and isinstance(value, str))
            raise TypeError(f"expected {name}, got {value!r}{how}")
        return structure(value, kind)

    return hook


_EXAMPLES = {
    "case": '[[case]] and, in the next line, workload = "merge"',
    "workload": 'workload = "merge"',
}
"""What to write for keys of suite files that are missing."""


def _explain(error: BaseException, kind: type[Any] | None) -> str:
    import cattrs

    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [f.name for f in fields(error.cl)]
        return "; ".join(
            f"{UnknownNameError('key', key, known)}{_hint(key, known)}"
            for key in sorted(error.extra_fields)
        )
    if isinstance(error, KeyError):
        key = error.args[0]
        how = f"; write {_EXAMPLES[key]}" if key in _EXAMPLES else ""
        return f"the key {key!r} is missing{how}"
    if isinstance(error, TypeError | ValueError | UsageError) and error.args:
        return str(error)
    return cattrs.v.format_exception(error, kind)


def _hint(key: str, known: Collection[str]) -> str:
    """Return where to write `key` if it is a parameter of a workload."""
    kinds = registry.loadable("workload")
    names = [name for name in kinds if key in {f.name for f in fields(kinds[name].Params)}]
    if "params" not in known or not names:
        return ""
    return f". It is a parameter of {', '.join(names)}: params = {{ {key} = … }}"


def plan(
    suite: Suite, seed: int, *, done: Mapping[str, int] | None = None,
    begun: Mapping[str, int] | None = None, n_blocks: int = 0, behind: Set[str] = frozenset(),
) -> list[Launch]:  # fmt: skip
    """Return the launches of `suite` in randomised complete blocks.

    Every block runs each case once, in the order of ``shuffled``, so that a drift of the machine
    affects all cases alike. `done` has the number of launches to leave out, by case id, and `begun`
    the first free index of each case. After `n_blocks` blocks, the last one is first completed by
    the cases that are `behind`.

    Examples
    --------
    >>> from commbench.model import Case
    >>> suite = Suite(name="s", cases=tuple(
    ...     Case(workload="merge", backend=name, launches=2) for name in ("tcp", "ucx")))
    >>> [(launch.block, launch.index) for launch in plan(suite, seed=1)]
    [(0, 0), (0, 0), (1, 1), (1, 1)]
    """
    index = Counter(begun)
    n_blocks = n_blocks or max(index.values(), default=0)
    remaining = {case.id: case.launches - (done or {}).get(case.id, 0) for case in suite.cases}
    late = {case_id for case_id in behind if remaining.get(case_id, 0) > 0}
    blocks = [late]
    for n in range(max(0, *remaining.values(), 0)):
        blocks.append({name for name, left in remaining.items() if n + (name in late) < left})
    launches: list[Launch] = []
    for block, ids in enumerate(blocks, start=n_blocks - 1):
        cases = [case for case in shuffled(suite.cases, seed, block) if case.id in ids]
        for position, case in enumerate(cases):
            launches.append(Launch(case=case, index=index[case.id], block=block, position=position))
            index[case.id] += 1
    return launches


def shuffled(items: Iterable[Any], seed: int, block: int) -> list[Any]:
    """Return the items in the order of a block, by the seed.

    Every second block has the reverse order of the one before, so that no item is before another
    one more often than after it.

    Examples
    --------
    >>> [shuffled("abc", seed=0, block=n) for n in range(4)]
    [['a', 'c', 'b'], ['b', 'c', 'a'], ['b', 'c', 'a'], ['a', 'c', 'b']]
    """
    order = [*items]
    random.Random(f"{seed} {block // 2}").shuffle(order)
    return order[::-1] if block % 2 else order


def unmet(case: Case) -> Unavailability | None:
    """Return the first unmet requirement of `case` or its backend, or None."""
    backend, workload = parse(case.backend), make_workload(case)
    launcher = registry.load("launcher", case.cluster.launcher)()
    if lacking := launcher.unavailable() or launcher.unstartable():
        return Unavailability(lacking.reason, lacking.remedy, lacking.what)
    if problem := backend.unavailable(case.cluster.device):
        return problem
    if case.cluster.device == "gpu" and (problem := _unmet_by_gpu(case, workload)):
        return problem
    if not isinstance(workload, PairWorkload):
        return None
    below = [layer for layer in workload.layers if layer in ("raw", "coroutine")]
    problems = (backend.unavailable_layer(layer, workload.mode) for layer in below)
    if problem := next(filter(None, problems), None):
        return problem
    return _unmet_by_peer(backend) if workload.peer and "raw" in below else None


def _unmet_by_peer(backend: Backend) -> Unavailability | None:
    from commbench.backends.endpoints import Tool

    if not isinstance(backend.endpoints("raw"), Tool):
        return None
    return Unavailability(
        "it starts both ends on this host, and the peer is on another",
        "leave raw out of --layers", f"the layer raw of {backend.name}",
    )  # fmt: skip


def _unmet_by_gpu(case: Case, workload: Workload) -> Unavailability | None:
    if not workload.on_gpu:
        reason = f"{workload.name} has no data in GPU memory"
        return Unavailability(reason, "measure it with --device cpu", what="device gpu")
    # The client of a remote cluster needs a GPU, too, for empty arrays and frames.
    cluster = case.cluster
    n_processes = cluster.n_workers
    here = not registry.load("launcher", cluster.launcher).remote(cluster)
    if isinstance(workload, PairWorkload):
        n_pairs = workload.params.pairs if workload.mode == "multi-pair" else 1
        n_processes = n_pairs if workload.peer else 2 * n_pairs
    problem = gpu.missing(cluster, n_processes, workload.gpu_packages, os.environ, here=here)
    return Unavailability(*problem, what="device gpu") if problem else None

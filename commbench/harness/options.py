"""The options of ``commbench run``: for all runs, for a workload's parameters, and for clusters.

The options for clusters are the fields of ``ClusterSpec``. With a workload, options have the
workload's defaults; with a suite file, they have no defaults, and the file's values apply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click

from commbench.errors import UnavailableError, UsageError
from commbench.model import Case, ClusterSpec, Stopping, Suite, units
from commbench.workloads import device as devices
from commbench.workloads.base import PairWorkload, Workload

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any, Any]
else:
    # It takes no two type parameters before click 8.5.
    _ParamType = click.ParamType

_RIGOROUS = Stopping(budget_s=3600.0, detect=0.02)
_REPLICATION = ("launches", "iterations", "warmups", "seed")


class Parsed(_ParamType):
    """A parameter type with a parser of commbench."""

    def __init__(self, name: str, parse: Any) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: D102
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (UsageError, ValueError) as error:
            self.fail(str(error), param, ctx)


def comma_separated(parse: Any) -> Any:
    """Return a parser of comma-separated items, each parsed by `parse`."""

    def parse_list(text: str) -> tuple[Any, ...]:
        items = [item.strip() for item in text.split(",") if item.strip()]
        if not items:
            raise UsageError(f"{text!r} names nothing; leave the option out for its default")
        return tuple(parse(item) for item in items)

    return parse_list


def key_and_value(text: str) -> tuple[str, str]:
    """Return the two sides of the first ``=``.

    Examples
    --------
    >>> key_and_value("connect=port=2222")
    ('connect', 'port=2222')
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"{text!r} is no KEY=VALUE; write for example queue=short")
    return key, value


def _share(text: str) -> float:
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise UsageError(f"{text!r} is not a share; write for example 0.02 or 2%") from None


SHARE = Parsed("share", _share)
BYTES = Parsed("size", units.parse_bytes)
SECONDS = Parsed("duration", units.parse_seconds)
_BY_TYPE: Mapping[Any, Mapping[str, Any]] = {
    int: {"type": click.INT},
    float: {"type": SECONDS},
    bool: {"is_flag": True},
    tuple: {"type": Parsed("names", comma_separated(str))},
    Mapping: {"type": Parsed("KEY=VALUE", key_and_value), "multiple": True},
}


def param_options(params: type[Any]) -> list[click.Parameter]:
    """Return one option per field of a workload's parameters."""
    hints = get_type_hints(params)
    return [
        click.Option(
            [f"--{field.name.replace('_', '-')}"],
            type=_type(hints[field.name], field.metadata.get("unit", "")),
            help=f"{field.metadata['help']}  [default: {_show(field.default)}]",
        )
        for field in fields(params)
    ]


def _type(hint: Any, unit: str) -> Any:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return Parsed("list", comma_separated(units.parse_bytes if unit == "bytes" else item))
    if hint not in (int, float, bool, str):
        raise TypeError(f"a parameter can't be a {hint}")
    return BYTES if hint is int and unit == "bytes" else hint


def _show(default: Any) -> str:
    if not isinstance(default, tuple):
        return str(default)
    items = [str(item) for item in default]
    return ",".join(items if len(items) < 8 else [*items[:4], "…", items[-1]])


def run_options() -> list[click.Parameter]:
    """Return the options of every run."""
    case, rule = Case(workload="", backend=""), Stopping()
    return [
        click.Option(["--backends"], type=Parsed("names", comma_separated(str)),
                     help="Comma-separated: tcp, ucx, ucx:shm, mpi, ucx:tcp+nvlink, …  "
                          "[default: tcp]"),
        click.Option(["--budget"], type=SECONDS,
                     help="Choose launches and iterations, and stop when every comparison is "
                          "decided, or after this time: 5m.  "
                          f"[with --detect: {rule.budget_s / 60:.0f}m]"),
        click.Option(["--detect"], type=SHARE,
                     help="The smallest difference that matters, for a run with a budget.  "
                          f"[with --budget: {rule.detect:.0%}]"),
        click.Option(["--rigorous"], is_flag=True,
                     help=f"Like --budget {_RIGOROUS.budget_s / 3600:.0f}h "
                          f"--detect {_RIGOROUS.detect:.0%}."),
        click.Option(["--launches"], type=click.INT,
                     help="Fresh clusters per backend, without a budget.  "
                          f"[default: {case.launches}]"),
        click.Option(["--iterations"], type=click.INT,
                     help="Timed calls per launch; for pingpong messages per size."),
        click.Option(["--warmups"], type=click.INT, help="Calls before the timed ones."),
        click.Option(["--seed"], type=click.INT,
                     help="Seed of the data and of the launches' order."),
        click.Option(["--timeout"], type=SECONDS,
                     help=f"Deadline of one launch.  [default: {case.timeout_s:g} s]"),
        click.Option(["--min-transfer"], type=BYTES, default=1_000_000, show_default=True,
                     help="Count transfers from this size on in pair tables."),
        click.Option(["--racks"], type=click.Path(path_type=Path), metavar="FILE",
                     help="The hosts of each rack, for the classes of links."),
        click.Option(["--output"], type=click.Path(path_type=Path), default=Path("results"),
                     show_default=True, help="Parent folder of the run's directory."),
        click.Option(["--resume"], type=click.Path(path_type=Path),
                     help="Continue an interrupted run with its settings."),
        click.Option(["--skip-unavailable"], is_flag=True,
                     help="Skip backends that this machine lacks."),
        click.Option(["--dry-run"], is_flag=True,
                     help="Print the job script of every launch, and start nothing."),
    ]  # fmt: skip


def replication(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options for launches, iterations, …, by their names in ``Case``."""
    settings = {key: given[key] for key in _REPLICATION if given[key] is not None}
    if given["timeout"] is not None:
        settings["timeout_s"] = given["timeout"]
    return settings


def stopping(given: dict[str, Any]) -> Stopping | None:
    """Return the stopping rule of a run with a budget; None if its launches are fixed.

    Raises
    ------
    UsageError
        If the launches are fixed as well.
    """
    chosen = {"budget_s": given["budget"], "detect": given["detect"]}
    limits = {name: value for name, value in chosen.items() if value is not None}
    if not limits and not given["rigorous"]:
        return None
    if given["launches"] is not None:
        raise UsageError(
            "a run with a budget chooses the number of launches; leave out --launches, or "
            "--budget, --detect and --rigorous"
        )
    default = _RIGOROUS if given["rigorous"] else Stopping()
    return replace(default, **limits, fixed_iterations=given["iterations"] is not None)


def available(suite: Suite, *, skip: bool) -> Suite:
    """Return `suite` without the cases that this machine can't run.

    Raises
    ------
    UsageError
        If cases must not be skipped, none is left, or a binding is impossible on this host.
    """
    from commbench.harness.cases import unmet
    from commbench.machine import topology

    for placement in {case.cluster.placement for case in suite.cases} - {()}:
        topology.validate_placement(placement, topology.this_host())
    kept: list[Case] = []
    missing: Counter[str] = Counter()
    for case in suite.cases:
        problem = unmet(case)
        if problem is None:
            kept.append(case)
            continue
        what = problem.what or f"backend {case.backend}"
        missing[str(UnavailableError(what, problem.reason, problem.remedy))] += 1
    reasons = [f"{text} ({n} cases)" if n > 1 else text for text, n in missing.items()]
    if missing and not skip:
        rest = "Nothing else is left to measure"
        if kept:
            backends = ", ".join(dict.fromkeys(case.backend for case in kept))
            share = f"{len(kept)} of {len(suite.cases)} cases"
            rest = f"To go on with {share}, over {backends}: --skip-unavailable"
        raise UsageError((". " if len(reasons) == 1 else "\n").join([*reasons, rest]))
    for reason in reasons:
        click.echo(f"skipped: {reason}", err=True)
    if not kept:
        raise UsageError("no backend is left to measure; `commbench doctor` shows what is missing")
    return replace(suite, cases=tuple(kept))


def cluster_options(workload: type[Workload]) -> list[click.Parameter]:
    """Return the options for the cluster of `workload`; a pair of processes has fewer."""
    device = click.Option(
        ["--device"], type=click.Choice(["auto", "cpu", "gpu"]), default="auto",
        show_default=True, help=ClusterSpec.settings()["device"].help,
    )  # fmt: skip
    if issubclass(workload, PairWorkload):
        return [device, *_options("gpu")]
    return [*_options("size", "launcher"), _placement("none"), device, *_options("gpu")]


def suite_options() -> list[click.Parameter]:
    """Return the options that override the scale and the clusters of a suite file."""
    scale = click.Option(
        ["--scale"], type=SHARE,
        help="Share of the full size, as 0.01 or 1%; 1: the published size.  [default: the file's]",
    )  # fmt: skip
    clusters = [*_options("launcher"), *_options("gpu")]
    for option in clusters:
        option.default, option.show_default = None, False
        option.help = f"{option.help}  [default: the file's]"
    return [scale, *clusters, _placement("the file's")]


def _options(*groups: str) -> list[click.Option]:
    """Return the options for the fields in these groups."""
    spec, types = ClusterSpec(), get_type_hints(ClusterSpec)
    options = []
    for name, how in ClusterSpec.settings(*groups).items():
        if name == "scheduler":
            options += [
                click.Option(["--scheduler-address"],
                             help="For external: such as tcp://10.0.0.1:8786."),
                click.Option(["--scheduler-file"], type=click.Path(resolve_path=True),
                             help="For external: what `dask scheduler --scheduler-file` wrote."),
            ]  # fmt: skip
            continue
        kind, default = types[name], getattr(spec, name)
        has_default = how.none or (default not in ((), {}) and kind is not bool)
        options.append(
            click.Option(
                [how.option], help=how.help, metavar=how.metavar,
                default=default if has_default else None,
                show_default=how.none or bool(has_default),
                **_BY_TYPE.get(get_origin(kind) or kind, {}),
            )
        )  # fmt: skip
    return options


def _placement(default: str) -> click.Option:
    return click.Option(
        ["--placement"], metavar="none|auto|FILE",
        help="CPUs, GPU and NIC of each worker: auto by the host's topology, or from a file.  "
             f"[default: {default}]",
    )  # fmt: skip


def cluster(given: dict[str, Any]) -> ClusterSpec:
    """Return the cluster specified by the options."""
    from commbench.harness.suite import choose_placement

    device = devices.detect() if given["device"] == "auto" else given["device"]
    asked = ClusterSpec(**overrides(given), device=device)
    return replace(asked, placement=choose_placement(given.get("placement") or "none", asked))


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options for a cluster, by their names in ``ClusterSpec``.

    Device and placement are not included, because they depend on the machine and the number of
    workers.
    """
    values: dict[str, Any] = {
        name: given.get(how.option.removeprefix("--").replace("-", "_"))
        for name, how in ClusterSpec.settings("size", "launcher", "gpu").items()
    }
    values["launcher_options"] = dict(values["launcher_options"] or ()) or None
    values["scheduler"] = _scheduler(given) or None
    return {name: value for name, value in values.items() if value is not None}


def _scheduler(given: dict[str, Any]) -> str:
    address, file = given.get("scheduler_address"), given.get("scheduler_file")
    if address and file:
        raise UsageError("--scheduler-address and --scheduler-file name one scheduler; give one")
    return address or file or ""

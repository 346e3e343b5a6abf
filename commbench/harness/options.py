"""The options of ``commbench run``: for a workload's parameters, for clusters, and for all runs.

The options for clusters are the fields of ``ClusterSpec``, and their groups the scopes of these.
With a workload, options have the workload's defaults; with a suite file, they have no defaults, and
the file's values apply.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click

from commbench.errors import UnavailableError, UsageError
from commbench.model import Case, ClusterSpec, Manifest, Stopping, Suite, registry, units
from commbench.store import directory
from commbench.workloads import device as devices
from commbench.workloads.workload import ClusterWorkload, Workload

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any, Any]
else:
    # It takes no two type parameters before click 8.5.
    _ParamType = click.ParamType

MAX_REMEDIES = 3
"""How many remedies a proof measures by default."""
_FILES = "the file's"
_RIGOROUS = Stopping(budget_s=3600.0, detect=0.02)
_QUICK = Stopping(budget_s=40.0, quick=True)


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


class _RunPath(click.Path):
    """The directory of a run, or ``latest``: that of the newest one in ``results/``."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, str) and not os.path.exists(Path(value, "run.json")):
            if os.path.exists(Path("results", value, "run.json")):
                return super().convert(str(Path("results") / value), param, ctx)
            if value == directory.LATEST:
                value = directory.newest_run()
            elif made := directory.runs_in(Path(value)):
                self.fail(
                    f"{value} has {len(made)} runs; the newest is {made[-1]}, and all are in "
                    f"{Path(value)}/", param, ctx,
                )  # fmt: skip
        return super().convert(value, param, ctx)


RUN = _RunPath(path_type=Path)


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


SHARE = Parsed("share", units.parse_share)
BYTES = Parsed("size", units.parse_bytes)
SECONDS = Parsed("duration", units.parse_seconds)
COUNT = Parsed("count", units.parse_count)
POSITIVE = Parsed("count", partial(units.parse_count, least=1))
NAMES = Parsed("names", comma_separated(str))
_PATH = click.Path(path_type=Path)
_BY_TYPE: Mapping[Any, Mapping[str, Any]] = {
    int: {"type": COUNT},
    float: {"type": SECONDS},
    bool: {"is_flag": True},
    tuple: {"type": NAMES},
    Mapping: {"type": Parsed("KEY=VALUE", key_and_value), "multiple": True},
}
_SWITCH: Mapping[str, Any] = {"is_flag": False, "flag_value": "true"}
"""The attributes of an option with a value that is true or false; its name alone is true."""
_CLUSTER_OPTIONS = frozenset(how.option for how in ClusterSpec.settings().values())
_BY_UNIT = {"bytes": BYTES, "seconds": SECONDS, "share": SHARE}
_FORMATS = {"bytes": units.format_message_size, "seconds": "{:g}s".format}


class Command(click.Command):
    """A command whose help has its options in groups, given by title."""

    def __init__(self, name: str, groups: Mapping[str, list[click.Option]], **given: Any) -> None:
        super().__init__(name, params=list(chain(*groups.values())), **given)
        self._groups = groups

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; those of clusters are unknown to workloads without one.

        Several numbers of workers are varied: ``--workers 1..64`` is ``--vary workers=1..64``.
        """
        words = "\0".join(["", *args])
        words = re.sub(r"(?<=\0)--workers[=\0](?=[^\0]*\.\.)", "--vary\0workers=", words)
        try:
            return super().parse_args(ctx, words.split("\0")[1:])
        except click.NoSuchOption as error:
            if error.option_name == "--resume":
                problem = "a run goes on with its options: commbench run --resume RUN"
            elif error.option_name in _CLUSTER_OPTIONS and "Suite" in self._groups:
                problem = (
                    f"a suite's file has {error.option_name}, in [cluster]; --vary SETTING=A|B "
                    "compares values of a setting, such as workers=2|4"
                )
            elif error.option_name in _CLUSTER_OPTIONS:
                problem = (
                    f"{self.name} runs between two processes, without a cluster: "
                    f"{error.option_name} is for the other workloads, such as links between hosts; "
                    "pingpong has --peer HOST"
                )
            else:
                raise
            raise click.UsageError(problem, ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        for title, options in self._groups.items():
            shown = [*options, *filter(None, [self.get_help_option(ctx)] * (title == "Output"))]
            with formatter.section(title):
                formatter.write_dl([*filter(None, (each.get_help_record(ctx) for each in shown))])


def groups(workload: type[Workload] | None = None) -> dict[str, list[click.Option]]:
    """Return the options of `workload`, or without one those that override a suite file's values.

    They are in the groups of the help, by title.
    """
    backends = click.Option(
        ["--backends"], type=NAMES,
        help=f"Comma-separated: {', '.join(registry.names('backend'))}, or with options: "
        f"ucx:shm, ucx:tcp+nvlink, …  [default: {'tcp' if workload else _FILES}]",
    )  # fmt: skip
    vary = click.Option(
        ["--vary"], multiple=True, metavar="SETTING=A|B",
        help="Compare the values of a variable, a key of Dask's configuration or an option for "
        "clusters: 'UCX_TLS=tcp|tcp,sm', workers=2|4; may be repeated.",
    )  # fmt: skip
    device = click.Option(
        ["--device"], type=click.Choice(["auto", "cpu", "gpu"]), default="auto",
        show_default=True, help=ClusterSpec.settings()["device"].help,
    )  # fmt: skip
    if workload is None:
        scale = click.Option(
            ["--scale"],
            type=SHARE,
            help="Share of the full size, as 0.01 or 1%; 1: the published size.  "
            f"[default: {_FILES}]",
        )
        cluster, gpus = [*_options("launcher"), _placement(_FILES)], _options("gpu")
        for option in (*cluster, *gpus):
            if option.name != "placement":
                option.default, option.show_default = None, False
                option.help = f"{option.help}  [default: {_FILES}]"
        chosen = {"Suite": [scale, backends, vary], "Cluster": cluster, "GPU": gpus}
    else:
        chosen = {"Workload": [*param_options(workload.Params), backends, vary]}
        if workload.has_cluster:
            chosen["Cluster"] = [*_options("size", "launcher"), _placement("none")]
            for option in chosen["Cluster"]:
                if option.name == "task_placement":
                    option.default = workload.task_placement
        chosen["GPU"] = [device, *_options("gpu")]
    chosen |= {"Statistics": _statistics(workload), "Output": _output()}
    names = Counter(option.name for option in chain(*chosen.values()))
    if twice := [str(name) for name, n in names.items() if n > 1]:
        raise UsageError(
            f"{getattr(workload, 'name', '')}: the parameter {twice[0]} has the name of an option "
            "of run; give it another name"
        )
    return chosen


def param_options(params: type[Any]) -> list[click.Option]:
    """Return one option per field of a workload's parameters."""
    hints = get_type_hints(params)
    return [
        click.Option(
            # Else click would write the name in lower case.
            [field.name, f"--{field.name.replace('_', '-')}"],
            type=_type(hints[field.name], field.metadata.get("unit", "")),
            **(_SWITCH if hints[field.name] is bool else {}),
            help=f"{field.metadata.get('help', '')}  "
            f"[default: {_show(field.default, field.metadata.get('unit', ''))}]",
        )
        for field in fields(params)
        if field.metadata.get("is_option", True)
    ]


def _type(hint: Any, unit: str) -> Any:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        parse = units.parse_bytes if unit == "bytes" else units.parse_count if item is int else item
        return Parsed("list", comma_separated(parse))
    if hint not in (int, float, bool, str):
        raise TypeError(f"a parameter can't be a {hint}")
    return _BY_UNIT.get(unit, COUNT if hint is int else hint)


def _show(default: Any, unit: str = "") -> str:
    if not isinstance(default, tuple | list):
        return _FORMATS.get(unit, str)(default).replace(" ", "")
    items = [_show(item, unit) for item in default]
    return ",".join(items if len(items) < 8 else [*items[:4], "…", items[-1]])


def _statistics(workload: type[Workload] | None) -> list[click.Option]:
    default = dict.fromkeys((*Case.counts(), "timeout"), _FILES)
    quick: list[click.Option] = []
    if workload is not None:
        counts = {**{name: getattr(Case, name) for name in Case.counts()}, **workload.defaults}
        default["timeout"] = units.format_duration(counts.pop("timeout_s", Case.timeout_s))
        default |= {name: str(count) for name, count in counts.items()}
        quick = [
            click.Option(["--quick"], is_flag=True,
                         help="A look within a minute for up to four backends: a small problem and "
                              "few launches, too few for a verdict."),
        ]  # fmt: skip
    what = "Timed messages per launch and size."
    if workload is None or workload.has_cluster:
        what = "Timed calls per launch."
    without, budget = "without a budget.", ""
    if workload is not None and can_choose(workload):
        without = "if no budget chooses them."
        budget = (
            "with several cases (not numbers of workers, nor batch jobs), unless --launches or "
            f"--iterations is given: {Stopping().budget_s / 60:.0f}m or more; with --detect: "
            f"{Stopping().budget_s / 60:.0f}m"
        )
    return [
        *quick,
        *design_options(
            f"Fresh clusters per backend, {without}  [default: {default['launches']}]",
            f"Deadline of one launch.  [default: {default['timeout']}]", budget,
        ),
        click.Option(["--iterations"], type=COUNT,
                     help=f"{what}  [default: {default['iterations']}]"),
        click.Option(["--warmups"], type=COUNT,
                     help=f"As many before the timed ones.  [default: {default['warmups']}]"),
        click.Option(["--seed"], type=COUNT,
                     help="Seed of the data and of the launches' order.  "
                          f"[default: {default['seed']}]"),
    ]  # fmt: skip


def design_options(launches: str, timeout: str, budget: str = "") -> list[click.Option]:
    """Return the options that a run can still have when it is resumed.

    `launches` and `timeout` are the help of these, and `budget` the default of that.
    """
    rule = Stopping()
    budget = budget or f"with --detect: {rule.budget_s / 60:.0f}m"
    return [
        click.Option(["--launches"], type=COUNT, help=launches),
        click.Option(["--budget"], type=SECONDS,
                     help="Choose launches and iterations, and stop when every comparison is "
                          "decided, or after this time (half as much again if a verdict "
                          f"needs that): 5m.  [{budget}]"),
        click.Option(["--detect"], type=SHARE,
                     help="The smallest difference that matters, for a run with a budget.  "
                          f"[with --budget: {rule.detect:.0%}]"),
        click.Option(["--rigorous"], is_flag=True,
                     help=f"Like --budget {_RIGOROUS.budget_s / 3600:.0f}h "
                          f"--detect {_RIGOROUS.detect:.0%}."),
        click.Option(["--timeout"], type=SECONDS, help=timeout),
    ]  # fmt: skip


def _output() -> list[click.Option]:
    return [
        click.Option(["--output"], type=_PATH, default=Path("results"), metavar="DIR",
                     show_default=True, help="Parent folder of the run's directory."),
        click.Option(["--min-transfer"], type=BYTES, default="1MB", show_default=True,
                     help="Count transfers from this size on in pair tables."),
        click.Option(["--min-batch"], type=BYTES, default="250kB", show_default=True,
                     help="Count batches of P2P shuffles from this size on in pair tables."),
        click.Option(["--racks"], type=_PATH, metavar="FILE",
                     help="The hosts of each rack, for the classes of links."),
        click.Option(["--skip-unavailable"], is_flag=True,
                     help="Skip backends that this machine lacks."),
        click.Option(["--dry-run"], is_flag=True,
                     help="Print the job script of every case, and start nothing."),
        *verbosity_options(),
    ]  # fmt: skip


def verbosity_options() -> list[click.Option]:
    """Return the options for how much a run prints."""
    return [
        click.Option(["--verbose", "-v"], is_flag=True, help="Print all tables."),
        click.Option(["--quiet", "-q"], is_flag=True,
                     help="Print failures and the run's directory only."),
    ]  # fmt: skip


def validate_verbosity(given: Mapping[str, Any]) -> None:
    """Raise a UsageError if the options ask for more output and for less."""
    if given.get("verbose") and given.get("quiet"):
        raise UsageError("--verbose prints all tables, and --quiet none; give one of them")


def replication(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options for launches, iterations, …, by their names in ``Case``."""
    settings = {key: given[key] for key in Case.counts() if given[key] is not None}
    if given["timeout"] is not None:
        settings["timeout_s"] = given["timeout"]
    return settings


def can_choose(workload: type[Workload]) -> bool:
    """Return whether a budget can choose the launches and iterations of a workload."""
    return issubclass(workload, ClusterWorkload) and workload.has_estimate


def is_open(given: Mapping[str, Any]) -> bool:
    """Return whether no option fixes the launches or the iterations, or how long they may take."""
    design = ("launches", "iterations", "budget", "rigorous", "quick")
    return all(given.get(name) is None or given[name] is False for name in design)


def stopping(given: Mapping[str, Any]) -> Stopping | None:
    """Return the stopping rule of a run with a budget; None if its launches are fixed.

    Raises
    ------
    UsageError
        If the launches are fixed as well, or a limit is out of range.
    """
    chosen = {"budget_s": given.get("budget"), "detect": given.get("detect")}
    limits = {name: value for name, value in chosen.items() if value is not None}
    rigorous, quick = given.get("rigorous"), given.get("quick")
    if not limits and not rigorous and not quick:
        return None
    if given.get("launches") is not None:
        raise UsageError(
            "a run with a budget chooses the number of launches; leave out --launches, or "
            "--budget, --detect, --rigorous and --quick"
        )
    if rigorous and quick:
        raise UsageError("--rigorous takes an hour, and --quick a minute; give one of them")
    default = _RIGOROUS if rigorous else _QUICK if quick else Stopping()
    rule = replace(default, **limits, fixed_iterations=given.get("iterations") is not None)
    if not 0 < rule.detect < 1:
        raise UsageError(f"--detect is {rule.detect:g}; it must be above 0 and below 1, or 100 %")
    if not rule.budget_s > 0:
        raise UsageError(f"--budget is {rule.budget_s:g} s; it must be above 0")
    return rule


def resumed(manifest: Manifest, given: Mapping[str, Any]) -> Manifest:
    """Return `manifest` with the design in the options that were `given`.

    Raises
    ------
    UsageError
        If it would have fewer launches, or too little time for one.
    """
    from commbench.harness.cases import validate_replication

    cases = manifest.suite.cases
    rule = stopping(given)
    if rule is not None and manifest.stopping is not None:
        limits = {"budget_s": given.get("budget"), "detect": given.get("detect")}
        kept = manifest.stopping
        if given.get("rigorous"):
            kept = replace(kept, budget_s=max(rule.budget_s, kept.budget_s), detect=rule.detect)
        rule = replace(kept, **{name: value for name, value in limits.items() if value is not None})
    launches = given.get("launches")
    if launches is not None:
        most = max(case.launches for case in cases)
        if manifest.stopping is not None:
            raise UsageError(
                "the run chooses its launches within a budget; resume it with a longer one: "
                f"--budget {math.ceil(manifest.stopping.budget_s / 30)}m"
            )
        if launches < most:
            raise UsageError(
                f"--launches is {launches}, and the run has {most}; it can have more only"
            )
        cases = tuple(replace(case, launches=launches) for case in cases)
    if given.get("timeout") is not None:
        for case in cases:
            validate_replication({"timeout_s": given["timeout"]}, case.cluster)
        cases = tuple(replace(case, timeout_s=given["timeout"]) for case in cases)
    suite = replace(manifest.suite, cases=cases)
    return replace(manifest, suite=suite, stopping=rule or manifest.stopping)


def available(suite: Suite, *, skip: bool | None) -> Suite:
    """Return `suite` without the cases that this machine can't run.

    `skip` is ``--skip-unavailable``, or None if the command has no such option.

    Raises
    ------
    UsageError
        If cases must not be skipped, none is left, or a binding is impossible on this host.
    """
    from commbench.harness.cases import unmet
    from commbench.machine.topology import discovery, workers

    for placement in {case.cluster.placement for case in suite.cases} - {()}:
        workers.validate_placement(placement, discovery.this_host())
    kept: list[Case] = []
    missing: Counter[tuple[str, str, str]] = Counter()
    for case in suite.cases:
        problem = unmet(case)
        if problem is None:
            kept.append(case)
            continue
        what = problem.what or f"backend {case.backend}"
        missing[what, problem.reason, problem.remedy] += 1
    reasons = [
        str(UnavailableError(*parts, f" ({n} cases)" * (n > 1))) for parts, n in missing.items()
    ]
    if missing and not skip:
        if not kept:
            reasons.append("Nothing else is left to measure")
        elif skip is not None:
            backends = ", ".join(dict.fromkeys(case.backend for case in kept))
            share = f"{len(kept)} of {len(suite.cases)} cases"
            reasons.append(f"To go on with {share}, over {backends}: --skip-unavailable")
        text, first = (". " if len(missing) == 1 else "\n").join(reasons), next(iter(missing))
        raise UnavailableError(*first, text.removeprefix(str(UnavailableError(*first))))
    for reason in reasons:
        click.echo(f"skipped: {reason}", err=True)
    if not kept:
        raise UsageError("no backend is left to measure; `commbench doctor` shows what is missing")
    return replace(suite, cases=tuple(kept), skipped=tuple(reasons))


def _options(*groups: str) -> list[click.Option]:
    """Return the options for the fields in these groups."""
    spec, types = ClusterSpec(), get_type_hints(ClusterSpec)
    options = []
    for name, how in ClusterSpec.settings(*groups).items():
        kind, default = types[name], getattr(spec, name)
        has_default = how.none or (default not in ((), {}) and kind is not bool)
        shown = how.none or (units.format_duration(default) if kind is float else bool(has_default))
        options.append(
            click.Option(
                [how.option], help=how.help,
                metavar="|".join(registry.names(how.kind)) if how.kind else how.metavar,
                default=default if has_default else None,
                show_default=shown,
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


def cluster(given: dict[str, Any], kind: type[Workload]) -> ClusterSpec:
    """Return the cluster specified by the options for a kind of workload, without placement."""
    device = given["device"]
    if device == "auto":
        device = devices.detect(on_gpu=kind.on_gpu)
    return ClusterSpec(**overrides(given), device=device)


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Return the given options for a cluster, by their names in ``ClusterSpec``.

    Device and placement are not included, because they depend on the machine and the number of
    workers.

    Raises
    ------
    UsageError
        If an option of the launcher is given twice.
    """
    values: dict[str, Any] = {
        name: given.get(how.key)
        for name, how in ClusterSpec.settings("size", "launcher", "gpu").items()
    }
    pairs = values["launcher_options"] or ()
    for key, times in Counter(key.replace("-", "_") for key, _ in pairs).items():
        if times > 1:
            raise UsageError(
                f"--launcher-option {key} is given {times} times; give it once (several directives "
                "of a job are a list)"
            )
    values["launcher_options"] = dict(pairs) or None
    if values["scheduler"] and os.path.isfile(values["scheduler"]):
        values["scheduler"] = str(Path(values["scheduler"]).resolve())
    return {name: value for name, value in values.items() if value is not None}

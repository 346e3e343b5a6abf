"""The options of ``commbench run``, and how a workload's parameters become some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from commbench.errors import UnavailableError, UsageError
from commbench.harness.parsed import BYTES, SECONDS, SHARE, Parsed, listed
from commbench.model import RIGOROUS_LAUNCHES, Case, Stopping, Suite, units

_REPLICATION = ("launches", "iterations", "warmups", "seed")


def names(params: type[Any]) -> list[str]:
    """Return the names of the fields of a workload's parameters."""
    return [field.name for field in fields(params)]


def of_params(params: type[Any]) -> list[click.Parameter]:
    """Return one option for every field of a workload's parameters."""
    hints = get_type_hints(params)
    return [
        click.Option(
            [f"--{field.name.replace('_', '-')}"],
            type=_type(hints[field.name], field.metadata.get("unit", "")),
            help=f"{field.metadata['help']}  [default: {_show(field.default)}]",
        )
        for field in fields(params)
    ]


def _type(hint: Any, unit: str) -> click.ParamType[Any, Any]:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return Parsed("list", listed(units.parse_bytes if unit == "bytes" else item))
    if hint is int and unit == "bytes":
        return BYTES
    scalars: dict[Any, click.ParamType[Any, Any]] = {
        int: click.INT, float: click.FLOAT, bool: click.BOOL, str: click.STRING,
    }  # fmt: skip
    return scalars[hint]


def _show(default: Any) -> str:
    if not isinstance(default, tuple):
        return str(default)
    items = [str(item) for item in default]
    return ",".join(items if len(items) < 8 else [*items[:4], "…", items[-1]])


def run_options() -> list[click.Parameter]:
    """Return the options that every run takes."""
    case, rule = Case(workload="", backend=""), Stopping()
    return [
        click.Option(["--backends"], type=Parsed("names", listed(str)),
                     help="Comma-separated: tcp, ucx, ucx:shm, mpi, ucx:tcp+nvlink, …  "
                          "[default: tcp]"),
        click.Option(["--launches"], type=click.INT,
                     help=f"Fresh clusters per backend.  [default: {case.launches}]"),
        click.Option(["--rigorous"], is_flag=True,
                     help=f"At least {RIGOROUS_LAUNCHES} launches, then more until every median "
                          "is known well enough, or a limit is reached:"),
        click.Option(["--rel-ci"], type=SHARE,
                     help="with --rigorous: enough is an interval of ± this share of the median.  "
                          f"[default: {rule.rel_ci:.0%}]"),
        click.Option(["--time-budget"], type=SECONDS,
                     help="with --rigorous: no further launches after this long.  "
                          f"[default: {rule.time_budget_s / 60:.0f} min]"),
        click.Option(["--max-launches"], type=click.INT,
                     help="with --rigorous: no more launches per backend than this.  "
                          f"[default: {rule.max_launches}]"),
        click.Option(["--iterations"], type=click.INT,
                     help="Timed calls per launch; for pingpong messages per size."),
        click.Option(["--warmups"], type=click.INT, help="Calls before the ones that count."),
        click.Option(["--seed"], type=click.INT, help="Of the data and of the launches' order."),
        click.Option(["--timeout"], type=SECONDS,
                     help=f"Deadline of one launch.  [default: {case.timeout_s:g} s]"),
        click.Option(["--min-transfer"], type=BYTES, default=1_000_000, show_default=True,
                     help="Count transfers from this size on in pair tables."),
        racks_option(),
        click.Option(["--output"], type=click.Path(path_type=Path), default=Path("results"),
                     show_default=True, help="Where the run's directory is made."),
        click.Option(["--resume"], type=click.Path(path_type=Path),
                     help="Go on with an interrupted run, as it was begun."),
        click.Option(["--skip-unavailable"], is_flag=True,
                     help="Go on without backends that this machine lacks."),
        click.Option(["--dry-run"], is_flag=True,
                     help="Print the job script of every launch, and start nothing."),
    ]  # fmt: skip


def racks_option() -> click.Option:
    """Return the option that tells of racks, which no kernel knows."""
    return click.Option(
        ["--racks"], type=click.Path(path_type=Path), metavar="FILE",
        help="Which hosts share a rack, for the classes of links.",
    )  # fmt: skip


def racks(given: Path | None) -> Mapping[str, tuple[str, ...]]:
    """Return the hosts of each rack that the file names; none without a file."""
    from commbench.harness.suite.placement import read_racks

    return {} if given is None else read_racks(given)


def replication(given: dict[str, Any]) -> dict[str, Any]:
    """Return those of launches, iterations, … that the user gave, by the names in ``Case``."""
    found = {key: given[key] for key in _REPLICATION if given[key] is not None}
    if given["rigorous"]:
        found.setdefault("launches", RIGOROUS_LAUNCHES)
    if given["timeout"] is not None:
        found["timeout_s"] = given["timeout"]
    return found


def stopping(given: dict[str, Any]) -> Stopping | None:
    """Return when a ``--rigorous`` run has enough launches; None without that option.

    Raises
    ------
    UsageError
        Where a limit is given without it.
    """
    limits = {"rel_ci": "rel_ci", "time_budget": "time_budget_s", "max_launches": "max_launches"}
    found = {field: given[key] for key, field in limits.items() if given[key] is not None}
    if given["rigorous"]:
        return Stopping(**found)
    for key in limits:
        if given[key] is not None:
            raise UsageError(f"--{key.replace('_', '-')} is a limit of --rigorous; give both")
    return None


def available(suite: Suite, *, skip: bool) -> Suite:
    """Return `suite` without the cases that this machine can't run, if they may be skipped.

    Raises
    ------
    UsageError
        Where they may not, nothing is left, or workers are bound to what is not there.
    """
    from commbench.backends import parse
    from commbench.harness.suite.placement import check
    from commbench.harness.suite.requirements import unmet

    check(suite)
    kept: list[Case] = []
    missing: dict[str, list[Case]] = {}
    for case in suite.cases:
        backend = parse(case.backend)
        problem = backend.unavailable(case.cluster.device) or unmet(case, backend)
        if problem is None:
            kept.append(case)
            continue
        what = problem.what or f"backend {case.backend}"
        error = UnavailableError(what, problem.reason, problem.remedy)
        missing.setdefault(str(error), []).append(case)
    if missing and not skip:
        raise UsageError(_refusal(missing, kept))
    for text, cases in missing.items():
        click.echo(f"skipped: {text}{_number(cases)}", err=True)
    if not kept:
        raise UsageError("no backend is left to measure; `commbench doctor` tells what is missing")
    return replace(suite, cases=tuple(kept))


def _refusal(missing: Mapping[str, list[Case]], kept: list[Case]) -> str:
    told = [f"{text}{_number(cases)}" for text, cases in missing.items()]
    n_cases = len(kept) + sum(map(len, missing.values()))
    backends = ", ".join(dict.fromkeys(case.backend for case in kept))
    rest = (
        f"To go on with {len(kept)} of {n_cases} cases, over {backends}: --skip-unavailable"
        if kept
        else "Nothing else is left to measure"
    )
    return f"{told[0]}. {rest}" if len(told) == 1 else "\n".join([*told, rest])


def _number(cases: list[Case]) -> str:
    return f" ({len(cases)} cases)" if len(cases) > 1 else ""

"""``commbench links``: does every link of a cluster do what it should."""

from __future__ import annotations

import threading
from typing import Any

import click

from commbench.cli import run_command
from commbench.cli.main import ARGUMENTS
from commbench.errors import UnknownNameError, UsageError
from commbench.harness import options
from commbench.machine.topology.workers import LINK_CLASSES, UNKNOWN, rank
from commbench.model import ClusterSpec, units
from commbench.workloads.all_to_all import Links

SLOW = 3
"""The exit status of a link that is slow, or goes another way than the others."""
_N_WORKERS = 4


def _expectation(text: str) -> tuple[str, float]:
    link, rate = options.key_and_value(text)
    known = ["NV2" if name == "NV" else name for name in LINK_CLASSES if name != UNKNOWN]
    if link == "NV" or rank(link) >= rank(UNKNOWN):
        raise UnknownNameError("class of link", link, known)
    return link, units.parse_bandwidth(rate)


def _groups() -> dict[str, list[click.Option]]:
    """Return the options of the workload, of which some follow from others."""
    groups = options.groups(Links)
    by_name = {option.name: option for option in groups["Cluster"]}
    for name, default in (
        ("workers", f"one per host of --hosts; all of the scheduler's; else {_N_WORKERS}"),
        ("threads", "1; the scheduler's"),
        ("launcher", "ssh with --hosts; external with a scheduler; else local"),
    ):
        option = by_name[name]
        option.default, option.show_default = None, default
    judgement = [
        click.Option(
            ["--expect"], type=options.Parsed("CLASS=RATE", _expectation), multiple=True,
            help="What links of a class should have, in bits or bytes: network=100Gb/s, "
            "'same host=5GB/s'; may be repeated.  [default: what is typical of the class]",
        ),
        click.Option(
            ["--format", "form"], type=click.Choice(["terminal", "json"]), default="terminal",
            show_default=True, help="json has every link.",
        ),
    ]  # fmt: skip
    for listed in groups.values():
        listed[:] = [option for option in listed if option.name != "verbose"]
    return {"Judgement": judgement, **groups}


@click.pass_context
def _links(ctx: click.Context, /, form: str, **given: Any) -> None:
    """Say whether every link between hosts does what it should, and which do not.

    Exit status 0: all links are fine; 3: a link is slow, or goes another way than the others; 1: a
    launch failed, or links could not be judged.
    """
    from commbench.reports.link_report import FAULTY, FINE, LinkReport

    _complete(given)
    call = ctx.obj = run_command.Call(ctx.meta[ARGUMENTS], threading.Event())
    status = run_command.measure_workload(Links.name, given)
    if status or call.run is None:
        if call.run is not None:
            click.echo("\n".join([*call.run.failures["message"], str(call.run.path)]), err=True)
        ctx.exit(status)
    report = LinkReport(call.run)
    if form == "json" or not given["quiet"]:
        click.echo(report.document() if form == "json" else report.text(), nl=False)
    click.echo(call.run.path, err=form == "json")
    ctx.exit({FINE: 0, FAULTY: SLOW}.get(report.outcome, 1))


def _complete(given: dict[str, Any]) -> None:
    """Set the options that follow from others."""
    scheduler = given["scheduler"]
    workers, threads, launcher = _N_WORKERS, 1, ClusterSpec.launcher
    if given["hosts"]:
        workers, launcher = max(1, len(given["hosts"]) - 1), "ssh"
    elif scheduler:
        from commbench.launchers import external

        launcher = external.ExternalLauncher.name
        protocol, *counts = external.describe(scheduler)
        given["backends"] = given["backends"] or (protocol,)
        workers, threads = counts
        if not (workers or given["workers"]):
            raise UsageError(
                f"{scheduler} has no workers yet; start them, or say for how many to wait: "
                "--workers 16"
            )
    for name, value in (("workers", workers), ("threads", threads), ("launcher", launcher)):
        if given[name] is None:
            given[name] = value


links = options.Command("links", _groups(), callback=_links, help=_links.__doc__)

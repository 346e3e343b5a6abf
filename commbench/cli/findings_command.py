"""``diagnose`` and ``prove``: what slows a run down, and the proof of what helps."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commbench import load
from commbench.cli.results import PATH
from commbench.errors import UnknownNameError, UsageError
from commbench.harness import interrupts, options
from commbench.harness.options import RUN

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.studies.prove import Proof

FOUND = 3
"""The exit status of a finding that is to fail."""
_N_CONFIRMING = 6
_DEFAULTS = {
    "skip_unavailable": False, "dry_run": False, "seed": None, "iterations": None,
    "min_transfer": 1_000_000, "min_batch": 250_000, "racks": None, "quick": False,
}  # fmt: skip


@click.command()
@click.argument("run", type=RUN, metavar="RUN|SCRIPT.py")
@click.option(
    "--format", "form", type=click.Choice(["terminal", "json"]), default="terminal",
    show_default=True,
)  # fmt: skip
@click.option(
    "--fail-on", type=options.NAMES, metavar="RULES",
    help="End with 3 if one of these rules has a finding: a,b or any.",
)  # fmt: skip
@click.pass_context
def diagnose(ctx: click.Context, run: Path, form: str, fail_on: tuple[str, ...] | None) -> None:
    """Say what slows RUN down, by how much, why, and what helps.

    RUN is the directory of a run, or `latest`; or a script, which is profiled first.
    """
    from commbench.analysis import findings
    from commbench.cli.profile_command import record
    from commbench.reports import findings as sentences
    from commbench.reports import json, terminal
    from commbench.reports.sections import heading

    known = [*findings.rules(), "any"]
    for name in fail_on or ():
        if name not in known:
            raise UnknownNameError("rule", name, known)
    status = 0
    if run.suffix == ".py":
        run, status = record(ctx, run)
    data = load(run)
    if form == "json":
        click.echo(json.dumps([asdict(finding) for finding in data.findings]), nl=False)
    else:
        parts = [*sentences.details(data)] or ["Nothing was found that slows this run down."]
        click.echo(terminal.page(heading(data), (), parts), nl=False)
    failing = [
        finding.rule for finding in data.findings
        if fail_on and not finding.is_fine and ("any" in fail_on or finding.rule in fail_on)
    ]  # fmt: skip
    if failing:
        click.echo(f"found: {', '.join(dict.fromkeys(failing))}", err=True)
    ctx.exit(status or FOUND * bool(failing))


@click.command(
    params=[
        click.Argument(["run"], type=RUN),
        click.Option(["--backend"], default="", help="The backend of the case; by default that "
                     "with the largest effect."),
        click.Option(["--trials"], type=options.POSITIVE, default=3, show_default=True,
                     help="The maximum number of remedies."),
        *options.design_options("Fresh clusters per remedy.", "Deadline of one launch."),
        click.Option(["--output"], type=PATH, default=Path("results"), metavar="DIR",
                     show_default=True, help="Parent folder of the runs' directories."),
        *options.verbosity_options(),
    ],
)  # fmt: skip
@click.pass_context
def prove(ctx: click.Context, /, run: Path, backend: str, trials: int, **given: Any) -> None:
    """Measure whether the remedies that RUN suggests help.

    The present state and each remedy are measured in turns, in fresh clusters. The best one is
    measured again, and its settings are printed.
    """
    from commbench.studies import prove as study

    if options.stopping(given) is None and given["launches"] is None:
        given["budget"] = 300.0
    proof = study.plan(load(run), trials, backend)
    suite = proof.suite
    if given["launches"] is not None:
        cases = (replace(case, launches=given["launches"]) for case in suite.cases)
        suite = replace(suite, cases=tuple(cases))
    measured = _measure(ctx, suite, given)
    _print_results(measured, proof)
    best = study.winner(study.results(measured, proof))
    if best is None:
        click.echo("None of these remedies helps here.")
        return
    fixed = {**given, "budget": None, "detect": None, "rigorous": False, "launches": None}
    again = _measure(ctx, study.confirmation(proof, best, _N_CONFIRMING), fixed)
    compared = study.results(again, proof)
    if study.winner(compared) is None:
        click.echo(f"Measured again, {best.name} is no faster; so nothing is proved.")
        ctx.exit(1)
    click.echo(f"Measured again in {_N_CONFIRMING} fresh launches: {_gain(compared[0][1])}")
    click.echo("\nTo use it:")
    for line in study.lines(best):
        click.echo(f"  {line}")


def _measure(ctx: click.Context, suite: Any, given: dict[str, Any]) -> Run:
    """Measure a suite, write its report, and return the run."""
    from commbench.cli import run_command

    ctx.obj = run_command.Call(sys.argv[1:], threading.Event())
    status = run_command.start(suite, {**_DEFAULTS, **given})
    if ctx.obj.run is None or status == interrupts.STATUS:
        ctx.exit(status)
    click.echo(ctx.obj.run.path, err=True)
    result: Run = ctx.obj.run
    return result


def _print_results(run: Run, proof: Proof) -> None:
    from commbench.studies import prove as study

    click.echo(f"{proof.present.workload} over {proof.present.backend}, as it is, and with:")
    compared = study.results(run, proof)
    if not compared:
        raise UsageError(f"no launch ended well; see {run.path}")
    for trial, c in compared:
        effect = trial.finding.effect
        predicted = f"; predicted {effect}" if effect.is_known else ""
        click.echo(f"  {trial.name}: {_gain(c)}{predicted}")


def _gain(c: Any) -> str:
    if c.verdict not in ("faster", "slower"):
        return {"same": "the same", "unequal": "other bytes"}.get(c.verdict, "no difference shown")
    less = 1 - c.ratio
    low, high = sorted((1 - c.ci_low, 1 - c.ci_high), key=abs)
    word = "less" if less > 0 else "more"
    return f"{abs(less):.0%} {word} time ({abs(low):.0%} to {abs(high):.0%})"

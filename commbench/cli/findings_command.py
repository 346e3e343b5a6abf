"""``diagnose`` and ``prove``: what slows a run down, and the proof of what helps."""

from __future__ import annotations

import math
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commbench import load
from commbench.cli.results import FORM, PATH
from commbench.errors import UnknownNameError, UsageError
from commbench.harness import interrupts, options
from commbench.harness.options import RUN
from commbench.model import Stopping, registry

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.model import Comparison, Suite
    from commbench.studies.prove import Proof, Trial

FAILED = 3
"""The exit status of a finding that is to fail."""


@click.command()
@click.argument("run", type=RUN, metavar="RUN|SCRIPT.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@FORM
@click.option("--output", type=PATH, default=Path("results"), show_default=True,
              help="Parent folder of the directory of a script's record.")  # fmt: skip
@click.option(
    "--fail-on", type=options.NAMES, metavar="RULES",
    help="End with status 3 if one of these rules has a finding, as spilling,gil; with any, if a "
    "finding says that something is wrong.",
)  # fmt: skip
@click.pass_context
def diagnose(
    ctx: click.Context, run: Path, arguments: tuple[str, ...], form: str, output: Path,
    fail_on: tuple[str, ...] | None,
) -> None:  # fmt: skip
    """Say what slows RUN down, by how much, why, and what helps.

    RUN is the directory of a run, or `latest`; or a script, which is profiled first with the
    ARGUMENTS.
    """
    from commbench.analysis import findings, warnings
    from commbench.cli.profile_command import record
    from commbench.reports import json, sentences, terminal
    from commbench.reports.sections import heading
    from commbench.reports.sections.provenance import failures_opening

    known = [*registry.names("rule"), "any"]
    for name in fail_on or ():
        if name not in known:
            raise UnknownNameError("rule", name, known)
        if name != "any":
            registry.load("rule", name)
    status = 0
    if run.suffix == ".py":
        with _stdout_as_stderr() if form == "json" else nullcontext():
            run, status = record(ctx, run, arguments, output, may_lack_client=False)
    elif arguments:
        raise UsageError(f"{run} is no script, and takes no arguments: {' '.join(arguments)}")
    data = load(run)
    if form == "json":
        click.echo(json.dumps(json.findings(data)), nl=False)
    else:
        lacking = findings.without_profile(data)
        nothing = f"No rule{' that could be applied' * bool(lacking)} has a finding."
        if data.measured.empty:
            path = shlex.quote(str(data.path))
            nothing = f"Nothing was measured; commbench report {path} says why."
        parts = [*sentences.details(data)] or [nothing]
        notes = [
            *warnings.guarded(warnings.unobserved, data), *warnings.guarded(warnings.raised, data),
            *failures_opening(data), *data.rule_problems,
        ]  # fmt: skip
        for why in dict.fromkeys(lacking.values()):
            names = ", ".join(data.case_names[each] for each in lacking if lacking[each] == why)
            notes.append(f"most rules were not applied to {names}: {why}")
        click.echo(terminal.page(heading(data), notes, parts), nl=False)
    failing = [
        finding.rule for finding in data.findings
        if fail_on and (finding.rule in fail_on or ("any" in fail_on and not finding.is_fine))
    ]  # fmt: skip
    if failing:
        click.echo(f"findings of: {', '.join(dict.fromkeys(failing))}", err=True)
    if blind := [*_unapplied(data, () if "any" in fail_on else fail_on)] if fail_on else []:
        click.echo("; ".join(blind), err=True)
    ctx.exit(status or FAILED * bool(failing) or int(bool(blind)))


def _unapplied(data: Run, names: tuple[str, ...]) -> Iterator[str]:
    """Yield to which cases rules could not be applied, of those with `names` or all.

    Regions with others in them are left out: rules are applied to the inner ones.
    """
    from commbench import stats
    from commbench.analysis import findings

    yield from data.rule_problems
    if unapplied := findings.unapplied(data, names):
        lacks = "measurements" if data.measured.empty else "times of threads"
        yield f"not applied: {', '.join(unapplied)}; the run has no {lacks}"
        return
    rules = registry.loadable("rule")
    measured = {*data.measured["case_id"]}
    lacking = {case.id: "measurements" for case in data.suite.cases if case.id not in measured}
    if any(rules[name].needs_profile for name in names or rules):
        outer = {*stats.outer_regions(data)["case_id"]}
        timeless = findings.without_profile(data).keys() - outer
        lacking |= {name: "times of threads" for name in data.cases if name in timeless}
    for case_id, what in lacking.items():
        yield f"not applied to {data.case_names[case_id]}, which has no {what}"


@click.command(
    params=[
        click.Argument(["run"], type=RUN),
        click.Option(["--backend"], default="", help="The backend of the case; by default that "
                     "with the largest effect."),
        click.Option(["--trials"], type=options.POSITIVE, default=options.MAX_REMEDIES,
                     show_default=True, help="The maximum number of remedies."),
        *options.design_options("Fresh clusters per remedy.", "Deadline of one launch."),
        click.Option(["--output"], type=PATH, default=Path("results"), metavar="DIR",
                     show_default=True, help="Parent folder of the runs' directories."),
        options.verbosity_options()[1],
    ],
)  # fmt: skip
@click.pass_context
def prove(ctx: click.Context, /, run: Path, backend: str, trials: int, **given: Any) -> None:
    """Measure whether the remedies that RUN suggests help.

    The present state and each remedy are measured in turns, in fresh clusters, by default for five
    minutes, or longer if six launches of each take longer. If none helps, undecided ones are then
    measured again, twice as long. The best one is measured once more, and its settings are printed
    if it is faster again.
    """
    from commbench.analysis.comparability import environments
    from commbench.machine import environment
    from commbench.reports.opening import proof_s
    from commbench.studies import budget
    from commbench.studies import prove as study

    data = load(run)
    proof = study.plan(data, trials, backend)
    if differences := [*environments(data.manifest.environment, environment.collect())]:
        named = "; ".join(map(str, differences[:3])) + "; …" * (len(differences) > 3)
        click.echo(
            f"{run} was measured in another environment, so its predictions are left out: {named}",
            err=True,
        )
    by_default = options.stopping(given) is None and given["launches"] is None
    if by_default:
        case_id = proof.trials[0].finding.case_id
        given["budget"] = proof_s(data, case_id, len(proof.suite.cases))
    measured = _measure(ctx, data, _with(proof.suite, given), given)
    compared = study.results(measured, proof)
    click.echo(f"{proof.present.workload} over {proof.present.backend}, as it is, and with:")
    missing = _show(proof, compared, measured, predicts=not differences)
    best = study.winner(compared)
    open_ = [(trial, c) for trial, c in compared if study.may_help(c)]
    if by_default and open_ and best is None:
        given["budget"] *= 2
        left = replace(proof, trials=tuple(trial for trial, _ in open_))
        minutes = math.ceil(given["budget"] / 60)
        click.echo(
            f"None has helped yet. The undecided ones are measured again, for about {minutes} min:"
        )
        # Launches added to those that decided nothing would be tested once too often.
        measured = _measure(ctx, data, _with(left.suite, given), given)
        repeated = study.results(measured, left)
        missing |= _show(left, repeated, measured, predicts=not differences)
        compared = [*repeated, *(pair for pair in compared if pair not in open_)]
        best = study.winner(repeated)
    if best is None:
        unequal = ", ".join(trial.name for trial, c in compared if c.verdict == "unequal")
        undecided = ", ".join(trial.name for trial, c in compared if study.may_help(c))
        if unequal:
            by_dask = proof.present.cluster.task_placement != "pinned"
            click.echo(
                f"Not comparable: {unequal}"
                + ", because Dask placed tasks otherwise; measure with --task-placement pinned, "
                "and prove that run" * by_dask + "."
            )
        if undecided:
            if (rule := options.stopping(given)) is None:
                more = f"--launches {3 * given['launches']}"
            else:
                more = f"--budget {math.ceil(3 * rule.budget_s / 60)}m"
                more += f" --detect {100 * rule.detect:g}%" * (rule.detect != Stopping.detect)
            click.echo(f"Undecided: {undecided}. More launches may decide: {more}")
        if not (unequal or undecided or missing):
            least = compared[0][1].min_effect
            click.echo(f"None of these remedies helps here: each saves less than {least:.0%}.")
        ctx.exit(1 if missing or unequal else 0)
    # The launches by which it was chosen flatter it.
    fixed = {**given, "budget": None, "detect": None, "rigorous": False}
    fixed["launches"] = next(study.n_confirming(c) for trial, c in compared if trial is best)
    both = replace(proof, trials=(best,)).suite
    if iterations := budget.last_iterations(measured):
        both = replace(both, cases=tuple(replace(c, iterations=iterations) for c in both.cases))
    again = _measure(ctx, data, _with(both, fixed), fixed)
    rule = measured.manifest.stopping
    confirmed = study.results(again, proof, rule.detect if rule else None)
    if study.winner(confirmed) is None:
        said = _gain(confirmed[0][1]) if confirmed else "no launch ended well"
        click.echo(f"Not confirmed: measured again, {best.name} has: {said}; see {again.path}")
        ctx.exit(1)
    click.echo(
        f"Confirmed in {confirmed[0][1].n_launches} fresh launches: {best.name}: "
        f"{_gain(confirmed[0][1])}"
    )
    click.echo("\nTo use it:")
    for line in study.lines(best):
        click.echo(f"  {line}")


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Send what a script, its workers and other children print to the standard error."""
    printed = sys.stdout
    printed.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        printed.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _show(
    proof: Proof, compared: Sequence[tuple[Trial, Comparison]], run: Run, *, predicts: bool
) -> bool:
    """Print what each remedy of `proof` saved in `run`; return whether one was not compared."""
    for trial, c in compared:
        effect = trial.finding.effect
        predicted = f"; predicted {effect}" if effect.is_known and predicts else ""
        click.echo(f"  {trial.name}: {_gain(c)}{predicted}")
    missing = [trial for trial in proof.trials if trial not in [each for each, _ in compared]]
    for trial in missing:
        click.echo(f"  {trial.name}: could not be compared; see {run.path}")
    return bool(missing)


def _with(suite: Suite, given: dict[str, Any]) -> Suite:
    """Return `suite` with the launches and the deadline that are given."""
    from commbench.harness.cases import validate_replication

    chosen = {"launches": given["launches"], "timeout_s": given["timeout"]}
    fields = {name: value for name, value in chosen.items() if value is not None}
    for case in suite.cases:
        validate_replication({"timeout_s": case.timeout_s, **fields}, case.cluster)
    return replace(suite, cases=tuple(replace(case, **fields) for case in suite.cases))


def _measure(ctx: click.Context, data: Run, suite: Suite, given: dict[str, Any]) -> Run:
    """Measure a suite as `data` was measured, write its report, and return the run."""
    from commbench.cli import run_command

    old = data.manifest
    ctx.obj = run_command.Call(["prove", str(data.path)], threading.Event())
    least = {"min_transfer": old.min_transfer_bytes, "min_batch": old.min_batch_bytes}
    status = run_command.start(suite, {**least, **given})
    if ctx.obj.run is None or status == interrupts.STATUS:
        path = shlex.quote(str(data.path))
        click.echo(f"or begin the proof again: commbench prove {path}", err=True)
        ctx.exit(status)
    click.echo(ctx.obj.run.path, err=True)
    result: Run = ctx.obj.run
    return result


def _gain(c: Comparison) -> str:
    from commbench.studies.prove import may_help

    if c.verdict in ("faster", "slower"):
        less = 1 - c.ratio
        low, high = sorted((1 - c.ci_low, 1 - c.ci_high), key=abs)
        word = "less" if less > 0 else "more"
        return f"{abs(less):.0%} {word} time ({abs(low):.0%} to {abs(high):.0%})"
    if c.verdict != "inconclusive":
        return {"same": "the same", "unequal": "it did other work"}[c.verdict]
    most = 1 - c.same_low
    if not may_help(c):
        return f"saves at most {max(0.0, most):.0%}"
    # Few launches have no interval.
    return f"undecided after {c.n_launches} launches" + f": may save up to {most:.0%}" * (most < 1)

"""``compare`` and ``check``: the commands whose exit status 3 tells a regression."""

from __future__ import annotations

from pathlib import Path

import click

from commbench import options
from commbench.errors import IncomparableError, UnwritableError, UsageError

REGRESSION = 3
_RUN = click.Path(path_type=Path)


@click.command()
@click.argument("baseline", metavar="RUN_A", type=_RUN)
@click.argument("candidate", metavar="RUN_B", type=_RUN)
@click.option(
    "--min-effect", type=options.SHARE,
    help="A difference below this share is none, however sure.  [default: 5%]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compare runs that differ in more than their times.")
@click.option(
    "--format", "form", type=click.Choice(["terminal", "json"]), default="terminal",
    show_default=True,
)  # fmt: skip
@click.pass_context
def compare(
    ctx: click.Context, baseline: Path, candidate: Path, min_effect: float | None, force: bool,
    form: str,
) -> None:  # fmt: skip
    """Compare RUN_B with RUN_A, case by case; exit status 3 where one is slower."""
    from commbench import comparability, load, stats
    from commbench.reports import between_runs

    if min_effect is None:
        min_effect = stats.MIN_EFFECT
    if min_effect < 0:
        raise UsageError(f"--min-effect is {min_effect:g}; it must be 0 or more")
    old, new = load(baseline), load(candidate)
    match = comparability.match(old.run, new.run)
    if match.differences and not force:
        raise IncomparableError(
            f"{old.run.id} and {new.run.id} can't be compared: "
            + "; ".join(map(str, match.differences))
            + ". To compare them all the same: --force"
        )
    found = stats.between(old, new, match.same, min_effect)
    if not found:
        why = "; ".join(match.alone) or "no launch of a case ended well in both"
        raise UsageError(f"{old.run.id} and {new.run.id} have nothing to compare: {why}")
    show = between_runs.as_json if form == "json" else between_runs.text
    click.echo(show(old, new, match, found), nl=False)
    ctx.exit(REGRESSION if stats.regressions(found) else 0)


@click.command()
@click.argument("run", type=_RUN)
@click.option("--reference", type=_RUN, help="The file of references to hold the run against.")
@click.option("--junit", type=_RUN, help="Write the result there as JUnit's XML, too.")
@click.option(
    "--write-reference", type=_RUN,
    help="Write a file of references that expects what the run has measured, within 10 %.",
)  # fmt: skip
@click.pass_context
def check(
    ctx: click.Context, run: Path, reference: Path | None, junit: Path | None,
    write_reference: Path | None,
) -> None:  # fmt: skip
    """Check a RUN against references; exit status 3 where a value is missing or out of bounds."""
    from commbench import load, references, stats
    from commbench.reports import checks

    if (reference is None) == (write_reference is None):
        raise UsageError("give either --reference FILE or --write-reference FILE")
    data = load(run)
    summaries = stats.summaries(data)
    if write_reference is not None:
        if write_reference.exists():
            raise UsageError(f"{write_reference} exists; name another file, or remove it")
        _write(write_reference, references.written(data, summaries))
        click.echo(write_reference)
        return
    assert reference is not None
    found = references.check(data, references.read(reference), summaries)
    if junit is not None:
        _write(junit, checks.junit(data.run, found))
    click.echo(checks.text(data.run, found), nl=False)
    ctx.exit(0 if all(check.ok for check in found) else REGRESSION)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}") from error

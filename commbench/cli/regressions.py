"""``compare``, ``ab`` and ``check``: the commands with exit status 3 for a regression."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commbench import load
from commbench.cli.results import FORM, PATH
from commbench.errors import IncomparableError, UsageError
from commbench.harness.options import COUNT, POSITIVE, RUN, SHARE
from commbench.store import files

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.studies.ab import Block

REGRESSION = 3
_MIN_EFFECT = click.option(
    "--min-effect", type=SHARE,
    help="Ignore differences below this share.  [default: 5%]",
)  # fmt: skip


@click.command()
@click.argument("baseline", metavar="RUN_A", type=RUN)
@click.argument("candidate", metavar="RUN_B", type=RUN)
@_MIN_EFFECT
@click.option(
    "--control", metavar="BACKEND",
    help="Compare multiples of this backend's times, so that a change of the machine cancels.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compare runs that differ in more than their times.")
@FORM
@click.pass_context
def compare(
    ctx: click.Context, baseline: Path, candidate: Path, min_effect: float | None,
    control: str | None, force: bool, form: str,
) -> None:  # fmt: skip
    """Compare RUN_B with RUN_A, case by case; exit status 3 if one is slower."""
    from commbench.analysis import comparability

    effect = _validate_min_effect(min_effect)
    old, new = load(baseline), load(candidate)
    differences = comparability.match(old.manifest, new.manifest).differences
    if differences and not force:
        raise IncomparableError(
            f"{old.manifest.id} and {new.manifest.id} can't be compared: "
            + "; ".join(map(str, differences))
            + ". To compare them all the same: --force"
        )
    ctx.exit(_compare_runs(old, new, effect, form, control=control or ""))


def _validate_min_effect(given: float | None) -> float:
    from commbench import stats

    effect = stats.MIN_EFFECT if given is None else given
    if effect < 0:
        raise UsageError(f"--min-effect is {effect:g}; it must be 0 or more")
    return effect


def _compare_runs(
    old: Run, new: Run, min_effect: float, form: str, *, interleaved: bool = False,
    control: str = "",
) -> int:  # fmt: skip
    """Print the comparison of `new` with `old` and return the exit status."""
    from commbench import stats
    from commbench.analysis import comparability
    from commbench.reports import verdicts

    match = comparability.match(old.manifest, new.manifest)
    comparisons = stats.between(
        old, new, match.same, min_effect, interleaved=interleaved, control=control
    )
    if not comparisons:
        why = "; ".join(match.alone) or "no launch of a case ended well in both"
        raise UsageError(f"{old.manifest.id} and {new.manifest.id} have nothing to compare: {why}")
    show = verdicts.comparison_json if form == "json" else verdicts.comparison_text
    click.echo(show(old, new, match, comparisons, control), nl=False)
    return REGRESSION if stats.regressions(comparisons) else 0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="WORKLOAD|SUITE.toml [RUN OPTIONS]")  # fmt: skip
@click.option("--base", required=True, type=PATH, metavar="PYTHON",
              help="The Python of the environment to compare with.")  # fmt: skip
@click.option("--head", required=True, type=PATH, metavar="PYTHON",
              help="The Python of the environment that may have become slower.")  # fmt: skip
@click.option("--launches", type=POSITIVE, default=10, show_default=True,
              help="Fresh clusters per case and side: as many blocks.")  # fmt: skip
@_MIN_EFFECT
@click.option("--seed", type=COUNT, default=0, show_default=True,
              help="The seed of the data and of the order in each block.")  # fmt: skip
@click.option("--output", type=PATH, default=Path("results"), show_default=True, metavar="DIR",
              help="Parent folder of the directories of the two runs.")  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@FORM
@click.pass_context
def ab(
    ctx: click.Context, arguments: tuple[str, ...], base: Path, head: Path, launches: int,
    min_effect: float | None, seed: int, output: Path, quiet: bool, form: str,
) -> None:  # fmt: skip
    """Measure two environments block by block; exit status 3 if HEAD is slower than BASE.

    The arguments after the options are those of `commbench run` in each environment.
    """
    from contextlib import closing

    from commbench.harness import interrupts
    from commbench.studies import ab as experiments

    effect = _validate_min_effect(min_effect)
    experiment = experiments.Experiment(
        pythons={"base": base, "head": head},
        arguments=experiments.validate_arguments(arguments),
        launches=launches,
        seed=seed,
        output=output,
        command=shlex.join(["commbench", *sys.argv[1:]]),
    )
    runs: dict[str, Path] = {}
    failed = False
    with interrupts.interruptible(), closing(experiments.measure(experiment)) as blocks:
        try:
            for block in blocks:
                runs[block.side] = block.run
                failed = failed or not block.ok
                if not quiet:
                    click.echo(_progress(block, launches), err=True)
        except KeyboardInterrupt:
            interrupts.ignore()
            kept = " and ".join(map(str, runs.values())) or "nothing"
            click.echo(f"interrupted; what was measured is kept: {kept}", err=True)
            ctx.exit(interrupts.STATUS)
    old, new = load(runs["base"]), load(runs["head"])
    _validate_same_cases(old, new)
    status = _compare_runs(old, new, effect, form, interleaved=True)
    for path in (old.path, new.path):
        click.echo(path, err=form == "json")
    ctx.exit(status or (1 if failed else 0))


def _progress(block: Block, launches: int) -> str:
    failed = "" if block.ok else ": a launch FAILED"
    line = f"block {block.number + 1}/{launches} {block.side} {block.seconds:.0f} s{failed}"
    return "\n".join([line, *(f"{block.side}: {note}" for note in block.notes)])


def _validate_same_cases(old: Run, new: Run) -> None:
    from dataclasses import replace

    from commbench.analysis import comparability

    # The environments are what is compared; the cases must be the same.
    same = replace(new.manifest, environment=old.manifest.environment)
    if differences := comparability.match(old.manifest, same).differences:
        raise IncomparableError(
            f"{old.manifest.id} and {new.manifest.id} did not measure the same: "
            + "; ".join(map(str, differences))
            + f". To compare them all the same: commbench compare --force {old.path} {new.path}"
        )


@click.command()
@click.argument("run", type=RUN)
@click.option(
    "--reference", type=PATH, metavar="FILE", help="The file of references to compare with."
)
@click.option(
    "--junit", type=PATH, metavar="FILE", help="Also write the result to this file, as JUnit XML."
)
@click.option(
    "--write-reference", type=PATH, metavar="FILE",
    help="Write a file of references to the values of the run, within 10 %.",
)  # fmt: skip
@click.pass_context
def check(
    ctx: click.Context, run: Path, reference: Path | None, junit: Path | None,
    write_reference: Path | None,
) -> None:  # fmt: skip
    """Compare a RUN with references; exit status 3 if a value is missing or out of bounds."""
    from commbench.analysis import references
    from commbench.reports import verdicts

    if (reference is None) == (write_reference is None):
        raise UsageError("give either --reference FILE or --write-reference FILE")
    data = load(run)
    if write_reference is not None:
        if write_reference.exists():
            raise UsageError(f"{write_reference} exists; name another file, or remove it")
        files.write(write_reference, references.render_references(data))
        click.echo(write_reference)
        return
    assert reference is not None
    checks = references.compare_with_references(data, references.read(reference))
    if junit is not None:
        files.write(junit, verdicts.check_junit(data.manifest, checks))
    click.echo(verdicts.check_text(data.manifest, checks), nl=False)
    ctx.exit(0 if all(check.ok for check in checks) else REGRESSION)

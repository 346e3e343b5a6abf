"""``compare``, ``ab`` and ``check``: the commands that end with 3 for a regression."""

from __future__ import annotations

import math
import os
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import click

from commbench import load
from commbench.cli.main import ARGUMENTS
from commbench.cli.results import PATH, undisturbed
from commbench.errors import ResultsError, UsageError
from commbench.harness.options import COUNT, POSITIVE, RUN, SHARE
from commbench.model.units import format_duration
from commbench.store import files
from commbench.store.directory import runs_in

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.reports.verdicts import ComparedRuns
    from commbench.studies.ab import Block
    from commbench.studies.commits import Environment

REGRESSION, UNDECIDED = 3, 4


def _is_share(_ctx: click.Context, _param: click.Parameter, effect: float) -> float:
    if not 0 <= effect < 1:
        raise UsageError(
            f"--min-effect is {effect:g}; it must be 0 or more and below 1, for example 5%"
        )
    return effect


_MIN_EFFECT = click.option(
    "--min-effect", type=SHARE, default="5%", show_default=True, callback=_is_share,
    help="Ignore measured differences below this share.",
)  # fmt: skip
_ON_UNDECIDED = click.option(
    "--undecided", "on_undecided", type=click.Choice(["pass", "fail"]),
    help="Whether a case that the launches don't decide is exit status 0 or 4.  [default: pass, "
         "but fail if the launches are too few to show any slower case, or runs moved other bytes]",
)  # fmt: skip
_FORM = click.option(
    "--format", "form", type=click.Choice(["terminal", "markdown", "junit", "json"]),
    default="terminal", show_default=True,
)  # fmt: skip


@click.command()
@click.argument("baseline", metavar="RUN_A", type=RUN)
@click.argument("candidate", metavar="RUN_B", type=RUN)
@_MIN_EFFECT
@click.option(
    "--control", metavar="BACKEND",
    help="Compare multiples of this backend's times, so that a change of the machine cancels.",
)  # fmt: skip
@click.option(
    "--history", type=PATH, metavar="DIR",
    help="A folder with runs of three days or more: what differs between them is no difference.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compare runs that differ in more than their times.")
@_ON_UNDECIDED
@_FORM
@click.pass_context
def compare(
    ctx: click.Context, baseline: Path, candidate: Path, min_effect: float,
    control: str | None, history: Path | None, force: bool, on_undecided: str | None, form: str,
) -> None:  # fmt: skip
    """Compare RUN_B with RUN_A, case by case; exit status 3 if one is slower.

    Launches that other processes or the hypervisor disturbed are left out, if enough remain.
    """
    from commbench.analysis import comparability, warnings

    old, new = load(baseline), load(candidate)
    if old.manifest == new.manifest:
        raise UsageError(f"{baseline} and {candidate} are the same run: {old.manifest.id}")
    match = comparability.match(old.manifest, new.manifest)
    if not match.same:
        raise UsageError(
            f"{old.manifest.id} and {new.manifest.id} have no case in common: "
            + "; ".join(match.alone)
        )
    if (differences := match.differences) and not force:
        raise UsageError(
            f"{old.manifest.id} and {new.manifest.id} can't be compared: "
            + "; ".join(map(str, differences))
            + ". To compare them all the same: --force"
        )
    sessions = _sessions(history, old, new, control or "") if history else []
    failed = _has_failed(new, match.same.values())
    first, second = warnings.undisturbed(old, new, same=match.same, control=control or "")
    compared = _compare_runs(
        first.run, second.run, min_effect, control=control or "", history=sessions,
        on_undecided=on_undecided, disturbed=(first.notes, second.notes), failed=failed,
    )  # fmt: skip
    ctx.exit(_show(compared, form))


def _has_failed(run: Run, case_ids: Collection[str]) -> bool:
    """Return whether a launch of these cases failed, and resuming the run has not replaced it."""
    ends = run.ends[run.ends["case_id"].isin(case_ids)]
    ok = ends["ok"].astype(bool)
    if run.manifest.stopping is not None:
        return not ok.groupby([ends["case_id"], ends["block"]]).any().all()
    # The replacements have other blocks.
    n_good = ends["case_id"][ok].value_counts()
    return any(n_good.get(i, 0) < run.cases[i].launches for i in ends["case_id"][~ok])


def _sessions(folder: Path, old: Run, new: Run, control: str) -> list[Run]:
    """Return the runs in `folder` that can be compared with `old`, of other days than `new`."""
    from commbench import stats
    from commbench.analysis import comparability
    from commbench.reports.sections import plural

    runs = []
    for path in [path for path in runs_in(folder) if path.resolve() != new.path.resolve()]:
        try:
            runs.append(load(path))
        except ResultsError as error:
            click.echo(f"Not in the history: {error}", err=True)
    same, day = old.path.resolve(), new.manifest.started_at[:10]
    runs = [r for r in runs if r.path.resolve() == same or r.manifest.started_at[:10] != day]
    matches = [(run, comparability.match(old.manifest, run.manifest)) for run in runs]
    alike = [run for run, match in matches if match.same and not match.differences]
    sessions = [each for run in alike for each in _readable(run, control)]
    n_days = len({run.manifest.started_at[:10] for run in sessions})
    if n_days < stats.MIN_SESSIONS:
        raise UsageError(
            f"{folder} has {len(sessions)} of {len(runs)} runs that can be compared with "
            f"{old.manifest.id}, of {plural(n_days, 'day')}: a history takes "
            f"{stats.MIN_SESSIONS} days, of the same cases on this machine"
        )
    return sessions


def _readable(run: Run, control: str) -> Iterator[Run]:
    """Yield the run without disturbed launches, or say that its records can't be read."""
    from commbench.analysis import warnings
    from commbench.stats.comparison import sides

    try:
        ((session, *_),) = warnings.undisturbed(run, control=control)
        sides(session)
    except ResultsError as error:
        click.echo(f"Not in the history: {error}", err=True)
    else:
        yield session


def _compare_runs(
    old: Run, new: Run, min_effect: float, *, interleaved: bool = False, control: str = "",
    history: Sequence[Run] = (), **options: Any,
) -> ComparedRuns:  # fmt: skip
    from commbench import stats
    from commbench.analysis import comparability
    from commbench.reports.verdicts import ComparedRuns

    match = comparability.match(old.manifest, new.manifest)
    comparisons = stats.between(
        old, new, match.same, min_effect, interleaved=interleaved, control=control,
        history=history,
    )  # fmt: skip
    compared = ComparedRuns(
        baseline=old, candidate=new, match=match, comparisons=comparisons, control=control,
        interleaved=interleaved, **options,
    )  # fmt: skip
    if not (comparisons or compared.lost):
        why = "; ".join(match.alone) or "no launch of a case ended well in both"
        if control:
            why = (
                f"no case can be compared with {control}: a control is a backend of both runs that "
                "took turns with others"
            )
        raise UsageError(f"{old.manifest.id} and {new.manifest.id} have nothing to compare: {why}")
    if history and comparisons:
        without = [c for c in comparisons if math.isnan(c.sessions_ratio)]
        if len(without) == len(comparisons):
            raise UsageError(
                f"no case has {stats.MIN_SESSIONS} days in the history"
                + f" with launches of {control} in the same blocks" * bool(control)
            )
        for name in dict.fromkeys(old.case_names[c.baseline_id] for c in without):
            click.echo(f"not limited by the history, which lacks days of it: {name}", err=True)
    return compared


def _show(compared: ComparedRuns, form: str) -> int:
    """Print the comparison and return the exit status."""
    from commbench.reports import verdicts

    click.echo(verdicts.COMPARISON_FORMATS[form](compared), nl=False)
    if compared.outcome == "slower":
        return REGRESSION
    if compared.failed or compared.lost:
        return 1
    return UNDECIDED if compared.has_failure else 0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="WORKLOAD|SUITE [RUN OPTIONS]")  # fmt: skip
@click.option("--base", required=True, metavar="COMMIT|PYTHON",
              help="What to compare with: a commit, branch or tag of the repository of the current "
                   "folder, or the Python of an environment.")  # fmt: skip
@click.option("--head", default="HEAD", show_default=True, metavar="COMMIT|PYTHON",
              help="What may have become slower.")  # fmt: skip
@click.option("--install", default=".", show_default=True, metavar="ARGUMENTS",
              help="What `pip install` gets, in a worktree of each commit.")  # fmt: skip
@click.option("--launches", type=POSITIVE, default=10, show_default=True,
              help="Fresh clusters per case and side: as many blocks.")  # fmt: skip
@_MIN_EFFECT
@click.option("--seed", type=COUNT, default=0, show_default=True,
              help="The seed of the data and of the order in each block.")  # fmt: skip
@click.option("--output", type=PATH, default=Path("results"), show_default=True, metavar="DIR",
              help="Parent folder of the directories of the two runs.")  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@_ON_UNDECIDED
@_FORM
@click.pass_context
def ab(
    ctx: click.Context, arguments: tuple[str, ...], base: str, head: str, install: str,
    launches: int, min_effect: float, seed: int, output: Path, quiet: bool,
    on_undecided: str | None, form: str,
) -> None:  # fmt: skip
    """Measure two commits or environments in turns; exit status 3 if HEAD is slower than BASE.

    The arguments after the options are those of `commbench run` in each environment.
    """
    from contextlib import closing

    from commbench.harness import interrupts
    from commbench.studies import ab as experiments
    from commbench.studies import commits

    arguments = experiments.validate_arguments(arguments)
    runs: dict[str, Path] = {}
    failed = False
    with interrupts.interruptible():
        try:
            experiment = experiments.Experiment(
                environments=commits.environments(
                    {"base": base, "head": head}, install, _echo_error
                ),
                arguments=arguments,
                launches=launches,
                seed=seed,
                output=output,
                command=shlex.join(["commbench", *ctx.meta[ARGUMENTS]]),
            )
            _warn_if_changed(arguments[0], experiment.environments)
            with closing(experiments.measure(experiment)) as blocks:
                seconds: list[float] = []
                for block in blocks:
                    runs[block.side] = block.run
                    failed = failed or not block.ok
                    seconds.append(block.seconds)
                    if not (quiet and block.ok):
                        left_s = mean(seconds) * (2 * launches - len(seconds))
                        _echo_error(_progress(block, launches, left_s))
        except KeyboardInterrupt:
            interrupts.ignore()
            kept = " and ".join(map(str, runs.values())) or "nothing"
            _echo_error(f"interrupted; what was measured is kept: {kept}")
            if len(runs) == 2:
                _echo_error(f"to compare it: {_forced(runs['base'], runs['head'])}")
            ctx.exit(interrupts.STATUS)
    old, new = load(runs["base"]), load(runs["head"])
    _validate_same_cases(old, new)
    first = [*new.failures["message"], *old.failures["message"]][:1]
    try:
        compared = _compare_runs(
            old, new, min_effect, interleaved=True, on_undecided=on_undecided,
            sides=("base", "head"), failed=failed,
        )  # fmt: skip
    except UsageError as error:
        if not failed:
            raise
        lines = [str(error), *first, str(old.path), str(new.path)]
        raise click.ClickException("\n".join(lines)) from error
    if first and not compared.comparisons:
        _echo_error(*first)
    status = _show(compared, form)
    for path in (old.path, new.path):
        click.echo(path, err=form != "terminal")
    ctx.exit(status)


def _echo_error(line: str) -> None:
    click.echo(line, err=True)


def _warn_if_changed(name: str, environments: Mapping[str, Environment]) -> None:
    """Warn if the commits have different versions of a script or suite, of which one is used."""
    from commbench.studies import commits

    names = [side.commit for side in environments.values()]
    for file in dict.fromkeys([Path(name), *_scripts(Path(name))]):
        if os.path.isfile(file) and all(names) and commits.differs(file, names):
            _echo_error(
                f"warning: {file} differs between the commits, and both sides use the file in the "
                "current folder: what changed in it is not measured"
            )


def _scripts(suite: Path) -> Iterator[Path]:
    """Yield the scripts that a suite file names; none if it can't be read, or is no such file."""
    if suite.suffix != ".toml":
        return
    # The runs say what is wrong with an invalid one.
    with suppress(OSError, ValueError, AttributeError, TypeError):
        for case in tomllib.loads(suite.read_text(encoding="utf-8")).get("case", []):
            if (workload := case.get("workload", "")).endswith(".py"):
                yield suite.parent / os.path.expanduser(workload)


def _progress(block: Block, launches: int, left_s: float) -> str:
    failed = "" if block.ok else ": a launch FAILED"
    left = f", about {format_duration(left_s)} left" if left_s else ""
    line = f"block {block.number + 1}/{launches} {block.side} {block.seconds:.0f} s{left}{failed}"
    return "\n".join([line, *(f"{block.side}: {note}" for note in block.notes)])


def _forced(old: Path, new: Path) -> str:
    """Return the command that compares two runs of different environments."""
    return shlex.join(["commbench", "compare", "--force", str(old), str(new)])


def _validate_same_cases(old: Run, new: Run) -> None:
    from dataclasses import replace

    from commbench.analysis import comparability

    # The environments are what is compared; the cases must be the same.
    same = replace(new.manifest, environment=old.manifest.environment)
    if differences := comparability.match(old.manifest, same).differences:
        raise UsageError(
            f"{old.manifest.id} and {new.manifest.id} did not measure the same: "
            + "; ".join(map(str, differences))
            + ". To compare them all the same: "
            + _forced(old.path, new.path)
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
    help="Write a file of references to the values of the run, with the spread of its launches.",
)  # fmt: skip
@click.option(
    "--undecided", "on_undecided", type=click.Choice(["pass", "fail"]),
    help="Whether a value that can't show a slowdown of 1.5 times is exit status 0 or 4.  "
         "[default: pass, but fail if no value can]",
)  # fmt: skip
@click.pass_context
def check(
    ctx: click.Context, run: Path, reference: Path | None, junit: Path | None,
    write_reference: Path | None, on_undecided: str | None,
) -> None:  # fmt: skip
    """Compare a RUN with references; exit status 3 if a value is missing or out of bounds."""
    from commbench.analysis import references
    from commbench.reports import verdicts

    if (reference is None) == (write_reference is None):
        raise UsageError("give either --reference FILE or --write-reference FILE")
    for name, given in (("--junit", junit), ("--undecided", on_undecided)):
        if given and write_reference:
            raise UsageError(f"{name} is for --reference; leave it out of --write-reference")
    data = undisturbed(load(run))
    if write_reference is not None:
        if os.path.exists(write_reference):
            raise UsageError(f"{write_reference} exists; name another file, or remove it")
        files.write(write_reference, references.render_references(data))
        click.echo(write_reference)
        if doubt := verdicts.undecided(references.repeated(references.read(write_reference))):
            _echo_error(f"warning: {doubt}")
        return
    assert reference is not None
    checks = references.compare_with_references(data, references.read(reference))
    if junit is not None:
        files.write(junit, verdicts.check_junit(data.manifest, checks, on_undecided))
    click.echo(verdicts.check_text(data.manifest, checks), nl=False)
    if not all(check.ok for check in checks):
        ctx.exit(REGRESSION)
    ctx.exit(UNDECIDED if verdicts.undecided_fail(checks, on_undecided) else 0)

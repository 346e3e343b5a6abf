"""``commbench run``: measure a workload or a suite file, and report."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from commbench import load, workloads
from commbench.cli.main import ARGUMENTS
from commbench.errors import CommbenchError, UnknownNameError, UnwritableError, UsageError
from commbench.harness import interrupts, options
from commbench.model import Launch, Manifest, Suite, registry

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.store.directory import RunStore


@dataclass
class Call:
    """A call of the command by ``commbench.run``; it is the ``obj`` of click's context."""

    arguments: Sequence[str]
    cancelled: threading.Event
    run: Run | None = None
    """The result."""


def _call() -> Call | None:
    call: Call | None = click.get_current_context().obj
    return call


class _RunGroup(click.Group):
    """The group ``run``, with a command for every workload, suite and file of a user's code."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*registry.names("workload"), *registry.suites()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, those that can't be imported with the reason."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        rows = []
        for name in names:
            try:
                command = self.get_command(ctx, name)
                rows.append((name, command.get_short_help_str(limit) if command else ""))
            except CommbenchError as error:
                rows.append((name, str(error)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return self._command(ctx, cmd_name)
        except CommbenchError:
            if ctx.resilient_parsing:
                return None
            raise

    def _command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from commbench.workloads import user_code

        if cmd_name.endswith(".toml"):
            return _suite_command(cmd_name, Path(cmd_name))
        if cmd_name in registry.names("workload"):
            return _workload_command(cmd_name)
        if path := registry.suites().get(cmd_name):
            return _suite_command(cmd_name, path)
        if user_code.is_named_by(cmd_name):
            return _workload_command(user_code.normalize(cmd_name))
        raise UnknownNameError("workload or suite", cmd_name, self.list_commands(ctx))


@click.group(
    cls=_RunGroup,
    invoke_without_command=True,
    subcommand_metavar="WORKLOAD|SUITE|SUITE.toml|SCRIPT.py|MODULE:FUNCTION [OPTIONS]",
    params=[
        click.Option(
            ["--resume"], type=options.RUN, metavar="RUN",
            help="Continue an interrupted run, or one that is to have more launches; the other "
            "options are for that.",
        ),
        *options.design_options(
            "Fresh clusters per backend, at least as many as there are, of a run without a budget.",
            "Deadline of one launch.",
        ),
        *options.verbosity_options(),
    ],
)  # fmt: skip
@click.pass_context
def run(ctx: click.Context, /, **given: Any) -> None:
    """Measure a workload, a suite or your code, and report.

    The name is that of a workload or of a suite that comes with commbench, or else a file: a suite
    (SUITE.toml) or a script with a function main(client) (SCRIPT.py), or a function of a module
    (MODULE:FUNCTION). `run NAME --help` shows its options.
    """
    source = click.core.ParameterSource.COMMANDLINE
    explicit = {n: v for n, v in ctx.params.items() if ctx.get_parameter_source(n) is source}
    if ctx.invoked_subcommand is None:
        if given["resume"] is None:
            raise click.UsageError("name a workload, a suite file or a run to --resume", ctx)
        ctx.exit(_resume(explicit))
    elif explicit:
        if given["resume"]:
            raise click.UsageError("a run goes on with its workload: name none with --resume", ctx)
        names = ", ".join(f"--{name}" for name in explicit)
        raise click.UsageError(f"write {names} after {ctx.invoked_subcommand}", ctx)


def _workload_command(name: str) -> click.Command:
    kind = workloads.load(name)

    @click.pass_context
    def callback(ctx: click.Context, /, **given: Any) -> None:
        ctx.exit(measure_workload(name, given))

    return options.Command(name, options.groups(kind), callback=callback, help=kind.summary)


def measure_workload(name: str, given: dict[str, Any]) -> int:
    """Measure a workload with the options that were `given`; return the exit status."""
    from commbench.harness import suite
    from commbench.harness.cases import make_suite

    kind = workloads.load(name)
    keys = [field.name for field in fields(kind.Params)]
    params = dict(kind.quick) if given["quick"] else {}
    params |= {key: given[key] for key in keys if given.get(key) is not None}
    cases = suite.varied_cases(
        name,
        given["backends"] or ("tcp",),
        params,
        options.cluster(given, kind),
        given["vary"],
        lambda spec: suite.choose_placement(given.get("placement") or "none", spec),
        **options.replication(given),
    )
    made = make_suite(name.removesuffix(".py"), cases)
    return start(made, given, can_choose=options.can_choose(kind))


def _suite_command(name: str, path: Path) -> click.Command:
    @click.pass_context
    def callback(ctx: click.Context, /, **given: Any) -> None:
        from commbench.harness import suite

        overrides = {
            **options.replication(given),
            "backends": given["backends"],
            "vary": given["vary"],
            "scale": given["scale"],
            "placement": given["placement"],
            "cluster": options.overrides(given),
        }
        ctx.exit(start(suite.read_suite(path, overrides), given))

    return options.Command(name, options.groups(), callback=callback, help=f"Run the suite {name}.")


def start(suite: Suite, given: dict[str, Any], *, can_choose: bool = False) -> int:
    """Run all launches of `suite` and return the exit status.

    Parameters
    ----------
    can_choose
        Whether a budget may choose the launches if no option fixes them.
    """
    from datetime import UTC, datetime

    from commbench.harness import preflight
    from commbench.harness.cases import plan
    from commbench.harness.suite import read_racks
    from commbench.machine import environment
    from commbench.store import directory
    from commbench.studies import budget
    from commbench.workloads import user_code

    call = _call()
    arguments = call.arguments if call else click.get_current_context().meta[ARGUMENTS]
    options.validate_verbosity(given)
    seed = suite.cases[0].seed
    if given.get("dry_run"):
        _print_scripts(plan(suite, seed), given["output"])
        return 0
    suite = options.available(suite, skip=given.get("skip_unavailable"))
    if can_choose and options.is_open(given) and preflight.can_choose(suite.cases):
        given = {**given, "budget": preflight.default_budget_s(suite.cases)}
    stopping = options.stopping(given)
    racks = read_racks(given["racks"]) if given.get("racks") else {}
    if stopping is not None:
        suite = budget.pilot(suite)
        # A user's code has one size.
        small = any(workloads.load(case.workload).quick for case in suite.cases)
        stopping = replace(stopping, quick=stopping.quick and small)
    if not given["quiet"]:
        for line in preflight.describe(suite, stopping):
            click.echo(line, err=True)
    described = Manifest(
        id=directory.new_run_id(suite.name, given["output"]),
        suite=suite,
        environment=environment.collect(),
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        min_transfer_bytes=given["min_transfer"],
        min_batch_bytes=given["min_batch"],
        command=shlex.join(["commbench", *map(user_code.normalize, arguments)]),
        stopping=stopping,
        racks=racks,
        expected_Bps=dict(given.get("expect") or ()),
    )
    with closing(directory.RunStore.create(given["output"], described)) as store:
        return _execute(store, plan(suite, seed), given)


def _resume(given: dict[str, Any]) -> int:
    """Run the missing launches of the run ``given["resume"]`` and return the exit status."""
    from commbench.store.directory import RunStore

    options.validate_verbosity(given)
    # What is missing is read when no other process measures the run.
    with closing(RunStore.reopen(given["resume"], to_measure=True)) as store:
        launches = _missing(store, given)
        # A new run has spent nothing, and pandas takes long to import.
        has_budget = store.manifest.stopping is not None
        spent_s = float(load(store.path).ends["seconds"].sum()) if has_budget else 0.0
        return _execute(store, launches, given, spent_s)


def _missing(store: RunStore, given: dict[str, Any]) -> list[Launch]:
    """Return the missing launches of a run, and write the options `given` into its manifest."""
    from commbench.analysis.comparability import commits, environments
    from commbench.harness.cases import plan
    from commbench.machine import environment
    from commbench.stats.selection import good_launches
    from commbench.studies import budget

    path = store.path
    data = load(path)
    if data.is_user_code:
        raise UsageError(
            f"{path} is the record of a script or a region of code, which can't be continued; "
            "profile it again"
        )
    if data.manifest.side:
        raise UsageError(
            f"{path} is the {data.manifest.side} of an A/B, whose sides were measured in turns, "
            f"each in another environment; measure both again: {data.manifest.command}"
        )
    began, here = data.manifest.environment, environment.collect()
    if differences := [*environments(began, here), *commits(began, here)]:
        raise UsageError(
            f"{path} began in another environment: {'; '.join(map(str, differences[:4]))}"
            + f"; and {len(differences) - 4} more" * (len(differences) > 4)
            + ". Its launches and new ones would not be comparable: go on where it began, or "
            "begin a new run"
        )
    # Read all files now, so that an unreadable one is reported before measuring.
    _ = data.frames
    manifest = options.resumed(data.manifest, given)
    done = {case_id: len(launches) for case_id, launches in good_launches(data).items()}
    suite = options.available(manifest.suite, skip=None)
    if manifest.stopping is not None:
        # Failed launches are repeated in the last block only, so that blocks stay complete.
        ends = data.ends[data.ends["ok"] | (data.ends["block"] < data.ends["block"].max())]
        done = ends.groupby("case_id")["block"].nunique().to_dict()
        suite = budget.pilot(suite, done)
        manifest = replace(manifest, suite=budget.pilot(manifest.suite))
    store.update(manifest)
    begun, (n_blocks, behind) = data.launches_begun(), data.last_block()
    return plan(suite, manifest.seed, done=done, begun=begun, n_blocks=n_blocks, behind=behind)


def _execute(
    store: RunStore, launches: Sequence[Launch], given: dict[str, Any], spent_s: float = 0.0
) -> int:
    """Measure `launches`, store their records, and report; return the exit status."""
    from commbench.cli import progress
    from commbench.workloads.user_code import AB

    quiet, call = bool(given.get("quiet")), _call()
    interrupted = failed = False
    try:
        failed, interrupted = _measure(store, launches, spent_s, quiet=quiet)
        with progress.working("writing the report and its figures", quiet=quiet):
            store.finish()
            run = load(store.path)
            write_report(store, run)
            text = registry.load("report", "tables" if given.get("verbose") else "terminal")(run)
            if call is not None:
                call.run = run
    except (KeyboardInterrupt, RuntimeError) as error:
        # Before Python 3.12, one in __set_name__, as within an import, raises a RuntimeError.
        if not {KeyboardInterrupt} & {type(error), type(error.__cause__)}:
            raise
        interrupted, text = True, ""
    except UnwritableError as error:
        # A side of an A/B does not go on.
        if AB in os.environ:
            raise
        command = shlex.join(["commbench", "run", "--resume", str(store.path)])
        raise UnwritableError(f"{error}. Make room, then go on with {command}") from error
    if interrupted and call is None:
        # Another Ctrl-C must not suppress the next lines.
        interrupts.ignore()
        # It may have ended their reader, too, as with `2>&1 | tee log`.
        sys.stdout, sys.stderr = map(progress.MaybeRead, (sys.stdout, sys.stderr))
    if interrupted and text and run.ends.empty and run.samples.empty:
        text = ""
    if not quiet and call is None:
        click.echo(text, nl=False)
    if interrupted:
        path = shlex.quote(str(store.path))
        click.echo(f"interrupted; to go on: commbench run --resume {path}", err=True)
    if call is None:
        click.echo(store.path)
    return interrupts.STATUS if interrupted else 1 if failed else 0


def _measure(
    store: RunStore, launches: Sequence[Launch], spent_s: float, *, quiet: bool
) -> tuple[bool, bool]:
    """Measure `launches` and store their records; return if one failed, and if interrupted."""
    from commbench.cli import progress
    from commbench.harness import runner
    from commbench.model.observed import LaunchEnd, Phase
    from commbench.studies import budget

    failed, call = False, _call()
    with (
        interrupts.interruptible(),
        progress.display(store.manifest, launches, quiet=quiet, spent_s=spent_s) as show,
        closing(
            runner.run_plan(
                budget.extend(launches, store.manifest, lambda: load(store.path), show), store.path
            )
        ) as records,
    ):
        try:
            for record in records:
                if record is not None and not isinstance(record, Phase):
                    store.append(record)
                show(record)
                failed = failed or (isinstance(record, LaunchEnd) and not record.ok)
                if call is not None and call.cancelled.is_set():
                    return failed, True
        except KeyboardInterrupt:
            return failed, True
    return failed, False


def write_report(store: RunStore, run: Run) -> None:
    """Write the figures, ``report.md`` and ``report.html`` next to the records."""
    from commbench.reports.figures import drawn

    figures = []
    for drawing in drawn(run):
        if drawing.problem:
            click.echo(drawing.problem, err=True)
            continue
        store.write(f"figures/{drawing.name}.svg", drawing.svg)
        store.write(f"figures/{drawing.name}.png", drawing.png)
        figures.append(f"![{drawing.name}](figures/{drawing.name}.png)")
    text = registry.load("report", "markdown")(run)
    store.write("report.md", "\n\n".join([text.rstrip(), *figures]) + "\n")
    store.write("report.html", registry.load("report", "html")(run))


def _print_scripts(launches: Sequence[Launch], output: Path) -> None:
    """Print the job script of every case, with a heading on standard error.

    `output` is the parent of the run's directory, which is called ``RUN``. Pairs of processes have
    no job, which is reported if other cases have one.

    Raises
    ------
    UsageError
        If a launcher submits no jobs, or a backend lacks a package that its configuration needs.
    """
    from commbench.backends import parse
    from commbench.harness import runner

    # The scripts of a case differ in the folder of their logs only.
    pairs, jobs = list[Launch](), list[Launch]()
    for launch in (launch for launch in launches if launch.index == 0):
        has_cluster = workloads.load(launch.case.workload).has_cluster
        (jobs if has_cluster else pairs).append(launch)
    for case in (launch.case for launch in pairs if jobs):
        click.echo(f"{case.workload} over {case.variant}: two processes, no job", err=True)
    for launch in jobs or pairs:
        case, cluster = launch.case, launch.case.cluster
        launcher = registry.load("launcher", cluster.launcher)()
        scratch = runner.scratch_folder(launch, output.resolve() / "RUN")
        backend = parse(launch.case.backend)
        try:
            environ = runner.environment(launch, backend, scratch)
        except ImportError as error:
            raise UsageError(f"{case.backend} has no script here: {error}") from error
        preload = workloads.load(case.workload).preload
        script = launcher.script(cluster, backend.protocol, scratch, environ, preload)
        click.echo(f"{case.workload} over {case.variant}, in each of its launches:", err=True)
        click.echo(script, nl=False)

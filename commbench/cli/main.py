"""The command line: the one pipeline, from a suite to a report.

Exit status: 0 good; 1 a launch failed or results can't be written; 2 usage, an unavailable
backend or unreadable results; 3 a comparison or check found a regression; 130 interrupted.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commbench import __version__
from commbench.cli import export as cli_export
from commbench.cli import gates
from commbench.cli import machine as cli_machine
from commbench.cli import model as cli_model
from commbench.cli import report as cli_report
from commbench.errors import CommbenchError, UnwritableError, UsageError
from commbench.harness import interrupts, options
from commbench.model import Launch, Manifest, Suite, registry

if TYPE_CHECKING:
    from commbench.store.directory import RunStore


class _Complaint(click.ClickException):
    """What the caller can put right, as one message."""

    exit_code = 2


class _Unwritten(click.ClickException):
    """What the disk didn't take, as one message."""

    exit_code = 1


def _told(error: CommbenchError) -> click.ClickException:
    kind = _Unwritten if isinstance(error, UnwritableError) else _Complaint
    return kind(str(error))


class _Group(click.Group):
    """A group that shows what commbench raises on purpose as one message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts.none_lost():
                return super().invoke(ctx)
        except CommbenchError as error:
            raise _told(error) from error
        except KeyboardInterrupt:
            interrupts.ignore()
            raise


class _RunGroup(_Group):
    """``run``: every workload and every suite file is a command, with options of its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return registry.names("workload")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        try:
            if cmd_name.endswith(".toml"):
                return _suite_command(Path(cmd_name))
            return _workload_command(cmd_name)
        except UsageError as error:
            raise _told(error) from error


@click.group("commbench", cls=_Group)
@click.version_option(__version__, prog_name="commbench")
def main() -> None:
    """Benchmark and profile communication in Dask, per pair of workers, with evidence."""


@main.group(
    cls=_RunGroup,
    invoke_without_command=True,
    subcommand_metavar="WORKLOAD|SUITE.toml [OPTIONS]",
)
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with an interrupted run.")
@click.pass_context
def run(ctx: click.Context, resume: Path | None) -> None:
    """Measure a workload or a suite and report; `run WORKLOAD --help` shows its options."""
    if ctx.invoked_subcommand is None:
        if resume is None:
            raise click.UsageError("name a workload, a suite file or a run to --resume", ctx)
        ctx.exit(_resume(resume))


def _workload_command(name: str) -> click.Command:
    kind = registry.load("workload", name)

    @click.pass_context
    def callback(ctx: click.Context, /, **given: Any) -> None:
        from commbench.harness import suite

        params = {key: given[key] for key in options.names(kind.Params) if given[key] is not None}
        cases = suite.cases_for(
            name,
            given["backends"] or ("tcp",),
            params,
            options.cluster(given),
            **options.replication(given),
        )
        ctx.exit(_start(suite.suite_of(name, cases), given))

    params = [
        *options.of_params(kind.Params),
        *options.of_workload(kind),
        *options.run_options(),
    ]
    return click.Command(name, callback=callback, params=params, help=kind.summary)


def _suite_command(path: Path) -> click.Command:
    @click.pass_context
    def callback(ctx: click.Context, /, **given: Any) -> None:
        from commbench.harness import suite

        overrides = {
            **options.replication(given),
            "backends": given["backends"],
            "scale": given["scale"],
            "placement": given["placement"],
            "cluster": options.overrides(given),
        }
        ctx.exit(_start(suite.read_suite(path, overrides), given))

    params = [*options.of_suite(), *options.run_options()]
    return click.Command(str(path), callback=callback, params=params, help=f"Run the suite {path}.")


def _start(suite: Suite, given: dict[str, Any]) -> int:
    """Run `suite` from its beginning and return the exit status."""
    from datetime import UTC, datetime

    from commbench.cli import dry_run
    from commbench.harness import suite as suites
    from commbench.machine import environment
    from commbench.store import directory
    from commbench.studies import adaptive

    if given["resume"]:
        return _resume(given["resume"])
    if given["dry_run"]:
        dry_run.print_scripts(suites.plan(suite, given["seed"] or 0), given["output"])
        return 0
    suite = options.available(suite, skip=given["skip_unavailable"])
    stopping, seed = options.stopping(given), given["seed"] or 0
    if stopping is not None:
        adaptive.check(stopping, suite)
    described = Manifest(
        id=directory.new_run_id(suite.name, given["output"]),
        suite=suite,
        environment=environment.collect(),
        seed=seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        min_transfer_bytes=given["min_transfer"],
        command=shlex.join(["commbench", *sys.argv[1:]]),
        stopping=stopping,
        racks=options.racks(given["racks"]),
    )
    results = directory.RunStore.create(given["output"], described)
    return _carry_out(results, suites.plan(suite, seed))


def _resume(path: Path) -> int:
    """Run what is missing of the run in `path` and return the exit status."""
    from commbench import load
    from commbench.harness import suite as suites
    from commbench.stats.selection import good_launches
    from commbench.store import directory
    from commbench.studies import adaptive

    data = load(path)
    # A file that can't be read is an error before anything is measured, not afterwards.
    _ = data.frames
    results = directory.RunStore.reopen(path)
    done = {case_id: len(launches) for case_id, launches in good_launches(data).items()}
    suite = options.available(results.manifest.suite, skip=False)
    if results.manifest.stopping is not None:
        suite = adaptive.evened(suite, done)
    missing = suites.plan(suite, results.manifest.seed + len(data.ends), done=done)
    return _carry_out(results, suites.shift(missing, data.launches_begun()))


def _carry_out(results: RunStore, launches: Sequence[Launch]) -> int:
    """Measure, store as it comes, report; return the exit status."""
    from contextlib import closing

    from commbench import load
    from commbench.cli import progress
    from commbench.harness import runner
    from commbench.model import LaunchEnd
    from commbench.studies import adaptive

    failed = interrupted = False
    plan = adaptive.extended(launches, results.manifest, lambda: load(results.path))
    with (
        interrupts.interruptible(),
        progress.shown(results.manifest, len(launches)) as show,
        closing(runner.run_plan(plan, results.path)) as records,
    ):
        try:
            for record in records:
                show(record)
                if record is not None:
                    results.append(record)
                failed = failed or (isinstance(record, LaunchEnd) and not record.ok)
        except KeyboardInterrupt:
            interrupted = True
    results.finish()
    run = load(results.path)
    cli_report.write(results, run)
    click.echo(registry.load("report", "terminal")(run), nl=False)
    if interrupted:
        # Who is impatient would only cut the next lines short.
        interrupts.ignore()
        click.echo(f"interrupted; to go on: commbench run --resume {results.path}", err=True)
    click.echo(results.path)
    return 130 if interrupted else 1 if failed else 0


main.add_command(cli_report.report)
main.add_command(cli_model.model)
main.add_command(cli_export.export)
main.add_command(cli_machine.doctor)
main.add_command(cli_machine.topology)


@main.command("list")
def list_() -> None:
    """List workloads, backends, plots, sections, reports and launchers."""
    from commbench.backends import parse

    click.echo("workloads")
    for name in registry.names("workload"):
        click.echo(f"  {name:16} {registry.load('workload', name).summary}")
    click.echo("backends")
    for name in registry.names("backend"):
        problem = parse(name).unavailable("cpu")
        click.echo(f"  {name:16} {f'unavailable: {problem.reason}' if problem else 'available'}")
    click.echo("  ucx:A+B…         any of tcp, shm, nvlink, ib; `commbench doctor` tells more")
    for kind in ("plot", "section", "report", "launcher"):
        click.echo(f"{kind}s\n  {', '.join(registry.names(kind))}")


main.add_command(gates.compare)
main.add_command(gates.ab)
main.add_command(gates.check)

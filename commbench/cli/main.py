"""The command line: one command for each way from a suite to a report.

Exit status: 0 good; 1 a launch failed or results can't be written; 2 usage, an unavailable
backend or unreadable results; 3 a comparison or check found a regression; 130 interrupted.
"""

from __future__ import annotations

from typing import Any

import click

from commbench import __version__
from commbench.cli import gates, results, run_command, this_machine
from commbench.errors import CommbenchError, UnwritableError
from commbench.harness import interrupts
from commbench.model import registry


class _Complaint(click.ClickException):
    """What the caller can put right, as one message."""

    exit_code = 2


class _Unwritten(click.ClickException):
    """What the disk refused, as one message."""

    exit_code = 1


class _Group(click.Group):
    """A group that shows what commbench raises on purpose as one message."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts.none_lost():
                return super().invoke(ctx)
        except CommbenchError as error:
            kind = _Unwritten if isinstance(error, UnwritableError) else _Complaint
            raise kind(str(error)) from error
        except KeyboardInterrupt:
            interrupts.ignore()
            raise


@click.group("commbench", cls=_Group)
@click.version_option(__version__, prog_name="commbench")
def main() -> None:
    """Benchmark and profile communication in Dask, per pair of workers, with evidence."""


@click.command("list")
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


for _command in (
    run_command.run, results.report, results.export, results.model,
    gates.compare, gates.ab, gates.check,
    this_machine.doctor, this_machine.topology, list_,
):  # fmt: skip
    main.add_command(_command)

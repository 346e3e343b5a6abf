"""The command line; ``docs/README.md`` has a table of the exit statuses."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from commbench import __version__
from commbench.errors import (
    CommbenchError,
    LaunchError,
    UnknownNameError,
    UnwritableError,
)
from commbench.harness import interrupts
from commbench.model import registry

if TYPE_CHECKING:
    from commbench.backends.backend import Unavailability

_COMMANDS = {
    "run": "run_command:run",
    "links": "links_command:links",
    "profile": "profile_command:profile",
    "report": "results:report",
    "open": "results:open_",
    "diagnose": "findings_command:diagnose",
    "prove": "findings_command:prove",
    "export": "results:export",
    "model": "results:model",
    "compare": "regressions:compare",
    "check": "regressions:check",
    "ab": "regressions:ab",
    "doctor": "this_machine:doctor",
    "topology": "this_machine:topology",
    "list": "main:list_",
}
"""The commands, each imported when it is called."""
_SHOWING = frozenset({"report", "model", "doctor", "topology", "list"})
"""The commands that only show something, of which nobody has to read all, as with `| head`."""
ARGUMENTS = "commbench.arguments"
"""The key of the arguments in ``ctx.meta``; `sys.argv` has more in ``dask commbench``."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Group(click.Group):
    """A group that imports commands when they are called, and shows errors as one message."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = [*args]
        for name in ("stdout", "stderr"):
            # Python has none where it was closed, as by `>&-`.
            if getattr(sys, name) is None:
                setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        # Errors other than "strict" are the user's choice.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="replace")
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if ctx.resilient_parsing:
                return None
            raise UnknownNameError("command", cmd_name, _COMMANDS)
        self.commands[cmd_name] = resolve_name(f"commbench.cli.{_COMMANDS[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts.none_lost():
                return super().invoke(ctx)
        except CommbenchError as error:
            if isinstance(error, UnwritableError | LaunchError):
                raise click.ClickException(str(error)) from error
            raise click.UsageError(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE and ctx.invoked_subcommand in _SHOWING:
                _discard_output()
                ctx.exit(0)
            # That of a file has its name. Where nobody reads, click ends without a message.
            if error.filename is not None or error.errno not in _FULL:
                raise
            _discard_output()
            raise click.ClickException(f"can't write the output: {error.strerror}") from error
        except KeyboardInterrupt:
            interrupts.ignore()
            click.echo("interrupted", err=True)
            ctx.exit(interrupts.STATUS)


def _discard_output() -> None:
    # What is left in the buffer would be an error again at exit.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    "commbench", cls=_Group, commands=dict.fromkeys(_COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(__version__, prog_name="commbench")
def main() -> None:
    """Benchmark and profile communication in Dask, per pair of workers, with evidence."""


@click.command("list")
def list_() -> None:
    """List workloads, suites, backends, rules, plots, sections, reports and launchers."""
    from commbench.backends import parse

    click.echo("workloads, by what they stress")
    groups: defaultdict[str, list[str]] = defaultdict(list)
    broken = []
    for name in registry.names("workload"):
        try:
            kind = registry.load("workload", name)
            groups[kind.stresses].append(f"  {name:16} {kind.summary}")
        except Exception as error:  # noqa: BLE001 - a plug-in may have any fault
            broken.append(f"  {name:16} unavailable: {getattr(error, 'reason', repr(error))}")
    for group, lines in sorted(groups.items()):
        click.echo("\n".join([f" {group}", *lines]))
    click.echo("\n".join([*broken, "suites", f"  {', '.join(registry.suites())}", "backends"]))
    for name in registry.names("backend"):
        problem: Unavailability | Exception | None
        try:
            backend = parse(name)
            problem, options = backend.unavailable("cpu"), ", ".join(backend.choices)
        except Exception as error:  # noqa: BLE001 - as above
            problem, options = error, ""
        state = f"unavailable: {getattr(problem, 'reason', repr(problem))}"
        click.echo(f"  {name:16} {state if problem else 'available'}")
        if options:
            click.echo(f"  {name + ':A+B…':16} any of {options}; see `commbench doctor`")
    for kind in ("rule", "plot", "section", "report", "launcher"):
        click.echo(f"{kind}s\n  {', '.join(registry.names(kind))}")
        for name, reason in sorted(registry.problems(kind).items()):
            click.echo(f"  {name:16} unavailable: {reason}")

"""``profile``: run a script, and record what its cluster does."""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from commbench import load
from commbench.cli.results import PATH
from commbench.errors import CommbenchError, UsageError
from commbench.harness import interrupts
from commbench.model import registry


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=PATH, metavar="SCRIPT.py")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]")
@click.option("--scheduler-address", default="",
              help="The scheduler for a Client() that is given no address.")  # fmt: skip
@click.option("--output", type=PATH, default=Path("results"), show_default=True,
              help="Parent folder of the run's directory.")  # fmt: skip
@click.option(
    "--anonymize",
    is_flag=True,
    help="Record labels for names of tasks, workers and hosts, addresses and messages.",
)
@click.pass_context
def profile(
    ctx: click.Context, script: Path, arguments: tuple[str, ...], scheduler_address: str,
    output: Path, anonymize: bool,
) -> None:  # fmt: skip
    """Run SCRIPT.py as it is, and report what its Dask cluster does.

    The script makes a Client, which is observed until it is closed. The exit status is that of the
    script.
    """
    from commbench.cli.run_command import write_report
    from commbench.store.directory import RunStore

    path, status = record(ctx, script, arguments, output, scheduler_address, anonymize)
    # What is written has commands with the path, which may have a name of the user.
    with contextlib.chdir(path.parent) if anonymize else contextlib.nullcontext():
        shown = load(path.name) if anonymize else load(path)
        try:
            write_report(RunStore.reopen(path), shown)
        except CommbenchError as error:
            # The script may have filled the disk.
            click.echo(f"Error: {error}", err=True)
    shown.path = path
    click.echo(registry.load("report", "terminal")(shown), nl=False)
    click.echo(path)
    ctx.exit(status)


def record(
    ctx: click.Context, script: Path, arguments: Sequence[str] = (),
    output: Path = Path("results"), scheduler: str = "", anonymize: bool = False, *,
    may_lack_client: bool = True,
) -> tuple[Path, int]:  # fmt: skip
    """Run a script, and return the directory of its record and its exit status.

    A script that exits or fails without a client ends the command with its status; with status 0
    only if it `may_lack_client`.

    Raises
    ------
    UsageError
        If there is no such file, or the script has connected no client.
    """
    from commbench.studies.profile import profile_script

    if str(script).startswith("-"):
        raise UsageError(
            f"profile has no option {script}: it runs a script as it is, whose options follow its "
            "name; commbench run SCRIPT.py compares backends and settings"
        )
    if not os.path.isfile(script):
        raise UsageError(f"there is no file {script}; name a Python script")
    if script.suffix == ".ipynb":
        raise UsageError(
            f"{script} is a notebook; write %load_ext commbench in it, and %%commbench at the top "
            "of the cells to profile"
        )
    with _undone():
        run, error = profile_script(script, arguments, output, scheduler, anonymize)
        status = _report_end(error)
    if run is None:
        message = (
            f"{script} connected no distributed.Client, so there is nothing to report; "
            "it needs one in its main process, as in: with Client() as client: …"
        )
        if _has_main(script):
            message += f"; it has main(client): {shlex.join(['commbench', 'run', str(script)])}"
        # The scheduler's and the workers' processes of dask-mpi end so, for example.
        if isinstance(error, SystemExit) and not status and may_lack_client:
            click.echo(message, err=True)
            ctx.exit(status)
        if status:
            ctx.exit(status)
        raise UsageError(message)
    return run.path, status


def _has_main(script: Path) -> bool:
    """Return whether a script has a function ``main(client)``, which ``commbench run`` calls."""
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        for node in ast.parse(script.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == "main":
                return [each.arg for each in node.args.args][:1] == ["client"]
    return False


_STREAMS: list[Any] = []
"""The streams of scripts."""


@contextlib.contextmanager
def _undone() -> Iterator[None]:
    """Undo what a script leaves of this process: streams, filters of warnings, NumPy's errors."""
    import numpy as np

    streams = sys.stdout, sys.stderr
    with warnings.catch_warnings(), np.errstate():
        try:
            yield
        finally:
            for name, stream in zip(("stdout", "stderr"), streams, strict=True):
                theirs = getattr(sys, name)
                with contextlib.suppress(Exception):
                    theirs.flush()
                # A wrapper that is deleted closes what it wraps.
                _STREAMS.append(theirs)
                with contextlib.suppress(Exception):
                    # It may be closed or detached.
                    stream.flush()
                    setattr(sys, name, stream)


def _report_end(error: BaseException | None) -> int:
    """Print what Python would print at the end of a script, and return its exit status."""
    if isinstance(error, KeyboardInterrupt):
        return interrupts.STATUS
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        click.echo(error.code, err=True)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    return 0 if error is None else 1

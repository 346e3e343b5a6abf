"""``commbench.run`` and ``commbench.run_async``: the command ``run`` as functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commbench import workloads
from commbench.cli import run_command
from commbench.errors import CommbenchError, UsageError
from commbench.harness import interrupts
from commbench.harness.options import groups

if TYPE_CHECKING:
    from commbench.analysis.run import Run


def run(workload: str | Path = "", /, **options: Any) -> Run:
    """Measure a workload or a suite, write its report, and return the run.

    This is the command ``commbench run``, which has the same options: ``--frac-match 0.3`` is
    ``frac_match=0.3``, and ``--backends tcp,mpi`` is ``backends=["tcp", "mpi"]``.

    Parameters
    ----------
    workload
        A workload, a suite or a suite file; empty with ``resume``.
    options
        Those that ``commbench run WORKLOAD --help`` shows. Lists are joined by commas, but options
        that may be repeated, as ``vary``, are given once per item, like mappings. None is left
        out; so is False, but for parameters of the workload. With ``quiet=True`` there is no
        progress.

    Returns
    -------
    Run
        Launches that failed are in its ``failures``.

    Raises
    ------
    UsageError
        If an option is unknown or wrong; nothing has been measured.
    UnavailableError
        The same, if this machine lacks what a backend needs; it has the reason and the remedy.
    KeyboardInterrupt
        If the run was interrupted; ``commbench.run(resume=path)`` continues it.

    Examples
    --------
    >>> run = commbench.run("merge", backends=["tcp", "mpi"], quick=True)  # doctest: +SKIP
    >>> print(run.summary())  # doctest: +SKIP
    """
    return _run(workload, options, threading.Event())


async def run_async(workload: str | Path = "", /, **options: Any) -> Run:
    """Do the same as ``run`` without blocking the event loop; cancellation interrupts the run."""
    cancelled = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(_run, workload, options, cancelled))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([running])
        # The exception is that of the interrupted run.
        running.exception()
        raise


def _run(workload: str | Path, options: Mapping[str, Any], cancelled: threading.Event) -> Run:
    arguments = [*([str(workload)] if workload else []), *_arguments(options, _switches(workload))]
    call = run_command.Call(["run", *arguments], cancelled)
    try:
        with run_command.run.make_context("commbench run", arguments, obj=call) as context:
            run_command.run.invoke(context)
    except click.exceptions.Exit as end:
        # An event loop would end by the exception of a task that was cancelled.
        if end.exit_code == interrupts.STATUS and not cancelled.is_set():
            raise KeyboardInterrupt from None
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
    if call.run is None:
        raise UsageError("commbench.run measures: leave out dry_run and help, which only print")
    return call.run


def _switches(workload: str | Path) -> set[str]:
    """Return the parameters of a workload that are true or false; a suite has none."""
    with suppress(CommbenchError):
        params = fields(workloads.load(str(workload)).Params)
        return {field.name for field in params if isinstance(field.default, bool)}
    return set()


def _arguments(options: Mapping[str, Any], switches: Collection[str] = ()) -> list[str]:
    """Return options as the command line has them; ``switches`` may be off, too.

    Examples
    --------
    >>> _arguments({"backends": ["tcp", "mpi"], "quick": True, "seed": None, "rows": 5})
    ['--backends', 'tcp,mpi', '--quick', '--rows', '5']
    """
    arguments = []
    repeated = {option.name for option in chain(*groups().values()) if option.multiple}
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(option)
        elif value is False and name in switches:
            arguments.append(f"{option}=false")
        elif isinstance(value, Mapping):
            for item in value.items():
                arguments += [option, "=".join(map(str, item))]
        elif isinstance(value, list | tuple) and name in repeated:
            for item in value:
                arguments += [option, str(item)]
        elif isinstance(value, list | tuple):
            arguments += [option, ",".join(map(str, value))]
        elif value is not None and value is not False:
            arguments += [option, str(value)]
    return arguments

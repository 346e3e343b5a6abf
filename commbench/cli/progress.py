"""Progress on standard error, updated only when a record or a tick arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import click

from commbench.model import Failure, LaunchEnd, Manifest, Phase, Record, Sample
from commbench.model.units import format_duration, format_seconds

_Show = Callable[[Record | Phase | str | None], None]
_QUIET_SECONDS = 30.0
"""The time after which the phase of a launch has a separate line."""


@contextmanager
def display(run: Manifest, n_launches: int, *, quiet: bool = False) -> Iterator[_Show]:
    """Yield a function that shows the progress of `run` when called with a record or a message.

    Progress is a bar on a terminal; elsewhere, as in a CI log, a line per launch, and if `quiet`
    only failures. There are `n_launches` to come; if ``run.stopping`` is set, the bar shows the
    share of its budget.
    """
    names = {case.id: f"{case.workload} {case.backend}" for case in run.suite.cases}
    if quiet or not sys.stderr.isatty():
        lines = _Lines(names, n_launches if run.stopping is None else 0)
        yield lines.show_failure if quiet else lines.show
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    rule = run.stopping
    unit = (MofNCompleteColumn(), TextColumn("launches")) if rule is None else ()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *unit,
        TextColumn("{task.fields[left]}"),
    )
    # No auto_refresh, whose thread would disturb measurements.
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    with progress:
        total = n_launches if rule is None else rule.budget_s
        task = progress.add_task("starting", total=total, left="")
        phase, began = "starting", time.monotonic()
        n_ended, spent_s = 0, 0.0

        def show(record: Record | Phase | str | None) -> None:
            nonlocal phase, began, n_ended, spent_s
            if isinstance(record, str):
                progress.console.print(record, highlight=False)
            elif isinstance(record, Failure):
                progress.console.print(f"✗ {names[record.case_id]}: {record.message}", style="red")
            elif isinstance(record, LaunchEnd):
                n_ended, spent_s = n_ended + 1, spent_s + record.seconds
                left = _left(n_launches - n_ended, spent_s / n_ended)
                if rule is not None:
                    left = f"{format_duration(max(0.0, rule.budget_s - spent_s))} left at most"
                progress.advance(task, 1 if rule is None else record.seconds)
                progress.update(task, left=left)
                phase, began = "choosing the next launch", time.monotonic()
            elif isinstance(record, Phase):
                phase, began = f"{names[record.case_id]}: {record.name}", time.monotonic()
            elif record is not None:
                return
            seconds = time.monotonic() - began
            progress.update(task, description=f"{phase} {seconds:.0f} s" if seconds >= 1 else phase)
            progress.refresh()

        yield show


def working(what: str, *, quiet: bool) -> AbstractContextManager[object]:
    """Show `what` on a terminal, with a spinner, until the context ends; elsewhere print it."""
    if quiet:
        return nullcontext()
    if not sys.stderr.isatty():
        click.echo(what, err=True)
        return nullcontext()

    from rich.console import Console

    return Console(stderr=True).status(what)


class _Lines:
    """Progress as lines: of `n_launches`, or of an unknown number if that is 0."""

    def __init__(self, names: dict[str, str], n_launches: int) -> None:
        self._names, self._n_launches = names, n_launches
        self._last: dict[str, float] = {}
        self._n_ended, self._spent_s = 0, 0.0
        self._phase, self._printed = "", time.monotonic()

    def show(self, record: Record | Phase | str | None) -> None:
        """Print a line for what ended, and for a phase that takes long."""
        if isinstance(record, str):
            self._print(record)
        elif isinstance(record, Sample) and record.layer == "workload":
            self._last[record.case_id] = record.seconds
        elif isinstance(record, Phase):
            self._phase = f"{self._names[record.case_id]}: {record.name}"
        elif isinstance(record, LaunchEnd):
            self._print(self._describe(record))
        elif time.monotonic() - self._printed > _QUIET_SECONDS:
            self._print(f"{self._phase} …")
        self.show_failure(record)

    def show_failure(self, record: Record | Phase | str | None) -> None:
        """Print a failure."""
        if isinstance(record, Failure):
            self._print(f"failed: {self._names[record.case_id]}: {record.message}")

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        click.echo(line, err=True)

    def _describe(self, end: LaunchEnd) -> str:
        self._n_ended += 1
        self._spent_s += end.seconds
        total = f"/{self._n_launches}" if self._n_launches else ""
        line = f"[{self._n_ended}{total}] {self._names[end.case_id]}: "
        line += f"{'done' if end.ok else 'FAILED'} in {end.seconds:.1f} s"
        if (seconds := self._last.pop(end.case_id, None)) is not None:
            line += f", last iteration {format_seconds(seconds)}"
        left = _left(self._n_launches - self._n_ended, self._spent_s / self._n_ended)
        return f"{line}, {left}" if left else line


def _left(n_launches: int, seconds: float) -> str:
    """Return how long this number of launches takes; empty if there are none."""
    return f"{format_duration(n_launches * seconds)} left" if n_launches > 0 else ""

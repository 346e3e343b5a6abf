"""Progress on standard error, updated only when a record or a tick arrives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from commbench.model import Failure, LaunchEnd, Manifest, Record, Sample
from commbench.model.units import format_seconds

_Show = Callable[[Record | str | None], None]


@contextmanager
def display(run: Manifest, n_launches: int) -> Iterator[_Show]:
    """Yield a function that shows the progress of `run` when called with a record or a message.

    Progress is a bar on a terminal; elsewhere, as in a CI log, a line per launch. There are
    `n_launches` to come; if ``run.stopping`` is set, the bar shows the share of its budget.
    """
    names = {case.id: f"{case.workload} {case.backend}" for case in run.suite.cases}
    if not sys.stderr.isatty():
        yield _lines(names, f"/{n_launches}" if run.stopping is None else "")
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    rule = run.stopping
    unit = (MofNCompleteColumn(), TextColumn("launches,")) if rule is None else ()
    columns = (
        TextColumn("{task.description}"), BarColumn(), *unit, TimeRemainingColumn(),
        TextColumn("left" if rule is None else "left at the latest"),
    )  # fmt: skip
    # No auto_refresh, whose thread would disturb measurements.
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    with progress:
        task = progress.add_task("starting", total=n_launches if rule is None else rule.budget_s)

        def show(record: Record | str | None) -> None:
            if isinstance(record, str):
                progress.console.print(record, highlight=False)
            elif isinstance(record, Failure):
                progress.console.print(f"✗ {names[record.case_id]}: {record.message}", style="red")
            elif isinstance(record, LaunchEnd):
                progress.advance(task, 1 if rule is None else record.seconds)
            elif isinstance(record, Sample) and record.layer == "workload":
                progress.update(task, description=_describe(names, record))
            elif record is not None:
                return
            progress.refresh()

        yield show


def _lines(names: dict[str, str], total: str) -> _Show:
    n_ended = 0
    last: dict[str, float] = {}

    def show(record: Record | str | None) -> None:
        nonlocal n_ended
        if isinstance(record, str):
            click.echo(record, err=True)
        elif isinstance(record, Sample) and record.layer == "workload":
            last[record.case_id] = record.seconds
        elif isinstance(record, Failure):
            click.echo(f"failed: {names[record.case_id]}: {record.message}", err=True)
        elif isinstance(record, LaunchEnd):
            n_ended += 1
            seconds = last.pop(record.case_id, None)
            sample = f", last iteration {format_seconds(seconds)}" if seconds is not None else ""
            click.echo(
                f"[{n_ended}{total}] {names[record.case_id]}: "
                f"{'done' if record.ok else 'FAILED'} in {record.seconds:.1f} s{sample}",
                err=True,
            )

    return show


def _describe(names: dict[str, str], sample: Sample) -> str:
    kind = "warm-up" if sample.warmup else "iteration"
    return f"{names[sample.case_id]}: {kind} {format_seconds(sample.seconds)}"

"""Progress on standard error, updated only when a record or a tick arrives."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from statistics import mean
from typing import Any

import click

from commbench.harness import preflight
from commbench.model import Launch, Manifest, Suite
from commbench.model.observed import Failure, LaunchEnd, Phase, Record, Sample
from commbench.model.units import format_duration, format_seconds

_Show = Callable[[Record | Phase | str | None], None]
_PHASE_SECONDS, _QUIET_SECONDS = 3.0, 10.0
"""The least time between the lines of two phases, and the most without a line."""


class MaybeRead:
    """A stream that falls silent when nobody reads its pipe or terminal any more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Write `text` and flush it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # What is left in the buffer would be an error again, at the latest at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def _stderr() -> Any:
    return MaybeRead(sys.stderr)


@contextmanager
def display(
    run: Manifest, launches: Iterable[Launch], *, quiet: bool = False, spent_s: float = 0.0
) -> Iterator[_Show]:
    """Yield a function that shows the progress of `run` when called with a record or a message.

    Progress is a bar on a terminal, and in a notebook with ipywidgets; elsewhere, as in a CI log,
    lines on launches and phases, and if `quiet` only failures. `launches` are to come; if
    ``run.stopping`` is set, the bar shows the share of its budget, of which earlier launches have
    spent `spent_s`.
    """
    names = {case.id: f"{case.workload} {case.variant}" for case in run.suite.cases}
    remaining = _Remaining(run.suite, launches)
    n_launches = remaining.n_launches
    if quiet or not (sys.stderr.isatty() or _in_notebook()):
        lines = _Lines(names, remaining if run.stopping is None else None)
        yield lines.show_failure if quiet else lines.show
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.text import Text

    rule = run.stopping
    unit = (MofNCompleteColumn(), TextColumn("launches")) if rule is None else ()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *unit,
        TextColumn("{task.fields[left]}"),
    )
    # No auto_refresh, whose thread would disturb measurements.
    console = Console(file=_stderr())
    progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
    with progress:
        total = n_launches if rule is None else rule.budget_s
        task = progress.add_task("starting", total=total, left="")
        progress.advance(task, spent_s)
        phase, began = "starting", time.monotonic()
        last: dict[str, float] = {}

        def show(record: Record | Phase | str | None) -> None:
            nonlocal phase, began, spent_s
            if isinstance(record, str):
                progress.console.print(Text(record))
            elif isinstance(record, Failure):
                # In brackets Rich would see markup.
                text = Text(f"✗ {names[record.case_id]}: {record.message}", style="red")
                progress.console.print(text)
            elif isinstance(record, LaunchEnd):
                spent_s += record.seconds
                if rule is None:
                    left = remaining.after(record)
                else:
                    # More than the budget is spent only if a verdict needs it.
                    is_over = spent_s >= rule.budget_s
                    total = rule.longest_s if is_over else rule.budget_s
                    progress.update(task, total=total)
                    left = format_duration(max(0.0, total - spent_s))
                    left = f"up to {left} left" if is_over else f"{left} of the budget left"
                if (iteration_s := last.pop(record.case_id, None)) is not None:
                    said = f"{names[record.case_id]} {format_seconds(iteration_s)} an iteration"
                    left = f"{left} · {said}" if left else said
                progress.advance(task, 1 if rule is None else record.seconds)
                progress.update(task, left=left)
                phase, began = "choosing the next launch", time.monotonic()
            elif isinstance(record, Sample) and record.layer == "workload":
                last[record.case_id] = record.seconds
                return
            elif isinstance(record, Phase):
                phase, began = f"{names[record.case_id]}: {record.name}", time.monotonic()
            elif record is not None:
                return
            seconds = time.monotonic() - began
            progress.update(task, description=f"{phase} {seconds:.0f} s" if seconds >= 1 else phase)
            progress.refresh()

        yield show


def _in_notebook() -> bool:
    """Return whether Rich can show a bar in a notebook."""
    # Importing Rich takes long, and IPython is loaded where it runs.
    if "IPython" not in sys.modules or find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console().is_jupyter


def working(what: str, *, quiet: bool) -> AbstractContextManager[object]:
    """Show `what` on a terminal, with a spinner, until the context ends; elsewhere print it."""
    if quiet:
        return nullcontext()
    err = _stderr()
    if not err.isatty():
        click.echo(what, file=err)
        return nullcontext()

    from rich.console import Console

    return Console(file=err).status(what)


class _Lines:
    """Progress as lines; without `remaining`, the number of launches is unknown."""

    def __init__(self, names: dict[str, str], remaining: _Remaining | None) -> None:
        self._names, self._remaining = names, remaining
        self._last: dict[str, float] = {}
        self._n_ended = 0
        self._phase, self._began, self._printed = "", 0.0, -math.inf

    def show(self, record: Record | Phase | str | None) -> None:
        """Print a line for what ended, and for a phase that begins or takes long."""
        limit_s = _QUIET_SECONDS
        if isinstance(record, Phase):
            self._phase, limit_s = f"{self._names[record.case_id]}: {record.name}", _PHASE_SECONDS
            self._began = time.monotonic()
        elif isinstance(record, Sample) and record.layer == "workload":
            self._last[record.case_id] = record.seconds
        if isinstance(record, str):
            self._print(record)
        elif isinstance(record, LaunchEnd):
            self._print(self._describe(record))
        elif time.monotonic() - self._printed >= limit_s:
            seconds = time.monotonic() - self._began
            self._print(f"{self._phase} …" + f" {seconds:.0f} s" * (seconds >= 1))
        self.show_failure(record)

    def show_failure(self, record: Record | Phase | str | None) -> None:
        """Print a failure."""
        if isinstance(record, Failure):
            self._print(f"failed: {self._names[record.case_id]}: {record.message}")

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        click.echo(line, file=_stderr())

    def _describe(self, end: LaunchEnd) -> str:
        self._n_ended += 1
        total = f"/{self._remaining.n_launches}" if self._remaining else ""
        line = f"[{self._n_ended}{total}] {self._names[end.case_id]}: "
        line += f"{'done' if end.ok else 'FAILED'} in {end.seconds:.1f} s"
        if (seconds := self._last.pop(end.case_id, None)) is not None:
            line += f", last iteration {format_seconds(seconds)}"
        left = self._remaining.after(end) if self._remaining else ""
        return f"{line}, {left}" if left else line


class _Remaining:
    """The launches to come, each of which takes as long as those of its case have taken."""

    def __init__(self, suite: Suite, launches: Iterable[Launch]) -> None:
        self._counts = Counter(launch.case.id for launch in launches)
        self.n_launches = self._counts.total()
        self._estimates = {case.id: preflight.launch_seconds(case) for case in suite.cases}
        self._ended: dict[str, list[float]] = {}

    def after(self, end: LaunchEnd) -> str:
        """Return the estimated time left after a launch has ended; empty after the last."""
        self._counts[end.case_id] -= 1
        self._ended.setdefault(end.case_id, []).append(end.seconds)
        known = {case_id: mean(seconds) for case_id, seconds in self._ended.items()}
        # Estimates are rough, but cases that are not known yet differ by their proportions.
        scale = sum(known.values()) / sum(self._estimates[case_id] for case_id in known)
        seconds = sum(
            n * known.get(case_id, scale * self._estimates[case_id])
            for case_id, n in self._counts.items()
        )
        return f"{format_duration(seconds)} left" if self._counts.total() > 0 else ""

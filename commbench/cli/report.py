"""``commbench report``: what a run tells, on the terminal and in the files next to its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commbench.harness import options
from commbench.harness.options import BYTES
from commbench.model import registry

if TYPE_CHECKING:
    from commbench.analysis.run import Run
    from commbench.store.directory import RunStore

_AT_ONCE = 1 << 20
"""Characters that are printed at a time."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", default="terminal", show_default=True, metavar="FORMAT",
    help="terminal, markdown, html, csv, json, junit, osu, pyperf, or what a plugin adds.",
)  # fmt: skip
@click.option(
    "--min-transfer", type=BYTES, help="Count transfers from this size on in pair tables."
)
@click.option(
    "--racks", type=click.Path(path_type=Path), help="Which hosts share a rack, from a file."
)
def report(run: Path, form: str, min_transfer: int | None, racks: Path | None) -> None:
    """Report a RUN again: a run's directory, complete or not."""
    from commbench import load

    render = registry.load("report", form)
    data = load(run)
    if min_transfer is not None:
        data = data.replace(replace(data.manifest, min_transfer_bytes=min_transfer))
    if racks is not None:
        data = data.replace(replace(data.manifest, racks=options.racks(racks)))
    text = render(data)
    # Hundreds of megabytes in one piece would be there once more, encoded.
    for begin in range(0, len(text), _AT_ONCE):
        click.echo(text[begin : begin + _AT_ONCE], nl=False)


def write(results: RunStore, run: Run) -> None:
    """Write the figures, ``report.md`` and ``report.html`` next to the records."""
    from commbench.reports.drawing import drawn

    figures = []
    for drawing in drawn(run):
        if drawing.problem:
            click.echo(drawing.problem, err=True)
            continue
        results.write_figure(drawing.name, {"svg": drawing.svg, "png": drawing.png})
        figures.append(f"![{drawing.name}](figures/{drawing.name}.png)")
    text = registry.load("report", "markdown")(run)
    results.write_text("report.md", "\n\n".join([text.rstrip(), *figures]) + "\n")
    results.write_text("report.html", registry.load("report", "html")(run))

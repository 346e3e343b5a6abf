"""``commbench doctor`` and ``topology``: what this machine can do, and how it is laid out."""

from __future__ import annotations

from pathlib import Path

import click

from commbench.errors import UnwritableError, UsageError


@click.command()
def doctor() -> None:
    """Tell what this machine can measure, why not the rest, and what would disturb it."""
    from rich.console import Console

    from commbench.cli import doctor_report
    from commbench.studies.doctor import examine

    doctor_report.render(examine(), Console())


@click.command()
@click.option(
    "--file", type=click.Path(path_type=Path),
    help="Instead of asking this machine, read what `nvidia-smi topo -m` wrote there.",
)  # fmt: skip
@click.option(
    "--figure", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg|png",
    help="Draw the links.",
)  # fmt: skip
@click.option(
    "--write-placement", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.toml",
    help="Write what `--placement auto` would bind workers to, as a file for `--placement`.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1), help="For so many workers.  [default: one for each GPU]"
)
def topology(
    file: Path | None, figure: Path | None, write_placement: Path | None, workers: int | None
) -> None:
    """Show NUMA nodes, GPUs and NICs, and what joins each pair of them."""
    from commbench.machine import topology as topologies
    from commbench.reports import host_tables, terminal

    form = figure.suffix if figure else ".svg"
    if form not in (".svg", ".png"):
        raise UsageError(f"--figure {figure}: a figure is FILE.svg or FILE.png")
    host = topologies.this_host() if file is None else topologies.read_host(file)
    click.echo(
        terminal.page(host_tables.heading(host), host.notes, host_tables.tables(host)), nl=False
    )
    if write_placement is not None:
        device = "gpu" if host.gpus else "cpu"
        placement = topologies.auto(host, workers or max(1, len(host.gpus)), device)
        _write(write_placement, host_tables.placement_file(placement, host).encode())
    if figure is not None:
        from commbench.reports.figures import host_figure, style

        _write(figure, style.encoded(host_figure.draw(host), form.removeprefix(".")))


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}") from error
    click.echo(f"wrote {path}")

"""``commbench export``: a run as other programs read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from commbench.errors import UnknownNameError, UsageError
from commbench.model import registry

_PATH = click.Path(path_type=Path)
_ASV = "asv"


@click.command()
@click.argument("run", type=_PATH)
@click.option(
    "--to", "form", required=True, metavar="FORMAT",
    help="asv, csv, junit, osu, pyperf, or another format of `commbench report`.",
)  # fmt: skip
@click.option(
    "--output", type=_PATH, metavar="PATH",
    help="The file to write; without it, it is printed. For asv its results_dir.",
)  # fmt: skip
@click.option("--commit", help="asv: the commit that was measured.  [default: the run's]")
@click.option("--machine", help="asv: the machine's name.  [default: the run's host]")
@click.option(
    "--repository", type=_PATH, metavar="DIR",
    help="asv: a checkout of the project.  [default: the current folder]",
)  # fmt: skip
@click.option(
    "--force", is_flag=True, default=None, help="asv: take uncommitted changes for the commit's."
)
def export(run: Path, form: str, output: Path | None, **of_asv: Any) -> None:
    """Write a RUN for another program: a history of asv's, pyperf, OSU's scripts, a CI server."""
    known = [*registry.names("report"), _ASV]
    if form not in known:
        raise UnknownNameError("export format", form, known)
    if form == _ASV:
        _to_asv(run, output, **of_asv)
        return
    given = [f"--{name}" for name, value in of_asv.items() if value is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: only an export --to asv takes that, not {form}")
    _to_text(run, form, output)


def _to_text(run: Path, form: str, output: Path | None) -> None:
    from commbench import load
    from commbench.store import files

    text = registry.load("report", form)(load(run))
    if output is None:
        click.echo(text, nl=False)
    else:
        files.write(output, text)
        click.echo(output)


def _to_asv(
    run: Path, output: Path | None, *, commit: str | None, machine: str | None,
    repository: Path | None, force: bool | None,
) -> None:  # fmt: skip
    from commbench import load
    from commbench.stats.selection import good_launches
    from commbench.studies import asv

    if output is None:
        raise UsageError("give asv's results_dir, as asv.conf.json has it: --output DIR")
    data = load(run)
    written = asv.write(
        data,
        output,
        asv.machine_of(data.manifest, machine, output),
        asv.commit_of(data.manifest, commit, repository or Path(), force=bool(force)),
    )
    good = good_launches(data)
    for case in data.suite.cases:
        if case.id not in good:
            name = f"{case.workload} over {case.backend}"
            click.echo(f"left out: {name}: none of its launches ended well", err=True)
    click.echo(written)

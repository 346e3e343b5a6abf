"""``report``, ``export`` and ``model``: the commands that read the results of a run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commbench import load
from commbench.errors import CommbenchError, UnknownNameError, UnwritableError, UsageError
from commbench.harness import options
from commbench.harness.options import BYTES, RUN
from commbench.model import registry
from commbench.store import directory, files

if TYPE_CHECKING:
    from commbench.analysis.run import Run

PATH = click.Path(path_type=Path)
FORM = click.option(
    "--format", "form", type=click.Choice(["terminal", "json"]), default="terminal",
    show_default=True,
)  # fmt: skip
_FUNCTION = "let it be a function of a run that returns text"
_AT_ONCE = 1 << 20
"""The characters to print at a time."""


@click.command()
@click.argument("run", type=RUN)
@click.option(
    "--format", "form", default="terminal", show_default=True, metavar="FORMAT",
    help=f"{', '.join(registry.names('report'))}.",
)  # fmt: skip
@click.option("--verbose", "-v", is_flag=True, help="All tables: the format tables.")
@click.option(
    "--min-transfer", type=BYTES, help="Count transfers from this size on in pair tables."
)
@click.option(
    "--min-batch", type=BYTES,
    help="Count batches of P2P shuffles from this size on in pair tables.",
)  # fmt: skip
@click.option("--racks", type=PATH, metavar="FILE", help="Which hosts share a rack, from a file.")
def report(
    run: Path, form: str, verbose: bool, min_transfer: int | None, min_batch: int | None,
    racks: Path | None,
) -> None:  # fmt: skip
    """Report a RUN again: the directory of a run, complete or not, or `latest`."""
    if verbose and form not in ("terminal", "tables"):
        raise click.UsageError(f"--verbose is for the terminal; --format {form} has all tables")
    form = "tables" if verbose else form
    render = registry.load("report", form)
    data = load(run)
    if min_transfer is not None:
        data = data.replace(replace(data.manifest, min_transfer_bytes=min_transfer))
    if min_batch is not None:
        data = data.replace(replace(data.manifest, min_batch_bytes=min_batch))
    if racks is not None:
        from commbench.harness.suite import read_racks

        data = data.replace(replace(data.manifest, racks=read_racks(racks)))
    try:
        text = render(data)
    except Exception as error:
        if isinstance(error, CommbenchError) or render.__module__.startswith("commbench."):
            raise
        reason = f"raised {registry.raised(error)}"
        raise registry.fault("report", form, reason, _FUNCTION) from error
    if not isinstance(text, str):
        raise registry.fault("report", form, f"returned {text!r}", _FUNCTION)
    # Print in chunks: a report may have hundreds of megabytes, and each is encoded in a copy.
    for begin in range(0, len(text), _AT_ONCE):
        click.echo(text[begin : begin + _AT_ONCE], nl=False)


@click.command("open")
@click.argument("run", type=RUN, default=directory.LATEST)
def open_(run: Path) -> None:
    """Show the HTML report of RUN, by default the latest one, in a browser; print its path."""
    import webbrowser

    page = run / "report.html"
    # That of a run which goes on lacks what came later.
    if not directory.is_current(page):
        try:
            files.write(page, registry.load("report", "html")(load(run)))
        except UnwritableError as error:
            # The files of a copy may all be new.
            if not os.path.exists(page):
                raise
            click.echo(f"warning: this page may be outdated: {error}", err=True)
    click.echo(page)
    webbrowser.open(page.absolute().as_uri())


def undisturbed(run: Run) -> Run:
    """Return a run without the launches that others disturbed, and print which were disturbed."""
    from commbench.analysis import warnings

    (rest,) = warnings.undisturbed(run)
    for note in rest.notes:
        click.echo(note, err=True)
    return rest.run


@click.command()
@click.argument("run", type=RUN)
@click.option("--output", type=PATH, required=True, metavar="DIR",
              help="The results_dir in asv.conf.json.")  # fmt: skip
@click.option("--commit", help="The commit that was measured.  [default: the run's]")
@click.option("--machine", help="The machine's name.  [default: the run's host]")
@click.option(
    "--repository", type=PATH, default=Path(), metavar="DIR",
    help="A checkout of the project.  [default: the current folder]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Take uncommitted changes for the commit's.")
def export(
    run: Path, output: Path, commit: str | None, machine: str | None, repository: Path, force: bool
) -> None:
    """Add a RUN to the results of asv, for the history of a project."""
    from commbench.stats.selection import good_launches
    from commbench.studies import asv

    data = undisturbed(load(run))
    written = asv.write(
        data,
        output,
        asv.describe_machine(data.manifest, machine, output),
        asv.find_commit(data.manifest, commit, repository, force=force),
    )
    good = good_launches(data)
    for case in data.suite.cases:
        if case.id not in good:
            name = f"{case.workload} over {case.variant}"
            click.echo(f"left out: {name}: none of its launches ended well", err=True)
    click.echo(written)


@click.command()
@click.argument("run", type=RUN)
@FORM
@click.option(
    "--predict", type=BYTES, metavar="SIZE", help="Predict the time of a transfer of this size."
)
@click.option("--backends", type=options.NAMES, help="Only these backends of the run.")
def model(run: Path, form: str, predict: int | None, backends: tuple[str, ...] | None) -> None:
    """Fit latency and bandwidth of each pair and class of links to the transfers of RUN."""
    from commbench import stats
    from commbench.reports import link_fits, terminal
    from commbench.reports.sections import heading

    data = load(run)
    fitted = stats.link_models(data)
    known = {model.backend for model in fitted}
    for name in backends or ():
        if fitted and name not in known:
            raise UnknownNameError("backend", name, known)
    models = [model for model in fitted if model.backend in (backends or known)]
    if all(model.reason for model in models):
        reasons = dict.fromkeys(f"{model.backend}: {model.reason}" for model in models)
        why = "; ".join(list(reasons)[:4]) or "it has no transfers between workers"
        raise UsageError(
            f"no model can be fitted to {run}: {why}. `commbench run all-to-all` measures what it "
            "takes"
        )
    if form == "json":
        click.echo(link_fits.document(data.manifest, models, predict), nl=False)
        return
    tables = link_fits.tables(models, data.case_labels, predict)
    click.echo(terminal.page(heading(data), (), tables), nl=False)

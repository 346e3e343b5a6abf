"""``commbench model``: from the transfers of a run to latency and bandwidth of its links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commbench.errors import UnknownNameError, UsageError
from commbench.harness.options import BYTES

if TYPE_CHECKING:
    from commbench.stats.link_model import LinkModel


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "json"]),
    default="terminal",
    show_default=True,
)
@click.option(
    "--predict",
    type=BYTES,
    metavar="SIZE",
    help="Tell the time of a transfer of this size.",
)
@click.option("--backend", help="Of a run over several backends, this one only.")
def model(run: Path, form: str, predict: int | None, backend: str | None) -> None:
    """Fit latency and bandwidth of each pair and class of links to the transfers of RUN."""
    from commbench import load, stats
    from commbench.reports import link_model, terminal
    from commbench.reports.sections.provenance import describe

    data = load(run)
    models = _of_backend(stats.link_models(data), backend)
    if all(model.reason for model in models):
        raise UsageError(_nothing_to_fit(run, models))
    if form == "json":
        click.echo(link_model.document(data.manifest, models, predict), nl=False)
        return
    tables = link_model.tables(models, data.case_labels, predict)
    click.echo(terminal.page(describe(data.manifest), (), tables), nl=False)


def _of_backend(models: Sequence[LinkModel], backend: str | None) -> list[LinkModel]:
    found = [model for model in models if backend in (None, model.backend)]
    if models and not found:
        raise UnknownNameError("backend", str(backend), {model.backend for model in models})
    return found


def _nothing_to_fit(run: Path, models: Sequence[LinkModel]) -> str:
    reasons = dict.fromkeys(f"{model.backend}: {model.reason}" for model in models)
    why = "; ".join(list(reasons)[:4]) or "it has no transfers between workers"
    return (
        f"no model can be fitted to {run}: {why}. `commbench run all-to-all` measures what it takes"
    )

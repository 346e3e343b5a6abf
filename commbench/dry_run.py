"""``commbench run --dry-run``: the job scripts of a plan, with nothing started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from commbench import registry, runner
from commbench.backends import parse
from commbench.model import Launch


def print_scripts(plan: Iterable[Launch], output: Path) -> None:
    """Print the job script of every launch as it would be submitted, one after another.

    `output` is where the run's directory would be; ``RUN`` stands for its name.

    Raises
    ------
    UsageError
        Where a launcher submits no jobs.
    """
    for launch in plan:
        cluster = launch.case.cluster
        launcher = registry.load("launcher", cluster.launcher)()
        scratch = runner.scratch_of(launch, output.resolve() / "RUN" / "logs")
        environ = runner.environment(launch, scratch)
        protocol = parse(launch.case.backend).protocol
        click.echo(launcher.script(cluster, protocol, scratch, environ), nl=False)

"""``commbench run --dry-run``: the job scripts of a plan, with nothing started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from commbench.backends import parse
from commbench.harness import runner
from commbench.model import Case, Launch, registry
from commbench.workloads.base import PairWorkload


def print_scripts(plan: Iterable[Launch], output: Path) -> None:
    """Print the job script of every launch as it would be submitted, one after another.

    `output` is where the run's directory would be; ``RUN`` stands for its name. Pairs of processes
    take no job, which is told where others do.

    Raises
    ------
    UsageError
        Where a launcher submits no jobs.
    """
    launches = list(plan)
    of_jobs = [launch for launch in launches if not _is_pair(launch.case)]
    pairs = {launch.case.id: launch.case for launch in launches if _is_pair(launch.case)}
    for case in pairs.values() if of_jobs else ():
        click.echo(f"{case.workload} over {case.backend}: two processes here, no job", err=True)
    for launch in of_jobs or launches:
        cluster = launch.case.cluster
        launcher = registry.load("launcher", cluster.launcher)()
        scratch = runner.scratch_of(launch, output.resolve() / "RUN")
        backend = parse(launch.case.backend)
        environ = runner.environment(launch, backend, scratch)
        click.echo(launcher.script(cluster, backend.protocol, scratch, environ), nl=False)


def _is_pair(case: Case) -> bool:
    return issubclass(registry.load("workload", case.workload), PairWorkload)

"""The options of ``commbench run`` that describe a cluster: a workload's, or those of a suite.

A workload's options have the defaults of ``ClusterSpec``. A suite's have none: what is not given is
as the file says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from commbench.errors import UsageError
from commbench.model import ClusterSpec
from commbench.parsed import SECONDS, SHARE, Parsed, key_and_value, listed
from commbench.workloads import device as devices
from commbench.workloads.base import PairWorkload, Workload

_GPU = ("workers_per_gpu", "rmm_pool", "rmm_async", "rmm_managed")


def of_workload(workload: type[Workload]) -> list[click.Parameter]:
    """Return the options that describe the cluster of `workload`; a pair needs no size."""
    spec = ClusterSpec()
    device = click.Option(
        ["--device"], type=click.Choice(["auto", "cpu", "gpu"]), default="auto",
        show_default=True, help="auto: gpu where there is one and CuPy.",
    )  # fmt: skip
    if issubclass(workload, PairWorkload):
        return [device, *_gpu_options(spec)]
    return [
        click.Option(["--workers"], type=click.INT, default=spec.n_workers, show_default=True,
                     help="Worker processes."),
        click.Option(["--threads"], type=click.INT, default=spec.threads_per_worker,
                     show_default=True, help="Threads of each worker."),
        *_launcher_options(spec),
        _placement("none"),
        device,
        *_gpu_options(spec),
    ]  # fmt: skip


def of_suite() -> list[click.Parameter]:
    """Return the options that change the size and the clusters of a suite file's cases."""
    scale = click.Option(
        ["--scale"], type=SHARE,
        help="Share of the full size, as 0.01 or 1%; 1: the published size.  [default: the file's]",
    )  # fmt: skip
    clusters = [*_launcher_options(ClusterSpec()), *_gpu_options(ClusterSpec())]
    for option in clusters:
        option.default, option.show_default = None, False
        option.help = f"{option.help}  [default: the file's]"
    return [scale, *clusters, _placement("the file's")]


def _gpu_options(spec: ClusterSpec) -> list[click.Option]:
    return [
        click.Option(["--workers-per-gpu"], type=click.INT, default=spec.workers_per_gpu,
                     show_default=True,
                     help="With --device gpu: processes that share a GPU, on machines with few."),
        click.Option(["--rmm-pool"], metavar="SIZE", default=spec.rmm_pool, show_default="none",
                     help="RMM pool of each worker: 10GB, or 0.5 of the GPU's memory "
                          "(dask-cuda's --rmm-pool-size)."),
        click.Option(["--rmm-async"], is_flag=True,
                     help="RMM by CUDA's asynchronous allocator (dask-cuda's --rmm-async)."),
        click.Option(["--rmm-managed"], is_flag=True,
                     help="RMM with managed memory (dask-cuda's --rmm-managed-memory)."),
    ]  # fmt: skip


def _placement(default: str) -> click.Option:
    return click.Option(
        ["--placement"], metavar="none|auto|FILE",
        help="CPUs, GPU and NIC of each worker: auto by the host's topology, or from a file.  "
             f"[default: {default}]",
    )  # fmt: skip


def _launcher_options(spec: ClusterSpec) -> list[click.Option]:
    return [
        click.Option(["--launcher"], default=spec.launcher, show_default=True,
                     help="local: processes of their own; mpirun: the ranks of one MPI world; ssh: "
                          "on --hosts; slurm, pbs, lsf: as jobs; external: a running cluster."),
        click.Option(["--hosts"], type=Parsed("names", listed(str)),
                     help="For ssh and mpirun: the scheduler's host, then one for each worker, in "
                          "turn."),
        click.Option(["--scheduler-address"], help="For external: such as tcp://10.0.0.1:8786."),
        click.Option(["--scheduler-file"], type=click.Path(resolve_path=True),
                     help="For external: what `dask scheduler --scheduler-file` wrote."),
        click.Option(["--launcher-option"], type=Parsed("KEY=VALUE", key_and_value),
                     multiple=True,
                     help="For ssh, mpirun, slurm, pbs and lsf: for example queue=short; may be "
                          "repeated."),
        click.Option(["--start-timeout"], type=SECONDS, default=spec.start_timeout_s,
                     show_default=True, help="Deadline for all workers to be there, in seconds."),
    ]  # fmt: skip


def cluster(given: dict[str, Any]) -> ClusterSpec:
    """Return the cluster that the options ask for."""
    from commbench.suite.placement import place

    device = given["device"]
    spec = ClusterSpec()
    asked = ClusterSpec(
        n_workers=given.get("workers", spec.n_workers),
        threads_per_worker=given.get("threads", spec.threads_per_worker),
        device=devices.detect() if device == "auto" else device,
        launcher=given.get("launcher", spec.launcher),
        hosts=given.get("hosts") or (),
        launcher_options=dict(given.get("launcher_option") or ()),
        scheduler=_scheduler(given),
        start_timeout_s=given.get("start_timeout", spec.start_timeout_s),
        **{name: given.get(name, getattr(spec, name)) for name in _GPU},
    )
    choice, shared = given.get("placement") or "none", max(1, asked.workers_per_gpu)
    placement = place(choice, asked.n_workers, asked.device, workers_per_gpu=shared)
    return replace(asked, placement=placement)


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """Return what the user gave of a suite's clusters, by the names in ``ClusterSpec``.

    The placement is not among it: that depends on how many workers a case has.
    """
    found = {
        "launcher": given["launcher"],
        "hosts": given["hosts"],
        "launcher_options": dict(given["launcher_option"] or ()) or None,
        "scheduler": _scheduler(given) or None,
        "start_timeout_s": given["start_timeout"],
        **{name: given[name] for name in _GPU},
    }
    return {name: value for name, value in found.items() if value is not None}


def _scheduler(given: dict[str, Any]) -> str:
    address, file = given.get("scheduler_address"), given.get("scheduler_file")
    if address and file:
        raise UsageError("--scheduler-address and --scheduler-file name one scheduler; give one")
    return address or file or ""

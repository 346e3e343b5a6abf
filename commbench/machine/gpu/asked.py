"""What may be asked for with ``--device gpu``, and what this machine lacks for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from commbench.errors import UsageError
from commbench.machine import environment
from commbench.machine.gpu import visible
from commbench.model import ClusterSpec
from commbench.model.units import parse_memory

PACKAGES = {
    "cupy": "the arrays are CuPy's",
    "rmm": "Dask receives GPU memory into RMM's",
    "numba": "Dask needs it beside RMM",
}
"""What every measurement of GPU memory takes, by the name of its import, and why."""
INSTALL = "pip install 'commbench[gpu]'"
_ELSEWHERE = "run on a machine with GPUs, or with the device cpu"


def pool_size(text: str) -> int | float:
    """Return the bytes of an RMM pool, or its share of the GPU's memory.

    Raises
    ------
    UsageError
        Where `text` is neither.
    """
    return parse_memory(text, "an RMM pool", "--rmm-pool")


def check(spec: ClusterSpec, backend: str) -> None:
    """Refuse what makes no sense, on whatever machine.

    Raises
    ------
    UsageError
        With what is wrong and what to do.
    """
    if spec.workers_per_gpu < 1:
        raise UsageError(f"{spec.workers_per_gpu} workers per GPU; at least 1 (--workers-per-gpu)")
    if spec.device != "gpu":
        if spec.rmm or spec.workers_per_gpu > 1:
            what = "--rmm-pool, --rmm-async, --rmm-managed" if spec.rmm else "--workers-per-gpu"
            raise UsageError(f"{what}: that is about GPUs; add --device gpu")
        return
    if spec.rmm_pool:
        pool_size(spec.rmm_pool)
    if spec.rmm_async and spec.rmm_managed:
        raise UsageError(
            "CUDA's asynchronous allocator has no managed memory: give --rmm-async or --rmm-managed"
        )
    if spec.rmm_managed and "nvlink" in backend:
        raise UsageError(
            f"{backend} with --rmm-managed: a peer can't map managed memory (cuda_ipc), so nothing "
            "would go over NVLink; leave one of them out"
        )


def missing(
    spec: ClusterSpec, n_processes: int, packages: Sequence[str], environ: Mapping[str, str],
    *, here: bool,
) -> tuple[str, str] | None:  # fmt: skip
    """Return what this machine lacks, and the remedy; None where it has all.

    Parameters
    ----------
    spec
        The cluster.
    n_processes
        How many processes work on a GPU.
    packages
        What the workload imports besides, by name.
    here
        Whether all of them are on this host.
    """
    found, error = environment.ask_gpus()
    if not found:
        return f"no NVIDIA GPU is visible{f' ({error})' if error else ''}", _ELSEWHERE
    if not visible.devices(environ):
        return (
            f"{visible.VISIBLE}={environ.get(visible.VISIBLE, '')} leaves none of the "
            f"{len(found)} GPUs visible",
            f"unset it, or name some of {', '.join(str(gpu['index']) for gpu in found)}",
        )
    wanted = dict(PACKAGES) | dict.fromkeys(packages, "the workload's data are made with it")
    if spec.rmm:
        wanted["dask_cuda"] = f"it sets up RMM (asked for: {spec.rmm})"
    for name, why in wanted.items():
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed: {why}", INSTALL
    placed = len(spec.placement) > 0 and all(place.gpu is not None for place in spec.placement)
    n_visible = len(visible.devices(environ))
    if here and not placed and visible.n_gpus(n_processes, spec.workers_per_gpu) > n_visible:
        per_gpu = visible.n_gpus(n_processes, n_visible)
        return (
            visible.too_few(n_processes, spec.workers_per_gpu, environ),
            f"take fewer, or let them share GPUs: --workers-per-gpu {per_gpu}",
        )
    return None

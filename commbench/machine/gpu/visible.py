"""Which GPU a process works on: the first one in its ``CUDA_VISIBLE_DEVICES``.

As with dask-cuda the other GPUs follow there: UCX can map the memory of a peer's GPU (``cuda_ipc``)
into a process that sees this GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commbench.errors import UsageError
from commbench.machine import environment
from commbench.model import ClusterSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""The order in which nvidia-smi counts GPUs; CUDA's own begins with the fastest."""


def devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that a process with this environment may use, as CUDA names them.

    Those are nvidia-smi's numbers, UUIDs, or instances of a GPU that is divided (``MIG-…``), as far
    as ``CUDA_VISIBLE_DEVICES`` names what is there: CUDA doesn't look beyond the first that isn't.
    """
    known = environment.gpus()
    numbers = tuple(str(gpu["index"]) for gpu in known)
    if (text := environ.get(VISIBLE)) is None:
        return numbers
    found: list[str] = []
    for name in map(str.strip, text.split(",")):
        there = name in numbers or any(
            name.startswith("GPU-") and gpu["uuid"].startswith(name) for gpu in known
        )
        # What is divided into which instances only NVML tells; CUDA will complain.
        divided = name.startswith("MIG-") and bool(known)
        if name in found or not (there or divided):
            break
        found.append(name)
    return tuple(found)


def n_gpus(n_processes: int, workers_per_gpu: int) -> int:
    """Return how many GPUs so many processes take."""
    return -(-n_processes // workers_per_gpu)


def first(own: str, names: Sequence[str]) -> dict[str, str]:
    """Return the variables with which a process works on `own` and sees the others of `names`.

    Examples
    --------
    >>> first("2", ("0", "1", "2", "3"))["CUDA_VISIBLE_DEVICES"]
    '2,3,0,1'
    """
    place = names.index(own) if own in names else 0
    others = (*names[place + 1 :], *names[:place]) if own in names else ()
    return {**_ORDER, VISIBLE: ",".join((own, *others))}


def of_processes(
    n_processes: int, workers_per_gpu: int, environ: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """Return the variables of processes of this host: the first ones get the first GPU, and so on.

    Raises
    ------
    UsageError
        Where there are fewer GPUs than that takes.
    """
    names = devices(environ)
    if n_gpus(n_processes, workers_per_gpu) > len(names):
        raise UsageError(too_few(n_processes, workers_per_gpu, environ))
    return tuple(first(names[i // workers_per_gpu], names) for i in range(n_processes))


def of_ends(
    spec: ClusterSpec, n_processes: int, environ: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """Return the variables of processes that exchange messages; none where these lie on the host.

    Raises
    ------
    UsageError
        Where there are fewer GPUs than that takes.
    """
    if spec.device != "gpu":
        return ({},) * n_processes
    return of_processes(n_processes, spec.workers_per_gpu, environ)


def of_workers(spec: ClusterSpec, environ: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """Return the variables of the workers of a cluster on this host, placed or not.

    Raises
    ------
    UsageError
        Where there are fewer GPUs than that takes.
    """
    placed = [place.gpu for place in spec.placement] or [None] * spec.n_workers
    if None not in placed or spec.device != "gpu":
        names = devices(environ) if any(gpu is not None for gpu in placed) else ()
        return tuple({} if gpu is None else first(str(gpu), names) for gpu in placed)
    return tuple(
        own if gpu is None else first(str(gpu), devices(environ))
        for gpu, own in zip(
            placed, of_processes(spec.n_workers, spec.workers_per_gpu, environ), strict=True
        )
    )


def of_crowd(
    number: int, n_workers: int, workers_per_gpu: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of worker `number` of those on another host, whose GPUs nobody knows.

    Its GPUs are taken for those that ``CUDA_VISIBLE_DEVICES`` names here, else for the first ones.

    Examples
    --------
    >>> of_crowd(1, 2, 1, {})["CUDA_VISIBLE_DEVICES"]
    '1,0'
    """
    taken = n_gpus(n_workers, workers_per_gpu)
    names = [name for name in map(str.strip, environ.get(VISIBLE, "").split(",")) if name]
    names = names or [str(index) for index in range(taken)]
    if taken > len(names):
        raise UsageError(too_few(n_workers, workers_per_gpu, environ, len(names)))
    return first(names[number // workers_per_gpu], names)


def too_few(
    n_processes: int, workers_per_gpu: int, environ: Mapping[str, str], n_visible: int | None = None
) -> str:
    """Return what there is to say where more GPUs are wanted than there are."""
    number = len(devices(environ)) if n_visible is None else n_visible
    limit = f" ({VISIBLE}={environ[VISIBLE]})" if VISIBLE in environ else ""
    share = "one each" if workers_per_gpu == 1 else f"one for {workers_per_gpu} (--workers-per-gpu)"
    return (
        f"{n_processes} processes want {n_gpus(n_processes, workers_per_gpu)} GPUs, {share}, and "
        f"{number} {'is' if number == 1 else 'are'} visible{limit}"
    )

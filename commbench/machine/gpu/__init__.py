"""GPUs: assign them to processes, check requirements, and set up CUDA and RMM.

As with dask-cuda, which also sets up RMM here, each worker is a process with one GPU: the first in
its ``CUDA_VISIBLE_DEVICES``. The other GPUs follow there, because UCX can only map the memory of a
peer's GPU (``cuda_ipc``) into a process that sees this GPU.

GPUs work asynchronously, so ``synchronize`` is called before every reading of a clock.

As in dask-cuda, the CUDA context is created first, then UCX is initialized, which looks for a
context, then RMM is set up. Processes are started by exec and never forked, because a CUDA context
does not survive a fork.
"""

from __future__ import annotations

# What `commbench list` does not need is imported where it is: all backends import this.
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from commbench.errors import UnavailableError, UsageError
from commbench.machine.installed import install_command

if TYPE_CHECKING:
    from commbench.model import ClusterSpec

PRELOAD = "commbench.machine.gpu.preload"
"""The module that every worker imports before it communicates."""
PACKAGES = {
    "cupy": "the arrays are CuPy's",
    "rmm": "Dask receives GPU memory into RMM's",
    "numba": "Dask needs it to use RMM",
}
"""The packages that every measurement of GPU memory needs, by import name, and why."""
_ELSEWHERE = "run on a machine with GPUs, or with the device cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_VARIABLE = "COMMBENCH_GPU"
"""The environment variable with the GPU settings of a launch, as JSON."""
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Makes CUDA number GPUs as nvidia-smi does; its default order begins with the fastest."""
_DASK_CONFIG = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
"""Without it, a worker would count GPU memory against its host memory limit, and spill."""


def devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return CUDA's names of the GPUs that are visible with this environment.

    These are nvidia-smi's numbers, UUIDs, or instances of a divided GPU (``MIG-…``). As in CUDA,
    the first name in ``CUDA_VISIBLE_DEVICES`` that does not exist ends the list.
    """
    from commbench.machine import environment as machine

    known = machine.gpus()
    numbers = tuple(str(gpu["index"]) for gpu in known)
    if (text := environ.get(VISIBLE)) is None:
        return numbers
    visible: list[str] = []
    for name in map(str.strip, text.split(",")):
        there = name in numbers or any(
            name.startswith("GPU-") and gpu["uuid"].startswith(name) for gpu in known
        )
        # Only NVML knows the instances; CUDA will report one that does not exist.
        divided = name.startswith("MIG-") and bool(known)
        if name in visible or not (there or divided):
            break
        visible.append(name)
    return tuple(visible)


def _n_gpus(n_processes: int, workers_per_gpu: int) -> int:
    return -(-n_processes // workers_per_gpu)


def _cuda_name(number: int, names: Sequence[str]) -> str:
    """Return the UUID among `names` of the GPU with nvidia-smi's `number`; else the number."""
    from commbench.machine import environment as machine

    uuids = [gpu["uuid"] for gpu in machine.gpus() if gpu["index"] == number]
    same = (name for uuid in uuids for name in names if uuid.startswith(name))
    return next(same, str(number))


def _first(name: str, names: Sequence[str]) -> dict[str, str]:
    """Return the variables that make `name` the first visible GPU, followed by the others.

    Examples
    --------
    >>> _first("2", ("0", "1", "2", "3"))["CUDA_VISIBLE_DEVICES"]
    '2,3,0,1'
    """
    index = names.index(name) if name in names else 0
    others = (*names[index + 1 :], *names[:index]) if name in names else ()
    return {**_ORDER, VISIBLE: ",".join((name, *others))}


def _env_for_processes(
    n_processes: int, workers_per_gpu: int, names: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """Return the variables of each process; `workers_per_gpu` successive processes share a GPU."""
    if _n_gpus(n_processes, workers_per_gpu) > len(names):
        raise UsageError(_too_few(n_processes, workers_per_gpu, len(names), environ))
    return tuple(_first(names[i // workers_per_gpu], names) for i in range(n_processes))


def env_for_processes(
    spec: ClusterSpec, n_processes: int, environ: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """Return the GPU variables of processes that exchange messages; empty for host memory.

    Too few GPUs are a UsageError.
    """
    if spec.device != "gpu":
        return ({},) * n_processes
    return _env_for_processes(n_processes, spec.workers_per_gpu, devices(environ), environ)


def env_for_workers(spec: ClusterSpec, environ: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """Return the GPU variables of workers on this host, or raise a UsageError if it has too few."""
    placed = [placement.gpu for placement in spec.placement] or [None] * spec.n_workers
    others = (
        env_for_processes(spec, len(placed), environ) if None in placed else ({},) * len(placed)
    )
    names = devices(environ) if any(gpu is not None for gpu in placed) else ()
    return tuple(
        other if gpu is None else _first(_cuda_name(gpu, names), names)
        for gpu, other in zip(placed, others, strict=True)
    )


def env_for_remote_worker(
    number: int, n_workers: int, workers_per_gpu: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the GPU variables of worker `number` on another host.

    The host is assumed to have the GPUs in ``CUDA_VISIBLE_DEVICES`` here, else the first ones.

    Examples
    --------
    >>> env_for_remote_worker(1, 2, 1, {})["CUDA_VISIBLE_DEVICES"]
    '1,0'
    """
    names = [name for name in map(str.strip, environ.get(VISIBLE, "").split(",")) if name]
    names = names or list(map(str, range(_n_gpus(n_workers, workers_per_gpu))))
    return _env_for_processes(n_workers, workers_per_gpu, names, environ)[number]


def _too_few(
    n_processes: int, workers_per_gpu: int, n_visible: int, environ: Mapping[str, str]
) -> str:
    limit = f" ({VISIBLE}={environ[VISIBLE]})" if VISIBLE in environ else ""
    share = "one each" if workers_per_gpu == 1 else f"one for {workers_per_gpu} (--workers-per-gpu)"
    return (
        f"{n_processes} processes need {_n_gpus(n_processes, workers_per_gpu)} GPUs, {share}, and "
        f"{n_visible} {'is' if n_visible == 1 else 'are'} visible{limit}"
    )


def validate(spec: ClusterSpec, backend: str) -> None:
    """Raise a UsageError if the GPU settings of `spec` are wrong on any machine."""
    if spec.workers_per_gpu < 1:
        raise UsageError(f"{spec.workers_per_gpu} workers per GPU; at least 1 (--workers-per-gpu)")
    if spec.device != "gpu":
        if spec.rmm or spec.workers_per_gpu > 1:
            what = "--rmm-pool, --rmm-async, --rmm-managed" if spec.rmm else "--workers-per-gpu"
            raise UsageError(f"{what}: that is about GPUs; add --device gpu")
        return
    if given := sorted(_DASK_CONFIG.keys() & spec.dask_config.keys()):
        raise UsageError(
            f"{', '.join(given)}: --device gpu turns that off, because a worker would count GPU "
            "memory against its host memory limit; leave it out"
        )
    if spec.rmm_pool:
        from commbench.model.units import parse_memory

        parse_memory(spec.rmm_pool, "an RMM pool", "--rmm-pool")
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
    """Return a missing requirement and its remedy; None if there is none.

    Parameters
    ----------
    spec
        The cluster.
    n_processes
        The number of processes that use a GPU.
    packages
        Further packages that the workload imports, by name.
    here
        Whether all processes are on this host.
    """
    from commbench.machine import environment as machine

    known, error = machine.query_gpus()
    if not known:
        return f"no NVIDIA GPU is visible{f' ({error})' if error else ''}", _ELSEWHERE
    n_visible = len(devices(environ))
    if not n_visible:
        return (
            f"{VISIBLE}={environ.get(VISIBLE, '')} leaves none of the {len(known)} GPUs visible",
            f"unset it, or name some of {', '.join(str(gpu['index']) for gpu in known)}",
        )
    wanted = PACKAGES | dict.fromkeys(packages, "the workload's data are made with it")
    if spec.rmm:
        wanted["dask_cuda"] = f"it sets up RMM (asked for: {spec.rmm})"
    for name, why in wanted.items():
        if importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed: {why}", install_command("gpu")
    placed = [placement.gpu is not None for placement in spec.placement] or [False]
    if here and not all(placed) and _n_gpus(n_processes, spec.workers_per_gpu) > n_visible:
        return (
            _too_few(n_processes, spec.workers_per_gpu, n_visible, environ),
            "take fewer, or let them share GPUs: --workers-per-gpu "
            f"{_n_gpus(n_processes, n_visible)}",
        )
    return None


def dask_config(spec: ClusterSpec) -> dict[str, Any]:
    """Return Dask's configuration for all processes of a launch; empty for host memory."""
    return _DASK_CONFIG if spec.device == "gpu" else {}


def environment(spec: ClusterSpec, before_cuda: str) -> dict[str, str]:
    """Return the GPU variables of all processes of a launch; empty for host memory.

    Parameters
    ----------
    before_cuda
        A function of the backend to call first, as ``module:function``; may be empty.
    """
    if spec.device != "gpu":
        return {}
    rmm = {name: getattr(spec, name) for name in ("rmm_pool", "rmm_async", "rmm_managed")}
    return {_VARIABLE: json.dumps({"before_cuda": before_cuda, **rmm})}


def in_use() -> bool:
    """Return whether this process belongs to a launch that measures GPU memory."""
    return _VARIABLE in os.environ


def set_up() -> None:
    """Create this process's CUDA context, and initialize UCX and RMM as the launch is configured.

    Does nothing if the launch measures host memory.

    Raises
    ------
    UnavailableError
        If the GPU can't be used, or RMM can't be set up.
    """
    if not in_use():
        return
    setup = json.loads(os.environ[_VARIABLE])
    if before_cuda := setup["before_cuda"]:
        resolve_name(before_cuda)()
    import cupy

    try:
        cupy.cuda.Device(0).use()
        # This creates the context.
        cupy.cuda.runtime.free(0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(
            "device gpu",
            f"CUDA can't use the first of {VISIBLE}={os.environ.get(VISIBLE, '(unset)')}: {error}",
            "name existing GPUs (nvidia-smi lists them), or run with the device cpu",
        ) from error
    if setup["rmm_pool"] or setup["rmm_async"] or setup["rmm_managed"]:
        _set_up_rmm(setup)


def _set_up_rmm(setup: dict[str, Any]) -> None:
    pool = setup["rmm_pool"]
    try:
        from dask_cuda.plugins import RMMSetup

        from commbench.model.units import parse_memory

        RMMSetup(
            initial_pool_size=parse_memory(pool, "an RMM pool", "--rmm-pool") if pool else None,
            maximum_pool_size=None,
            managed_memory=setup["rmm_managed"],
            async_alloc=setup["rmm_async"],
            release_threshold=None,
            log_directory=None,
            track_allocations=False,
            # CuPy then uses RMM instead of CuPy's memory pool.
            external_lib_list=["cupy"],
        ).setup()
    except ImportError as error:
        remedy = install_command("gpu")
        raise UnavailableError("RMM", f"it can't be imported ({error})", remedy) from error
    except (MemoryError, RuntimeError, ValueError) as error:
        raise UnavailableError(
            "RMM",
            f"it can't be set up with {json.dumps(setup)}: {error}",
            "ask for less, or see who else uses the GPU (nvidia-smi)",
        ) from error


def synchronize(device: str = "gpu") -> None:
    """Wait for all streams of this process's GPU.

    Does nothing for another `device`.
    """
    if device == "gpu":
        import cupy

        cupy.cuda.Device().synchronize()


def describe() -> dict[str, Any]:
    """Return the GPU and the memory allocators of this process, as the libraries report them.

    Returns
    -------
    {"uuid": str, "name": str, "visible": str, "rmm": str, "cupy": str}
        The GPU's PCI address and UUID, its name, ``CUDA_VISIBLE_DEVICES``, RMM's version and
        nested memory resources (``26.10.0 PoolMemoryResource(CudaMemoryResource)``), and CuPy's
        allocator.
    """
    import cupy

    runtime = cupy.cuda.runtime
    number = runtime.getDevice()
    properties = runtime.getDeviceProperties(number)
    return {
        # Instances of a divided GPU share its address, but differ in their UUIDs.
        "uuid": f"{runtime.deviceGetPCIBusId(number)} {bytes(properties['uuid']).hex()}",
        "name": properties["name"].decode(),
        "visible": os.environ.get(VISIBLE, ""),
        "rmm": _resource(),
        "cupy": _name(cupy.cuda.get_allocator()),
    }


def _resource() -> str:
    import rmm

    resource = rmm.mr.get_current_device_resource()
    names = [type(resource).__name__]
    while (resource := getattr(resource, "upstream_mr", None)) is not None:
        names.append(type(resource).__name__)
    return f"{rmm.__version__} " + "(".join(names) + ")" * (len(names) - 1)


def _name(allocator: Any) -> str:
    # The allocator of CuPy's memory pool is a method of the pool.
    owner = getattr(allocator, "__self__", None)
    kind = f"{type(owner).__name__}." if owner is not None else ""
    return kind + str(getattr(allocator, "__name__", allocator))

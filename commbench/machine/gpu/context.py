"""The CUDA context of a process, the order in which things begin there, and RMM's memory.

First comes the context, on the first GPU in ``CUDA_VISIBLE_DEVICES``, then UCX, which looks for a
context when it begins, then RMM: that is dask-cuda's order. Processes are started anew, by exec,
and never forked: a context does not survive that.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pkgutil import resolve_name
from typing import Any

from commbench.errors import UnavailableError
from commbench.machine.gpu.asked import INSTALL, pool_size
from commbench.machine.gpu.visible import VISIBLE
from commbench.model import ClusterSpec

VARIABLE = "COMMBENCH_GPU"
"""Tells a process to work on GPU memory, and how."""


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """What a process has to call before it uses CUDA, and what RMM is asked for."""

    before_cuda: str
    rmm_pool: str
    rmm_async: bool
    rmm_managed: bool


def environment(spec: ClusterSpec, before_cuda: str) -> dict[str, str]:
    """Return the variables of every process of a launch; none where it is one of host memory.

    Parameters
    ----------
    before_cuda
        What the backend has its processes call, as ``module:function``; nothing if empty.
    """
    if spec.device != "gpu":
        return {}
    setup = _Setup(
        before_cuda=before_cuda,
        rmm_pool=spec.rmm_pool,
        rmm_async=spec.rmm_async,
        rmm_managed=spec.rmm_managed,
    )
    return {
        VARIABLE: json.dumps(asdict(setup)),
        # A worker would count what lies on its GPU against the limit of its host memory, and spill.
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    }


def in_use() -> bool:
    """Return whether this process belongs to a launch that measures GPU memory."""
    return VARIABLE in os.environ


def set_up() -> None:
    """Make this process's CUDA context, begin with UCX, and have RMM as the launch asks for it.

    Nothing is done in a process of a launch that measures host memory.

    Raises
    ------
    UnavailableError
        Where there is no such GPU, or RMM can't have what it is asked for.
    """
    if not in_use():
        return
    setup = _Setup(**json.loads(os.environ[VARIABLE]))
    if setup.before_cuda:
        resolve_name(setup.before_cuda)()
    import cupy

    try:
        cupy.cuda.Device(0).use()
        # The usual way to have the context made now.
        cupy.cuda.runtime.free(0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UnavailableError(
            "device gpu",
            f"CUDA can't use the first of {VISIBLE}={os.environ.get(VISIBLE, '(unset)')}: {error}",
            "name GPUs that are there (nvidia-smi lists them), or run with the device cpu",
        ) from error
    if setup.rmm_pool or setup.rmm_async or setup.rmm_managed:
        _set_up_rmm(setup)


def _set_up_rmm(setup: _Setup) -> None:
    try:
        from dask_cuda.plugins import RMMSetup

        RMMSetup(
            initial_pool_size=pool_size(setup.rmm_pool) if setup.rmm_pool else None,
            maximum_pool_size=None,
            managed_memory=setup.rmm_managed,
            async_alloc=setup.rmm_async,
            release_threshold=None,
            log_directory=None,
            track_allocations=False,
            # Else CuPy would go on with a pool of its own.
            external_lib_list=["cupy"],
        ).setup()
    except ImportError as error:
        raise UnavailableError("RMM", f"it can't be imported ({error})", INSTALL) from error
    except (MemoryError, RuntimeError, ValueError) as error:
        raise UnavailableError(
            "RMM",
            f"it can't have what is asked for ({json.dumps(asdict(setup))}): {error}",
            "ask for less, or see who else uses the GPU (nvidia-smi)",
        ) from error


def synchronize(device: str = "gpu") -> None:
    """Wait until this process's GPU has done all that it was given, in every stream.

    Where the data are on another `device`, there is nothing to wait for.
    """
    if device == "gpu":
        import cupy

        cupy.cuda.Device().synchronize()


def told() -> dict[str, Any]:
    """Return what this process works on and where its memory comes from, as the libraries tell.

    Returns
    -------
    {"uuid": str, "name": str, "visible": str, "rmm": str, "cupy": str}
        The GPU (its address and UUID) and what ``CUDA_VISIBLE_DEVICES`` is; RMM's version and
        resource, with those that it draws on
        (``26.10.0 PoolMemoryResource(CudaMemoryResource)``), and the function that CuPy allocates
        by.
    """
    import cupy

    runtime = cupy.cuda.runtime
    number = runtime.getDevice()
    properties = runtime.getDeviceProperties(number)
    # Instances of a divided GPU share its address, and tell their UUIDs apart.
    own = runtime.deviceGetPCIBusId(number), bytes(properties["uuid"]).hex()
    return {
        "uuid": " ".join(own),
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
    # That of CuPy's own pool is a method of the pool.
    owner = getattr(allocator, "__self__", None)
    kind = f"{type(owner).__name__}." if owner is not None else ""
    return kind + str(getattr(allocator, "__name__", allocator))

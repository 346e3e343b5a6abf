"""What ``commbench doctor`` tells of GPU memory: driver, packages, and whether MPI takes it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

from commbench.machine import environment, programs
from commbench.machine.gpu import visible
from commbench.machine.gpu.asked import INSTALL, PACKAGES

_OTHERS = ("cudf", "dask_cudf", "dask_cuda")
_MPI_SECONDS = 20.0
# In a process of its own: MPI and UCX, which other commands need, can't share one.
_ASK_MPI = (
    "from commbench.mpi import device, runtime\n"
    "print(runtime.runtime().library)\n"
    "print(device.is_cuda_aware())"
)


def examined() -> Iterator[tuple[str, str]]:
    """Yield facts, each with its label."""
    found, error = environment.ask_gpus()
    names = visible.devices(os.environ)
    limit = os.environ.get(visible.VISIBLE)
    yield (
        "GPUs visible",
        (", ".join(names) if found else error or "none: nvidia-smi knows none, or is not there")
        or f"none of {len(found)}: {visible.VISIBLE}={limit} hides them",
    )
    lacking = [n for n in (*PACKAGES, *_OTHERS) if importlib.util.find_spec(n) is None]
    yield (
        "GPU packages",
        f"lacking {', '.join(lacking)}: {INSTALL}" if lacking else "all are installed",
    )
    yield "GPU memory", _mpi()


def _mpi() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    text, error = programs.ask((sys.executable, "-c", _ASK_MPI), _MPI_SECONDS)
    if error or len(lines := text.split("\n")) < 2:
        return f"not known: {error or 'it said nothing'}"
    if lines[1] == "True":
        return f"{lines[0]} takes GPU memory (it says that it is CUDA-aware)"
    return f"{lines[0]} is not CUDA-aware: GPU memory is staged in pinned host memory"

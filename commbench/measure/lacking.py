"""Whether a case's layers can be measured over its backend, asked before anything starts."""

from __future__ import annotations

import importlib.util

from commbench import endpoints, environment
from commbench.backends.base import Backend, Unavailability
from commbench.endpoints import compiled
from commbench.measure import perftest
from commbench.model import Case
from commbench.workloads.base import PairWorkload


def lacking(case: Case, backend: Backend) -> Unavailability | None:
    """Return what this machine or commbench lacks to measure `case`, or None."""
    from commbench import registry

    if case.cluster.device == "gpu" and (problem := _lacking_gpu()):
        return problem
    if not issubclass(registry.load("workload", case.workload), PairWorkload):
        return None
    layers, mode = case.params.get("layers", ()), case.params.get("mode", "latency")
    if "raw" in layers and (problem := _lacking_raw(backend, mode)):
        return problem
    if "coroutine" in layers and not endpoints.known("coroutine", backend.protocol):
        return Unavailability(
            f"the layer coroutine doesn't know the protocol {backend.protocol}",
            "leave coroutine out of --layers",
        )
    return None


def _lacking_gpu() -> Unavailability | None:
    if not environment.gpus():
        return Unavailability(
            "no NVIDIA GPU is visible, and the case is one of GPU memory",
            "run on a machine with GPUs, or with the device cpu",
        )
    if importlib.util.find_spec("cupy") is None:
        return Unavailability(
            "the package cupy is not installed, and the case is one of GPU memory",
            "pip install cupy-cuda12x, or run with the device cpu",
        )
    return None


def _lacking_raw(backend: Backend, mode: str) -> Unavailability | None:
    if backend.protocol != perftest.PROTOCOL:
        if not endpoints.known("raw", backend.protocol):
            return Unavailability(
                f"the layer raw doesn't know the protocol {backend.protocol}",
                "leave raw out of --layers",
            )
        if backend.protocol == "mpi" and compiled.compiler() is None:
            return Unavailability(
                "the layer raw of MPI is a loop of C, and no C compiler (cc) is found: called from "
                "Python, a small message would take several times as long",
                "install one, for example gcc, or leave raw out of --layers",
            )
        return None
    if mode not in perftest.TESTS:
        return Unavailability(
            f"the layer raw of ucx is {perftest.TOOL}, which has no mode {mode}",
            f"leave raw out of --layers, or choose --mode {' or '.join(perftest.TESTS)}",
        )
    if (tools := environment.ucx_tools()) is None or not (tools / perftest.TOOL).exists():
        return Unavailability(
            f"the layer raw of ucx needs {perftest.TOOL} of the package libucx",
            "pip install 'commbench[ucx]', or leave raw out of --layers",
        )
    return None

"""Whether a case's layers can be measured over its backend, asked before anything starts."""

from __future__ import annotations

import os

from commbench import endpoints, environment, gpu, registry
from commbench.backends.base import Backend, Unavailability
from commbench.endpoints import compiled
from commbench.measure import perftest
from commbench.model import Case
from commbench.workloads.base import PairWorkload, Workload


def lacking(case: Case, backend: Backend) -> Unavailability | None:
    """Return what this machine or commbench lacks to measure `case`, or None."""
    kind = registry.load("workload", case.workload)
    if case.cluster.device == "gpu" and (problem := _lacking_gpu(case, kind)):
        return problem
    if not issubclass(kind, PairWorkload):
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


def _lacking_gpu(case: Case, kind: type[Workload]) -> Unavailability | None:
    # The client of a cluster on other hosts needs a GPU, too: it makes empty arrays and frames.
    cluster = case.cluster
    n_processes = cluster.n_workers
    here = not registry.load("launcher", cluster.launcher).remote(cluster)
    if issubclass(kind, PairWorkload):
        multiple = case.params.get("mode") == "multi-pair"
        n_processes = 2 * case.params["pairs"] if multiple else 2
    problem = gpu.missing(case.cluster, n_processes, kind.gpu_packages, os.environ, here=here)
    return Unavailability(*problem, what="device gpu") if problem else None


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

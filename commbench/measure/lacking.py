"""Whether a case's layers can be measured over its backend, asked before anything starts."""

from __future__ import annotations

import os

from commbench import gpu, registry
from commbench.backends.base import Backend, Unavailability
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
    below = (backend.lacking(layer, mode) for layer in layers if layer in ("raw", "coroutine"))
    return next(filter(None, below), None)


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

"""What a case needs of this machine, besides its backend."""

from __future__ import annotations

import os

from commbench.backends.base import Backend, Unavailability
from commbench.harness.suite.cases import workload_of
from commbench.machine import gpu
from commbench.model import Case, registry
from commbench.workloads.base import PairWorkload, Workload


def unmet(case: Case, backend: Backend) -> Unavailability | None:
    """Return what this machine or the backend lacks to measure `case`, or None."""
    workload = workload_of(case)
    if case.cluster.device == "gpu" and (problem := _lacking_gpu(case, workload)):
        return problem
    if not isinstance(workload, PairWorkload):
        return None
    below = (layer for layer in workload.layers if layer in ("raw", "coroutine"))
    return next(filter(None, (backend.lacking(layer, workload.mode) for layer in below)), None)


def _lacking_gpu(case: Case, workload: Workload) -> Unavailability | None:
    # The client of a cluster on other hosts needs a GPU, too: it makes empty arrays and frames.
    cluster = case.cluster
    n_processes = cluster.n_workers
    here = not registry.load("launcher", cluster.launcher).remote(cluster)
    if isinstance(workload, PairWorkload):
        n_processes = 2 * workload.params.pairs if workload.mode == "multi-pair" else 2
    problem = gpu.missing(cluster, n_processes, workload.gpu_packages, os.environ, here=here)
    return Unavailability(*problem, what="device gpu") if problem else None

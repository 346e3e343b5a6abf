"""From a TOML file or command line options to cases, and from cases to a plan of launches.

A suite file, with all of its keys (no one cluster has use for all of them)::

    name = "smoke"            # every key but case and its workload is optional
    backends = ["tcp", "ucx:shm"]
    launches = 6              # fresh clusters per case
    iterations = 3            # timed calls per launch
    warmups = 1
    seed = 0
    timeout_s = 300.0         # of one launch
    reproduces = "mpi4dask.merge_ri2"  # a figure in commbench.model.published, to be shown beside
    scale = 0.01              # 1: the full size

    [cluster]
    n_workers = 2
    threads_per_worker = 1
    device = "cpu"            # or gpu, or auto: gpu where there is one and CuPy
    placement = "none"        # or auto, or a placement file beside this one
    launcher = "local"        # or mpirun, ssh, slurm, pbs, lsf, external: docs/launchers.md
    launcher_options = { memory = "8GB" }  # what the launcher takes besides, as text
    hosts = ["head", "node1"]  # ssh, mpirun: the scheduler's first
    scheduler = "tcp://10.0.0.1:8786"  # external: the address of a running one, or its file
    start_timeout_s = 60.0    # for all workers to be there; below timeout_s
    memory_limit = "4GB"      # of each worker, or a share of its host's memory, as "0.25"
    env = { UCX_TLS = "tcp" }  # in every process, after what the backend sets
    dask_config = { "distributed.comm.compression" = "zlib" }  # likewise
    workers_per_gpu = 1       # this and the next three with GPUs only: docs/gpu.md
    rmm_pool = "10GB"         # or a share of the GPU's memory, as "0.5"
    rmm_async = false         # CUDA's asynchronous allocator; not together with:
    rmm_managed = false       # managed memory

    [[case]]                  # at least one; it may override backends to timeout_s and the cluster,
                              # this as cluster = { n_workers = 4 } or in a table [case.cluster]
    workload = "merge"
    params = { rows = 1000 }
    workers = [2, 4, 6]       # a case for each of these numbers of workers
    scaling = { rows = "linear" }  # what scale does: commbench.harness.suite.scaling has the rules
    from_scale = 0.001        # leave the case out at smaller scales
"""

from __future__ import annotations

from commbench.harness.suite.cases import cases_for, plan, shift, structure, suite_of, workload_of
from commbench.harness.suite.files import CaseEntry, SuiteFile, read_suite

__all__ = [
    "CaseEntry",
    "SuiteFile",
    "cases_for",
    "plan",
    "read_suite",
    "shift",
    "structure",
    "suite_of",
    "workload_of",
]

"""Small workloads on the CPU, and their results."""

from typing import Any

from distributed import wait

from commbench.workloads.groupby import GroupBy
from commbench.workloads.map_overlap import MapOverlap
from commbench.workloads.matmul import MatMul
from commbench.workloads.merge import Merge
from commbench.workloads.rechunk import Rechunk
from commbench.workloads.shuffle import Shuffle
from commbench.workloads.svd import Svd
from commbench.workloads.transpose_sum import TransposeSum
from commbench.workloads.workload import ClusterWorkload, Context

PARAMS: dict[type[ClusterWorkload], dict[str, Any]] = {
    GroupBy: {"rows": 1_000, "partitions": 5},
    MapOverlap: {"size": 50, "chunk": 20},
    MatMul: {"size": 50, "chunk": 20},
    Merge: {"rows": 1_000},
    Rechunk: {"size": 20_000, "chunk_size": 2_000, "method": "tasks"},
    Shuffle: {"partitions": 5, "partition_size": 1_600, "shuffle": "tasks"},
    Svd: {"rows": 95, "columns": 5, "chunk_rows": 20},
    TransposeSum: {"size": 50, "chunk": 20},
}


def workload(kind: Any, *, seed: int = 1, n_workers: int = 2, **params: Any) -> Any:
    """Return a workload."""
    context = Context(n_workers=n_workers, device="cpu", seed=seed)
    return kind(kind.Params(**PARAMS[kind] | params), context)


def persist(client: Any, collection: Any) -> Any:
    """Persist and wait, as the harness does."""
    result = client.persist(list(collection) if isinstance(collection, tuple) else collection)
    wait(result)
    return result


def run(client: Any, work: Any) -> Any:
    """Return the persisted result of one iteration."""
    work.prepare(client)
    return persist(client, work.build())


def inputs(work: Any) -> list[Any]:
    """Return the persisted collections of a workload."""
    if isinstance(work, GroupBy | Shuffle):
        return [work.frame]
    return list(work.frames) if isinstance(work, Merge) else [work.x]

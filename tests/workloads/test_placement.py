import time

import pytest
from distributed import futures_of
from small import inputs, persist, workload

from commbench.errors import LaunchError
from commbench.workloads import placement
from commbench.workloads.device import persist_input, uniform_array
from commbench.workloads.groupby import GroupBy
from commbench.workloads.map_overlap import MapOverlap
from commbench.workloads.matmul import MatMul
from commbench.workloads.merge import Merge
from commbench.workloads.placement import rebalance
from commbench.workloads.rechunk import Rechunk
from commbench.workloads.shuffle import Shuffle
from commbench.workloads.svd import Svd
from commbench.workloads.transpose_sum import TransposeSum

WORKLOADS = {
    GroupBy: {},
    MapOverlap: {"size": 160, "chunk": 80},
    MatMul: {"size": 160, "chunk": 80},
    Rechunk: {},
    Shuffle: {"partitions": 4},
    TransposeSum: {"size": 160, "chunk": 80},
    Merge: {"rows": 2_000},
    Svd: {"rows": 900, "columns": 10, "chunk_rows": 150},
}


def homes(client, collection):
    """Return the names of the workers that have each block, in the order of the blocks."""
    futures = sorted(futures_of(collection), key=lambda future: future.key[1:])
    names = client.run(lambda dask_worker: dask_worker.name)
    who_has = client.who_has(futures)
    return [sorted(names[address] for address in who_has[f.key]) for f in futures]


def moved(client):
    """Return the bytes in the workers' transfer logs, and empty these."""

    def take(dask_worker):
        log = dask_worker.transfer_incoming_log
        total = sum(entry["total"] for entry in log)
        log.clear()
        return total

    return sum(client.run(take).values())


def iterate(client, work):
    """Run and check one iteration, and wait until its result is forgotten."""
    graph = work.build()
    result = persist(client, graph)
    nbytes = moved(client)
    work.verify(client, result)
    keys = [future.key for future in futures_of(result)]
    del result, graph
    while client.run_on_scheduler(
        lambda dask_scheduler: any(key in dask_scheduler.tasks for key in keys)
    ):
        time.sleep(0.01)
    return nbytes


@pytest.mark.parametrize("shape", [(60, 60), (40, 100), (20, 20)])
def test_successive_blocks_are_spread_over_successive_workers(client, shape):
    (x,) = persist_input(client, uniform_array("cpu", 1, shape, (20, 20)))
    rebalance(client, x)
    n_blocks = x.numblocks[0] * x.numblocks[1]
    assert homes(client, x) == [[index * 2 // n_blocks] for index in range(n_blocks)]


def test_copied_and_moved_blocks_are_put_back(client):
    (x,) = persist_input(client, uniform_array("cpu", 1, (60, 60), (20, 20)))
    rebalance(client, x)
    before, data = homes(client, x), x.compute()
    client.replicate(x, n=2)
    assert {len(names) for names in homes(client, x)} == {2}
    rebalance(client, x)
    assert homes(client, x) == before

    _stray(client, x)
    assert homes(client, x)[0] == [1]
    rebalance(client, x)
    assert homes(client, x) == before
    assert (x.compute() == data).all()


def _stray(client, x):
    """Move the first block from the first worker to the last."""
    (first,) = (future for future in futures_of(x) if future.key[1:] == (0, 0))
    client.replicate([first], n=2)

    def drop(dask_scheduler):
        for worker in list(dask_scheduler.workers.values()):
            if worker.name != 1:
                dask_scheduler.request_remove_replicas(
                    worker.address, [first.key], stimulus_id="test"
                )

    client.run_on_scheduler(drop)


def test_blocks_that_cant_be_placed_in_time_end_the_launch(client, monkeypatch):
    (x,) = persist_input(client, uniform_array("cpu", 1, (60, 60), (20, 20)))
    rebalance(client, x)
    _stray(client, x)
    monkeypatch.setattr(placement, "_SECONDS", -1.0)
    with pytest.raises(LaunchError, match="1 blocks of the input can't be moved to their"):
        rebalance(client, x)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_iteration_begins_with_the_same_placement_and_moves_data(client, kind):
    work = workload(kind, **WORKLOADS[kind])
    work.prepare(client)
    before = [homes(client, collection) for collection in inputs(work)]
    assert all(len(names) == 1 for group in before for names in group)
    moved(client)
    nbytes = [iterate(client, work) for _ in range(2)]
    assert [homes(client, collection) for collection in inputs(work)] == before
    assert min(nbytes) > 0
    if kind is TransposeSum:
        # Two bands of two blocks: the pair off the diagonal is parted.
        assert min(nbytes) >= 80 * 80 * 8

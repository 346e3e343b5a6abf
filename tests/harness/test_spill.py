from types import SimpleNamespace

import builders
import numpy as np
import pytest
from distributed import wait
from launching import make_launch

from commbench.harness import spill
from commbench.harness.measure import cluster as measuring
from commbench.model import Spill

MB = 10**6
LAUNCH = make_launch(builders.case(), 2)


def evict_all(dask_worker):
    """Write all data of the worker to disk, as it does when its memory is full."""
    while dask_worker.data.fast:
        dask_worker.data.evict()


def test_what_a_worker_spills_in_an_iteration_is_recorded(cluster):
    client = cluster.client
    arrays = [np.random.default_rng(n).integers(0, 256, MB, dtype="u1") for n in range(3)]
    where = [cluster.addresses["0"]]
    first = client.scatter(arrays[0], workers=where, hash=False)
    wait(first)
    client.run(evict_all, workers=where)
    before = client.run(spill.written)
    assert list(measuring.spills(LAUNCH, 1, before, cluster)) == []

    more = client.scatter(arrays[1:], workers=where, hash=False)
    wait(more)
    client.run(evict_all, workers=where)
    (record,) = measuring.spills(LAUNCH, 1, before, cluster)
    assert isinstance(record, Spill)
    assert (record.worker, record.launch, record.iteration, record.n_values) == ("0", 2, 1, 2)
    assert 2 * MB <= record.nbytes < 2.1 * MB


@pytest.mark.parametrize("data", [{}, SimpleNamespace(), SimpleNamespace(cumulative_metrics={})])
def test_a_store_without_a_limit_of_memory_counts_nothing(data):
    assert spill.written(SimpleNamespace(data=data)) == (0, 0)

import functools

import pytest
import small
from distributed import Client, LocalCluster, Nanny

# Dask gives a worker 5 s to end, and a busy machine may not.
Nanny.close = functools.partialmethod(Nanny.close, timeout=60)


@pytest.fixture(scope="session")
def client():
    """Return a client of two worker processes, the same for all workloads."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            # Even without a dashboard the scheduler binds its port, and warns where it is taken.
            dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def done(client, request):
    """Return the workload of the test's module, and its right result."""
    work = small.workload(request.module.KIND)
    return work, small.run(client, work)

import pytest
import small


@pytest.fixture(scope="module")
def done(client, request):
    """Return the workload of the test's module, and its right result."""
    work = small.workload(request.module.KIND)
    return work, small.run(client, work)

"""One cluster for all tests of this folder: to start one takes seconds."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import launching
import processes
import pytest
from simulated import QUIET

from commbench import backends
from commbench.harness.suite import read_suite
from commbench.launchers.launcher import RunningCluster
from commbench.launchers.local import LocalLauncher
from commbench.model import ClusterSpec, Suite


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Return two workers of one thread, 0 and 1, over what COMMBENCH_TEST_BACKEND says."""
    launching.require(processes.BACKEND)
    scratch = tmp_path_factory.mktemp("cluster")
    backend = backends.parse(processes.BACKEND)
    # The workers import the functions of the test modules.
    here = Path(__file__).parent
    folders = [str(here.parent), str(here), str(here / "measure"), os.environ["PYTHONPATH"]]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in backend.environment("cpu", scratch).items():
            patch.setenv(name, value)
        with pytest.MonkeyPatch.context() as at_start:
            at_start.setenv("DASK_TEMPORARY_DIRECTORY", str(scratch))
            # It lives as long as the tests of all folders.
            at_start.setenv("DASK_INTERNAL_INHERIT_CONFIG", dask.config.serialize(QUIET))
            at_start.setenv("PYTHONPATH", os.pathsep.join(folders))
            running = LocalLauncher().start(ClusterSpec(n_workers=2), backend.protocol, scratch)
        with running:
            running.backend = backend
            running.addresses = {name: address for address, name in running.names.items()}
            yield running


@pytest.fixture(scope="session")
def disconnect(shared_cluster: RunningCluster) -> Callable[[], Any]:
    """Return a function that closes the workers' connections, which a meter must see begin."""

    def forget_connections(dask_worker: Any) -> None:
        for address in list(dask_worker.rpc.available):
            dask_worker.rpc.remove(address)

    return lambda: shared_cluster.client.run(forget_connections)


@pytest.fixture(scope="module")
def cluster(shared_cluster: RunningCluster, disconnect: Callable[[], Any]) -> RunningCluster:
    """Return the cluster without connections between its workers."""
    disconnect()
    return shared_cluster


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Suite]:
    """Return a function that reads a suite with this content."""

    def read(content: str | bytes, **overrides: Any) -> Suite:
        path = tmp_path / "my.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_suite(path, overrides)

    return read

"""Fixtures that several folders of tests share; its place puts ``tests`` on the import path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import BACKEND

from commbench import backends
from commbench.launchers.local import LocalLauncher
from commbench.model import ClusterSpec


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, request):
    """Return two workers of one thread, 0 and 1, over what COMMBENCH_TEST_BACKEND says."""
    scratch = tmp_path_factory.mktemp("cluster")
    backend = backends.parse(BACKEND)
    if problem := backend.unavailable("cpu"):
        pytest.skip(f"{BACKEND}: {problem.reason}")
    environ = backend.environment("cpu", scratch)
    environ["DASK_TEMPORARY_DIRECTORY"] = str(scratch)
    # The workers import the functions of the test's module.
    folders = [str(request.path.parent), str(Path(__file__).parent)]
    environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        with LocalLauncher().start(ClusterSpec(n_workers=2), backend.protocol, scratch) as running:
            running.backend = backend
            running.addresses = {name: address for address, name in running.names.items()}
            yield running

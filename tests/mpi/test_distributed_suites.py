"""distributed's own tests over ``mpi://`` do as they do over tcp."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import distributed
import pytest

SCRIPT = Path(__file__).parents[1] / "distributed_suites.py"
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true")
"""
TESTS = """
import os, pathlib, dask, pytest
from distributed.comm import connect, listen
from distributed.comm.tcp import TCP
from distributed.utils_test import gen_test

@gen_test()
async def test_right():
    async def handle(comm):
        assert isinstance(comm, TCP)
        await comm.write("hello")

    async with listen("tcp://127.0.0.1", handle) as listener:
        comm = await connect(listener.contact_address)
        assert await comm.read() == "hello"
        await comm.close()

def test_ends_the_process():
    os._exit(3)

@pytest.mark.parametrize("url", ["tcp://"])
def test_differs(url):
    assert dask.config.get("distributed.comm.default-scheme") + "://" == "t" + "cp://"

def test_alike_at_second_sight():
    first = not pathlib.Path("seen").exists()
    pathlib.Path("seen").touch()
    assert dask.config.get("distributed.comm.default-scheme") == "t" + "cp" or not first
"""


def run(source, *arguments, **options):
    """Run the script on a checkout, and return the process."""
    environ = os.environ | {"DISTRIBUTED_SOURCE": str(source)}
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, env=environ, text=True, check=False, **options)


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout of what is installed, with four tests of ours."""
    package = tmp_path / "source/distributed"
    shutil.copytree(Path(distributed.__file__).parent, package)
    (package / "tests").mkdir(exist_ok=True)
    (package / "tests/__init__.py").touch()
    (package / "tests/test_locks.py").write_text(TESTS)
    (package.parent / "conftest.py").write_text(CONFTEST)
    (package.parent / "pyproject.toml").touch()
    return package.parent


@pytest.mark.slow
def test_tests_that_differ_are_named_with_both_outcomes(checkout, tmp_path):
    """What differs fails the run, unless it is alike alone; a crash costs one test."""
    results = f"--results={tmp_path / 'results'}"
    done = run(checkout, results, "test_locks", capture_output=True)
    assert done.returncode == 1, done.stderr
    assert "| test_locks | 3/1/0 | 1/3/0 | 0 | 2 |" in done.stdout
    differing = done.stdout.partition("DIFFERENCES: 1\n")[2]
    assert "::test_differs[tcp://]: tcp passed, then passed ; mpi failed, then f" in differing
    assert (
        "Alike when run again alone: 1\n- distributed/tests/test_locks.py::test_al" in done.stdout
    )
    assert "Failed over both: 1\n- distributed/tests/test_locks.py::test_ends" in done.stdout
    assert "Not run: comm/test_comms, " in done.stdout


def test_another_version_is_refused(checkout):
    """A checkout whose modules are not those that are installed is not run."""
    (checkout / "distributed/worker.py").write_text("")
    done = run(checkout, capture_output=True)
    assert done.returncode == 1
    assert f"is not distributed {distributed.__version__}" in done.stderr
    assert "worker.py" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.skipif(
    "DISTRIBUTED_SOURCE" not in os.environ,
    reason="DISTRIBUTED_SOURCE names no checkout of dask/distributed",
)
def test_distributed_works_over_mpi_as_over_tcp():
    """Each test of distributed's main modules ends as it does over tcp, or it is known why not."""
    assert run(os.environ["DISTRIBUTED_SOURCE"], cwd=SCRIPT.parents[1]).returncode == 0

"""Each way in which a process can't have mpi:// ends in a message that says what to do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
)

LISTEN = """
import asyncio
from distributed.comm import listen
async def main():
    async with await listen("mpi://127.0.0.1:0", None):
        print("listening")
asyncio.run(main())
"""


def output_of(code: str) -> str:
    """Run `code` in a fresh interpreter and return all that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout


def test_listens() -> None:
    """The code that the other tests spoil works where nothing is in its way."""
    assert "listening" in output_of(LISTEN)


def test_mpi4py_missing() -> None:
    """Without mpi4py the message names the packages to install."""
    said = output_of("import sys; sys.modules['mpi4py'] = None\n" + LISTEN)
    assert "mpi4py is not installed" in said
    assert "pip install mpi4py mpich" in said


def test_lower_thread_level() -> None:
    """MPI initialised for one thread is refused, with the setting to change."""
    said = output_of(
        "import mpi4py; mpi4py.rc.thread_level = 'funneled'\nfrom mpi4py import MPI\n" + LISTEN
    )
    assert "without MPI_THREAD_MULTIPLE" in said
    assert "mpi4py.rc.thread_level" in said


def test_second_mpi() -> None:
    """An MPI library that mpi4py did not load is refused, with its path."""
    find = """
    import subprocess, sys
    path = subprocess.run(
        [sys.executable, "-c",
         "from mpi4py import MPI\\nprint([l.split()[-1] for l in open('/proc/self/maps')"
         " if 'libmpi' in l][0])"],
        stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    import ctypes
    ctypes.CDLL(path)
    """
    said = output_of(textwrap.dedent(find) + LISTEN)
    assert "already loaded an MPI library" in said
    assert "libmpi" in said


@pytest.mark.skipif(importlib.util.find_spec("ucxx") is None, reason="ucxx is not installed")
def test_ucxx_loaded() -> None:
    """After ucxx, whose UCX is not MPI's, mpi:// is refused."""
    said = output_of("import ucxx\n" + LISTEN)
    assert "already loaded UCX" in said
    assert "different processes" in said


def test_forked_child() -> None:
    """A child forked after MPI has started is told to be spawned instead."""
    said = output_of(
        """
        import os, warnings
        from commbench.mpi.runtime import runtime
        from commbench.errors import UnavailableError
        runtime()
        warnings.simplefilter("ignore")
        if os.fork() == 0:
            try:
                runtime()
            except UnavailableError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        """
    )
    assert "was forked" in said
    assert "spawn" in said


def test_singleton_told_what_to_do() -> None:
    """Where MPI was started as a singleton by others, connecting says how to start instead."""
    said = output_of(
        """
        from mpi4py import MPI
        import asyncio, subprocess, sys
        from distributed.comm import listen, connect
        async def main():
            async with await listen("mpi://127.0.0.1:0", None) as listener:
                code = ("import asyncio, sys; from distributed.comm import connect; "
                        "asyncio.run(connect(sys.argv[1], timeout=20))")
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", code, listener.contact_address)
                await child.wait()
        asyncio.run(main())
        """
    )
    assert "FatalCommClosedError" in said
    assert "mpiexec" in said


def test_importing_loads_nothing_heavy() -> None:
    """Importing the package loads neither Dask nor MPI."""
    said = output_of(
        "import sys, commbench.mpi\n"
        "print([m for m in ('dask', 'distributed', 'mpi4py', 'numpy') if m in sys.modules])"
    )
    assert said.strip() == "[]"

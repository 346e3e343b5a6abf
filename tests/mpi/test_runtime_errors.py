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


def test_listens_where_nothing_is_wrong() -> None:
    """The code that the other tests spoil works where nothing is in its way."""
    assert "listening" in output_of(LISTEN)


def test_missing_mpi4py_names_the_packages_to_install() -> None:
    output = output_of("import sys; sys.modules['mpi4py'] = None\n" + LISTEN)
    assert "mpi4py is not installed" in output
    assert "pip install mpi4py mpich" in output


def test_lower_thread_level_is_refused() -> None:
    output = output_of(
        "import mpi4py; mpi4py.rc.thread_level = 'funneled'\nfrom mpi4py import MPI\n" + LISTEN
    )
    assert "without MPI_THREAD_MULTIPLE" in output
    assert "mpi4py.rc.thread_level" in output


def test_second_mpi_library_is_refused() -> None:
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
    output = output_of(textwrap.dedent(find) + LISTEN)
    assert "already loaded an MPI library" in output
    assert "libmpi" in output


@pytest.mark.skipif(importlib.util.find_spec("ucxx") is None, reason="ucxx is not installed")
def test_mpi_is_refused_after_ucxx() -> None:
    output = output_of("import ucxx\n" + LISTEN)
    assert "already loaded UCX" in output
    assert "different processes" in output


def test_forked_child_is_refused() -> None:
    output = output_of(
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
    assert "was forked" in output
    assert "spawn" in output


def test_singleton_is_refused_with_how_to_start_instead() -> None:
    output = output_of(
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
    assert "FatalCommClosedError" in output
    assert "mpiexec" in output


def test_import_loads_neither_dask_nor_mpi() -> None:
    output = output_of(
        "import sys, commbench.mpi\n"
        "print([m for m in ('dask', 'distributed', 'mpi4py', 'numpy') if m in sys.modules])"
    )
    assert output.strip() == "[]"

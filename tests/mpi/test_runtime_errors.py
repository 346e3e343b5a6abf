"""Each way in which a process can't have mpi:// ends in a message that says what to do.

And a process that has it ends as one without: by signals, and with its functions of atexit.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from commbench.mpi import ucx_settings

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


def test_starting_mpi_leaves_the_environment_as_it_is():
    code = """
        import os
        from commbench.mpi.runtime import runtime
        before = dict(os.environ)
        runtime("127.0.0.1")
        print("same" if dict(os.environ) == before else {*os.environ} ^ {*before})
    """
    assert output_of(code) == "same\n"


def output_of(code: str) -> str:
    """Run `code` in a fresh interpreter and return all that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout


SECOND_MPI = """
import ctypes, subprocess, sys
code = "from mpi4py import MPI; print([l.split()[-1] for l in open('/proc/self/maps')" \\
    " if 'libmpi' in l][0])"
done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
ctypes.CDLL(done.stdout.strip())
"""
LOWER_LEVEL = "import mpi4py; mpi4py.rc.thread_level = 'funneled'; from mpi4py import MPI"


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        pytest.param(
            "import sys; sys.modules['mpi4py'] = None",
            "mpi4py is not installed", "pip install mpi4py mpich", id="no-mpi4py",
        ),
        pytest.param(
            LOWER_LEVEL, "without MPI_THREAD_MULTIPLE", "mpi4py.rc.thread_level", id="thread-level"
        ),
        pytest.param(SECOND_MPI, "already loaded an MPI library", "mpi4py.MPI", id="second-mpi"),
        pytest.param(
            "import ucxx", "already loaded UCX", "different processes", id="ucxx",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("ucxx") is None, reason="ucxx is not installed"
            ),
        ),
    ],
)  # fmt: skip
def test_process_without_a_usable_mpi_is_refused(code: str, reason: str, remedy: str) -> None:
    output = output_of(code + "\n" + LISTEN)
    assert "listening" not in output
    # The lines above it are of the source.
    why, _, how = output.splitlines()[-1].partition(" To have it: ")
    assert reason in why
    assert remedy in how


def test_an_mpi_without_threads_is_refused_again_for_the_same_reason() -> None:
    output = output_of(
        """
        import mpi4py
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
        MPI.Query_thread = lambda: MPI.THREAD_SERIALIZED
        from commbench.errors import UnavailableError
        from commbench.mpi.runtime import runtime
        for _ in range(2):
            try:
                runtime("127.0.0.1")
            except UnavailableError as error:
                print(error)
        with open("/proc/self/maps") as maps:
            print([line for line in maps if "mpich_shm" in line and "(deleted)" not in line])
        """
    )
    assert output.count("was built without MPI_THREAD_MULTIPLE") == 2
    assert output.endswith("[]\n")


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
    assert "spawn (Dask's default)" in output


def test_child_that_was_forked_while_mpi_started_is_refused() -> None:
    output = output_of(
        """
        import os, signal, threading, warnings
        from commbench.errors import UnavailableError
        from commbench.mpi import runtime as module
        begun = threading.Event()
        def start(address):
            begun.set()
            threading.Event().wait()
        module._start = start
        thread = threading.Thread(target=lambda: module.runtime(), daemon=True)
        thread.start()
        begun.wait(60)
        warnings.simplefilter("ignore")
        if os.fork() == 0:
            signal.alarm(20)
            try:
                module.runtime()
            except UnavailableError as error:
                print(error, flush=True)
            os._exit(0)
        print(os.wait()[1], flush=True)
        """
    )
    assert "was forked" in output
    assert output.rstrip().endswith("0")


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


@pytest.mark.parametrize(
    ("handler", "returncode"), [("SIG_DFL", -signal.SIGHUP), ("lambda *_: sys.exit(7)", 7)]
)
def test_hangup_is_handled_as_before_mpi_was_loaded(handler: str, returncode: int) -> None:
    code = f"""
    import os, sys
    from signal import SIG_DFL, SIGHUP, signal
    from commbench.mpi.runtime import runtime
    signal(SIGHUP, {handler})
    runtime("127.0.0.1")
    assert "UCX_DEBUG_SIGNO" not in os.environ
    os.kill(os.getpid(), SIGHUP)
    """
    environ = {k: v for k, v in os.environ.items() if k != "UCX_DEBUG_SIGNO"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, timeout=60, check=False, env=environ)
    assert done.returncode == returncode


def test_functions_of_atexit_can_use_mpi_when_a_peer_dies() -> None:
    """Distributed closes clients in one, which goes on receiving meanwhile."""
    output = output_of(
        """
        import atexit, ctypes
        def lose_peer():
            # As UCX does when process 7 has died.
            ctypes.CDLL(loaded("libucs")[0]).ucs_log_dispatch(b"", 1, b"", 0, None, b"pid=7")
            print(n_failures(7), "failure")
        atexit.register(lose_peer)
        from commbench.mpi.libraries import loaded
        from commbench.mpi.peer_failure import n_failures
        from commbench.mpi.runtime import runtime
        runtime("127.0.0.1")
        """
    )
    assert "1 failure" in output


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ({"lo": ["127.0.0.1"], "eth0": ["10.0.0.5"]}, {"eth0"}),
        # An address with a label.
        ({"eth0": ["10.0.0.4"], "eth0:1": ["10.0.0.5"]}, {"eth0"}),
        # The address of a routed host.
        ({"lo": ["127.0.0.1", "10.0.0.5"], "eth0": ["fe80::1%eth0"]}, None),
    ],
)
def test_ucx_may_use_the_interface_of_an_address(
    interfaces: dict[str, list[str]], expected: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        name: [SimpleNamespace(address=text) for text in texts]
        for name, texts in interfaces.items()
    }
    monkeypatch.setattr(ucx_settings.psutil, "net_if_addrs", lambda: known)
    monkeypatch.setattr(ucx_settings.Path, "glob", lambda *_: [])
    assert ucx_settings._devices("10.0.0.5") == expected


def test_ucx_may_use_a_bridge_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UCX_NET_DEVICES", "UCX_TLS", "UCX_TCP_BRIDGE_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ucx_settings, "_devices", lambda _: frozenset({"br0"}))
    exists = ucx_settings.Path.exists
    monkeypatch.setattr(
        ucx_settings.Path, "exists", lambda path: "bridge" in path.parts or exists(path)
    )
    with ucx_settings.ucx_environment("10.0.0.5"):
        assert os.environ["UCX_TCP_BRIDGE_ENABLE"] == "y"
        assert os.environ["UCX_NET_DEVICES"] == "br0"
    assert "UCX_TCP_BRIDGE_ENABLE" not in os.environ
    # MPI aborts a process that can't reach itself.
    for given, used in (("tcp", "tcp,self"), ("self,tcp", "self,tcp"), ("all", "all")):
        monkeypatch.setenv("UCX_TLS", given)
        with ucx_settings.ucx_environment("10.0.0.5"):
            assert os.environ["UCX_TLS"] == used
        assert os.environ["UCX_TLS"] == given

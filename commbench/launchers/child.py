"""Run a module or a command that ends with its launch.

With ``python -m commbench.launchers.child -m MODULE …`` or ``… child COMMAND …`` the kernel kills
the process when its parent ends. On other hosts ``… child --tethered -m MODULE …`` ends when its
standard input is closed, which the connection keeps open. The process is bound to the CPUs in
``COMMBENCH_CPUS``, if it is set.

A ``ForkedModule`` ends with its parent, too, and has all modules that its parent has imported.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from commbench.machine import process

_CLOSE_SECONDS = 5.0


class ForkedModule:
    """A process that runs a module like ``python -m``, forked from this one.

    It has the methods of ``subprocess.Popen`` that launchers use. It has this process's
    hash seed and memory layout. Other threads of this process must wait in the kernel.

    Parameters
    ----------
    name
        The name of the process that tools such as ``ps`` show; the kernel keeps 15 characters.
    arguments
        The module and its arguments.
    environ
        Environment variables in addition to this process's. Those of Dask's configuration and of
        glibc's allocator have an effect; other libraries may have read theirs.
    log
        The file for standard output and error.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> None:
        self._process = multiprocessing.get_context("fork").Process(
            target=_run_module, args=(name, arguments, environ, log)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit status as ``Popen`` does, or None if the process is running."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status.

        Raises
        ------
        subprocess.TimeoutExpired
            If it has not ended after `timeout` seconds.
        """
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send the signal to the process if it is running."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run_module(name: str, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
    import dask

    process.die_with_parent()
    process.rename(name)
    names = environ.keys() - os.environ.keys()
    os.environ.update(environ)
    process.configure_allocator(names)
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT, 0o666)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    # What this process's modules have set remains.
    dask.config.update(dask.config.config, dask.config.collect_env(environ))
    sys.argv = [*arguments]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_CLOSE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    process.bind()
    del sys.argv[0]
    if sys.argv[0] == "--tethered":
        del sys.argv[0]
        process.watch_parent(sys.stdin.fileno(), _end)
    else:
        process.die_with_parent()
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        os.execv(sys.argv[0], sys.argv)  # noqa: S606 - a command of the launcher

"""Run a module or a command that ends with its launch.

With ``python -m commbench.launchers.child -m MODULE …`` or ``… child COMMAND …`` the kernel kills
the process when its parent ends. On other hosts ``… child --tethered -m MODULE …`` ends when its
standard input is closed, which the connection keeps open. The process is bound to the CPUs in
``COMMBENCH_CPUS``, if it is set.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

from commbench.machine import process

_CLOSE_SECONDS = 5.0


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

"""Run a module or a command so that it ends when the launch is gone, however that went.

Run as ``python -m commbench.launchers.bound -m MODULE …`` or ``… bound COMMAND …``: the kernel
kills it with the process that started it. Run as ``… bound --tethered -m MODULE …`` on another
host, where that says little, it ends with its standard input, which the connection holds open.
It keeps to the CPUs that ``COMMBENCH_CPUS`` names, if it does.
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
        os.execv(sys.argv[0], sys.argv)  # noqa: S606 - it is this launcher's own command

"""Run a module or a command so that the kernel kills it when the launch is gone, however it went.

It keeps to the CPUs that ``COMMBENCH_CPUS`` names, if it does.

Run as ``python -m commbench.launchers.bound -m MODULE …`` or ``… bound COMMAND …``.
"""

from __future__ import annotations

import os
import runpy
import sys

from commbench import process

if __name__ == "__main__":
    process.die_with_parent()
    process.bind()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        os.execv(sys.argv[0], sys.argv)  # noqa: S606 - it is this launcher's own command

"""Run a module in a process that the kernel kills when the launch is gone, however it went.

Run as ``python -m commbench.launchers.bound MODULE …``, with the arguments of the module.
"""

from __future__ import annotations

import runpy
import sys

from commbench import process

if __name__ == "__main__":
    process.die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

"""Run ``dask`` in a process that the kernel kills when the launch is gone, however it went.

Run as ``python -m commbench.launchers.bound scheduler|worker …``, with the arguments of ``dask``.
"""

from __future__ import annotations

import runpy

from commbench import process

if __name__ == "__main__":
    process.die_with_parent()
    runpy.run_module("dask", run_name="__main__", alter_sys=True)

"""GPUs: which one a process works on, what has to be there, and where its memory comes from.

Each worker is a process with a GPU of its own, as with dask-cuda, which sets up RMM here, too. What
a GPU does is done when its stream is: ``synchronize`` belongs before every clock that is read.
"""

from __future__ import annotations

from commbench.machine.gpu.asked import check, missing
from commbench.machine.gpu.context import environment, in_use, set_up, synchronize, told
from commbench.machine.gpu.visible import devices, of_crowd, of_ends, of_workers

PRELOAD = "commbench.machine.gpu.preload"
"""The module that every worker imports before it communicates."""

__all__ = [
    "PRELOAD",
    "check",
    "devices",
    "environment",
    "in_use",
    "missing",
    "of_crowd",
    "of_ends",
    "of_workers",
    "set_up",
    "synchronize",
    "told",
]

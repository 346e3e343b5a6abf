"""UCX's own log: at level ``info`` it names the lanes of each kind of endpoint, once."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def environment(scratch: Path) -> dict[str, str]:
    """Return the variables that make each process log to a file of its own in `scratch`."""
    return {
        "UCX_LOG_LEVEL": "info",
        "UCX_LOG_FILE": str(scratch / "ucx-%p.log"),
        "UCX_WARN_UNUSED_ENV_VARS": "n",
    }


def endpoints(pid: int | None = None) -> list[str]:
    """Return what this process, or the one called `pid`, has logged of its endpoints, oldest first.

    One line names the context, the distance (``self``, ``intra-node`` or ``inter-node``) and the
    lanes, for example ``intra-node cfg#1 tag(sysv/memory cma/memory)``.
    """
    # The log is a buffered stdio stream that dies with a killed worker.
    ctypes.CDLL(None).fflush(None)
    path = Path(os.environ.get("UCX_LOG_FILE", "").replace("%p", str(pid or os.getpid())))
    if not path.is_file():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [line.partition("INFO")[2].strip() for line in lines if " cfg#" in line]

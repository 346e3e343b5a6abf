"""Packages and programs that are installed, which are looked for and not imported.

This is separate from ``environment`` because ``commbench list`` needs no more than this.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path


def package_version(*names: str) -> str | None:
    """Return the version of the first of the distributions `names` that is installed."""
    for name in names:
        with suppress(ImportError, KeyError, OSError, ValueError):
            if version := metadata.version(name):
                return version
    return None


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra of commbench.

    It names these packages, because the index that pip asks may have no commbench. They are those
    for CUDA 13 where a package for CUDA 13 is installed, and else those for CUDA 12.

    Examples
    --------
    >>> install_command("ssh")
    "pip install 'asyncssh>=2.18'"
    """
    for_cuda_13 = _packages(f"{extra}-cu13")
    names = [re.split(r"[\[>]", text)[0] for text in _packages("gpu-cu13")]
    is_13 = any("13" in name and package_version(name) for name in names)
    packages = for_cuda_13 if for_cuda_13 and is_13 else _packages(extra)
    return shlex.join(["pip", "install", *packages])


def _packages(extra: str) -> list[str]:
    marker = f"; extra == '{extra}'"
    required = metadata.requires("commbench") or ()
    return [text.removesuffix(marker) for text in required if text.endswith(marker)]


def find_mpiexec() -> str | None:
    """Return the path of mpiexec; in a virtual environment that of the MPI that mpi4py loads."""
    here = Path(sys.executable).parent
    return shutil.which("mpiexec", path=here) or shutil.which("mpiexec")


def ucx_tools() -> Path | None:
    """Return the folder of ``ucx_info`` in the wheel libucx, or None if ucxx loads another UCX."""
    # As libucx reads it, which then loads the system's, if there is one.
    preferred = os.environ.get("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "false").lower()
    if preferred != "false" and _has_system_ucx():
        return None
    with suppress(ImportError, ValueError):
        if (spec := importlib.util.find_spec("libucx")) and spec.origin:
            tools = Path(spec.origin).parent / "bin"
            return tools if os.access(tools / "ucx_info", os.X_OK) else None
    return None


@functools.cache
def _has_system_ucx() -> bool:
    # In another process: a library that has been loaded stays.
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libucp.so')"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def find_ucx(program: str) -> str | None:
    """Return the path of a program of the UCX that ucxx loads: of its wheel, else of the system."""
    return shutil.which(program, path=ucx_tools())


def ucx_libraries(tools: Path) -> dict[str, str]:
    """Return the variable with which the programs in `tools` load the libraries of their wheel."""
    library = tools.parent / "lib"
    path = f"{library}:{library / 'ucx'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {"LD_LIBRARY_PATH": path}

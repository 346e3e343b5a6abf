"""A few lines of C for what Python's own calls would drown: built where there is a compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

from commbench.errors import LaunchError


def compiler() -> str | None:
    """Return the path of the C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def load(source: Path) -> ctypes.CDLL:
    """Compile `source` and load it into this process.

    Raises
    ------
    LaunchError
        Where it can't be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="commbench-") as folder:
        library = Path(folder) / f"{source.stem}.so"
        command = [compiler() or "cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise LaunchError(f"{command[0]} can't be run: {error.strerror}") from error
        if done.returncode:
            raise LaunchError(f"{' '.join(command)} failed: {done.stderr.strip()[:500]}")
        # Once it is loaded, its file may go.
        return ctypes.CDLL(str(library))

"""The MPI and UCX libraries that this process has loaded; there must not be two of a kind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from commbench.errors import UnavailableError

__all__ = ["check_before_loading_mpi", "loaded"]

WHAT = "protocol mpi://"


def loaded(stem: str, maps: str | None = None) -> list[str]:
    """Return the paths of the shared libraries named `stem` that this process has mapped.

    Parameters
    ----------
    stem
        For example ``"libmpi"``, which stands for ``libmpi.so.12`` and ``libmpi_abi.so.1``, too.
    maps
        The text of ``/proc/self/maps``, if not that of this process.

    Examples
    --------
    >>> loaded("libucp", "7f0-7f1 r-xp 0 fe:00 1 /opt/ucx/lib/libucp.so.0.0.0")
    ['/opt/ucx/lib/libucp.so.0.0.0']
    >>> loaded("libucs", "7f0-7f1 r-xp 0 fe:00 1      /home/my user/lib/libucs.so.0")
    ['/home/my user/lib/libucs.so.0']
    """
    if maps is None:
        source = Path("/proc/self/maps")
        maps = source.read_text(errors="replace") if source.exists() else ""
    name = rf"{stem}(?:_abi)?(?:-[0-9a-f]+)?\.so[.0-9]*"
    return sorted(set(re.findall(rf"^[^/\n]*(/.*/{name})$", maps, re.MULTILINE)))


def check_before_loading_mpi() -> None:
    """Refuse to load MPI into a process that has loaded another MPI or UCX.

    MPICH's wheel contains a UCX with the same soname as that of ucxx: the second one to be loaded
    silently gets the other's.

    Raises
    ------
    UnavailableError
        With the path of the other library.
    """
    if "mpi4py.MPI" in sys.modules:
        return
    if libmpi := loaded("libmpi"):
        raise UnavailableError(
            WHAT,
            f"this process has already loaded an MPI library ({libmpi[0]}), but not with mpi4py",
            "import mpi4py.MPI before what loads that library, or leave it out of this process",
        )
    if ucp := loaded("libucp"):
        raise UnavailableError(
            WHAT,
            f"this process has already loaded UCX ({ucp[0]}), and MPI may bring a UCX of its own",
            "use mpi:// and ucx:// (ucxx) in different processes",
        )

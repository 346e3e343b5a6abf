"""GPU memory over MPI: as it is where the library is CUDA-aware, else by pinned host memory.

=========  ======================================================================================
path       what a frame in GPU memory takes
=========  ======================================================================================
direct     MPI reads from and writes to the GPU's memory
staged     copied to pinned host memory, sent, and copied to the GPU from pinned host memory
host       Dask's own serialization, which copies to host memory, too: one of the ends has not
           loaded CuPy, which cuDF does, too, and may have no GPU at all
=========  ======================================================================================

GPUs work behind the back of their processes: what is to be sent has to be complete before, and
what was copied has to be there before a frame is handed out. The whole device is waited for, since
nobody tells which stream a frame was made in.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

from commbench.mpi.libraries import loaded

__all__ = [
    "DIRECT", "HOST", "STAGED", "Incoming", "agreed", "copy_down", "copy_up", "is_cuda_aware",
    "is_device", "outgoing", "path", "pinned",
]  # fmt: skip

DIRECT, STAGED, HOST = "direct", "staged", "host"
_CUDA = 0
"""``MPIX_GPU_SUPPORT_CUDA``."""
_SWITCHES = ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")
"""Variables by which Cray MPICH and MVAPICH2 are told to take GPU memory."""


def path() -> str:
    """Return what this process does with GPU memory, once MPI has been initialised."""
    # Not RMM: Dask's workers import that wherever it is installed.
    if "cupy" not in sys.modules:
        return HOST
    return DIRECT if is_cuda_aware() else STAGED


def agreed(own: str, theirs: str) -> str:
    """Return the path between two ends, each of which has one.

    Examples
    --------
    >>> agreed(DIRECT, STAGED), agreed(STAGED, HOST)
    ('staged', 'host')
    """
    return next(name for name in (HOST, STAGED, DIRECT) if name in (own, theirs))


@functools.cache
def is_cuda_aware() -> bool:
    """Return whether the MPI library of this process says that it takes GPU memory."""
    found = loaded("libmpi")
    return _says_aware(ctypes.CDLL(found[0])) if found else False


def _says_aware(library: Any) -> bool:
    # MPICH and those made of it.
    if (ask := getattr(library, "MPIX_GPU_query_support", None)) is not None:
        supported = ctypes.c_int(0)
        return ask(_CUDA, ctypes.byref(supported)) == 0 and bool(supported.value)
    # Open MPI and those made of it.
    if (ask := getattr(library, "MPIX_Query_cuda_support", None)) is not None:
        return bool(ask())
    return any(os.environ.get(name, "0") not in ("", "0") for name in _SWITCHES)


def is_device(frame: Any) -> bool:
    """Return whether `frame` lies in GPU memory."""
    return hasattr(frame, "__cuda_array_interface__")


def pinned(nbytes: int) -> Any:
    """Return a NumPy array of `nbytes` bytes of pinned host memory, which CuPy recycles."""
    import cupyx

    return cupyx.empty_pinned((nbytes,), "u1")


def _bytes_of(frame: Any) -> Any:
    import cupy

    return cupy.asarray(frame).reshape(-1).view("u1")


def _wait() -> None:
    import cupy

    cupy.cuda.Device().synchronize()


def copy_down(frame: Any, target: Any) -> None:
    """Copy GPU memory to the NumPy array `target`, and wait for that."""
    _bytes_of(frame).get(out=target)
    _wait()


def copy_up(source: Any, frame: Any) -> None:
    """Copy the NumPy array `source` to GPU memory, and wait for that."""
    _bytes_of(frame).set(source)
    _wait()


def outgoing(frame: Any) -> Any:
    """Return what MPI is to send for a frame in GPU memory: bytes, complete when this returns."""
    if frame.__cuda_array_interface__["shape"] == (0,):
        return b""
    _wait()
    if path() == DIRECT:
        return _bytes_of(frame)
    source = _bytes_of(frame)
    host = pinned(source.nbytes)
    copy_down(source, host)
    return memoryview(host)


class Incoming:
    """GPU memory for a frame that is about to arrive.

    Parameters
    ----------
    nbytes
        Its size.

    Attributes
    ----------
    buffer
        What MPI is to fill.
    """

    __slots__ = ("_host", "_memory", "buffer")

    def __init__(self, nbytes: int) -> None:
        import rmm

        self._memory = rmm.DeviceBuffer(size=nbytes)
        self._host: Any = None
        if nbytes and path() == DIRECT:
            # It may have been freed by kernels that still run.
            _wait()
            self.buffer: Any = _bytes_of(self._memory)
        elif nbytes:
            self._host = pinned(nbytes)
            self.buffer = memoryview(self._host)
        else:
            self.buffer = memoryview(bytearray())

    def finish(self) -> Any:
        """Return the frame, now that all has arrived: RMM's buffer, as Dask expects it."""
        if self._host is not None:
            copy_up(self._host, self._memory)
        return self._memory

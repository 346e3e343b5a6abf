"""GPU memory over MPI: directly if the library is CUDA-aware, else through pinned host memory.

=========  ======================================================================================
path       how a frame in GPU memory travels
=========  ======================================================================================
direct     MPI reads from and writes to GPU memory
staged     copied to pinned host memory, sent, and copied to the GPU from pinned host memory
host       Dask serializes it, which copies it to host memory: one of the ends has not loaded CuPy
           (cuDF loads it), has no GPU or no RMM, or only sends on what it receives, as schedulers
=========  ======================================================================================

GPUs work asynchronously: a frame must be complete before it is sent, and a copy before the frame is
returned. The stream in which a frame was made is unknown, so this synchronizes the whole device. A
frame on another device than the event loop's current one is copied to that first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
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
"""Variables that make Cray MPICH and MVAPICH2 accept GPU memory."""


def path() -> str:
    """Return the path of this process, once MPI has been initialized."""
    # That RMM is loaded proves nothing: Dask's workers import it wherever it is installed. What
    # arrives needs it.
    has_rmm = "rmm" in sys.modules or importlib.util.find_spec("rmm") is not None
    # CuPy can be imported without a driver, for which some versions raise an error here. It lacks
    # this function while it is imported.
    has_gpu = False
    with contextlib.suppress(Exception):
        has_gpu = getattr(sys.modules.get("cupy"), "is_available", bool)()
    if not has_rmm or not has_gpu:
        return HOST
    return DIRECT if is_cuda_aware() else STAGED


def agreed(local: str, peer: str) -> str:
    """Return the path between two ends, given the path of each.

    Examples
    --------
    >>> agreed(DIRECT, STAGED), agreed(STAGED, HOST)
    ('staged', 'host')
    """
    return next(name for name in (HOST, STAGED, DIRECT) if name in (local, peer))


@functools.cache
def is_cuda_aware() -> bool:
    """Return whether the MPI library of this process reports that it accepts GPU memory."""
    paths = loaded("libmpi")
    return _reports_cuda(ctypes.CDLL(paths[0])) if paths else False


def _reports_cuda(library: Any) -> bool:
    # MPICH and its derivatives.
    if (ask := getattr(library, "MPIX_GPU_query_support", None)) is not None:
        supported = ctypes.c_int(0)
        return ask(_CUDA, ctypes.byref(supported)) == 0 and bool(supported.value)
    # Open MPI and its derivatives.
    if (ask := getattr(library, "MPIX_Query_cuda_support", None)) is not None:
        return bool(ask())
    return any(os.environ.get(name, "0") not in ("", "0") for name in _SWITCHES)


def is_device(frame: Any) -> bool:
    """Return whether `frame` is in GPU memory."""
    return hasattr(frame, "__cuda_array_interface__")


def pinned(nbytes: int) -> Any:
    """Return a NumPy array of `nbytes` bytes of pinned host memory from CuPy's pool."""
    import cupyx

    return cupyx.empty_pinned((nbytes,), "u1")


def _as_bytes(frame: Any) -> Any:
    import cupy

    return cupy.asarray(frame).reshape(-1).view("u1")


def _wait() -> None:
    import cupy

    cupy.cuda.Device().synchronize()


def copy_down(frame: Any, target: Any) -> None:
    """Copy GPU memory to the NumPy array `target`, and synchronize."""
    _as_bytes(frame).get(out=target)
    _wait()


def copy_up(source: Any, frame: Any) -> None:
    """Copy the NumPy array `source` to GPU memory, and synchronize."""
    _as_bytes(frame).set(source)
    _wait()


def outgoing(frame: Any) -> Any:
    """Return the buffer that MPI sends for a frame in GPU memory; it is complete."""
    import cupy

    if frame.__cuda_array_interface__["shape"] == (0,):
        return b""
    if isinstance(frame, cupy.ndarray) and frame.device.id != cupy.cuda.Device().id:
        # It is copied to the current device.
        frame.device.synchronize()
    source = _as_bytes(frame)
    _wait()
    if path() == DIRECT:
        return source
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
        The buffer that MPI receives into.
    """

    __slots__ = ("_host", "_memory", "buffer")

    def __init__(self, nbytes: int) -> None:
        import rmm

        self._memory = rmm.DeviceBuffer(size=nbytes)
        self._host: Any = None
        if nbytes and path() == DIRECT:
            # Kernels that still run may use it, although it was freed.
            _wait()
            self.buffer: Any = _as_bytes(self._memory)
        elif nbytes:
            self._host = pinned(nbytes)
            self.buffer = memoryview(self._host)
        else:
            self.buffer = memoryview(bytearray())

    def finish(self) -> Any:
        """Return the frame, once all of it has arrived, as the RMM buffer that Dask expects."""
        if self._host is not None:
            copy_up(self._host, self._memory)
        return self._memory

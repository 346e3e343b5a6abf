"""A CuPy whose GPU memory is host memory, for processes that have no GPU.

Its arrays are NumPy's that say where they lie by ``__cuda_array_interface__``. What is copied
between "host" and "GPU", and how often the GPU is waited for, is counted in ``COUNTS``.
"""

import ctypes
import os
from collections import Counter
from types import SimpleNamespace

import numpy
from numpy import *  # noqa: F403
from numpy import linalg  # noqa: F401

__version__ = "14.0.0"
COUNTS: Counter[str] = Counter()


class MemoryPointer:
    """Where an array lies."""

    def __init__(self, owner):
        self.owner = owner
        self.ptr = owner.__cuda_array_interface__["data"][0]

    def copy_from_device(self, source, size):
        """Copy, as between two GPUs."""
        COUNTS["between"] += 1
        ctypes.memmove(self.ptr, source.ptr, size)


class ndarray(numpy.ndarray):  # noqa: N801
    """An array in "GPU" memory."""

    _owner = None

    def __new__(cls, shape, dtype=float, memptr=None, strides=None, order="C"):
        if memptr is None:
            return numpy.zeros(shape, dtype, order).view(cls)
        span = numpy.empty(shape, dtype).nbytes
        memory = (ctypes.c_char * span).from_address(memptr.ptr) if span else bytearray()
        found = numpy.ndarray(shape, dtype, memory, strides=strides if span else None).view(cls)
        found._owner = memptr.owner
        return found

    def __array_finalize__(self, other):
        self._owner = getattr(other, "_owner", None)

    @property
    def __cuda_array_interface__(self):
        return {**self.view(numpy.ndarray).__array_interface__, "version": 3}

    @property
    def data(self):
        return MemoryPointer(self)

    @property
    def device(self):
        return Device()

    def get(self, stream=None, order="C", out=None, blocking=True):
        COUNTS["down"] += 1
        host = numpy.array(self.view(numpy.ndarray))
        if out is None:
            return host
        out[...] = host
        return out

    def set(self, host, stream=None):
        COUNTS["up"] += 1
        self.view(numpy.ndarray)[...] = host


def is_available():
    return True


def asarray(given, dtype=None):
    if isinstance(given, ndarray):
        return given
    if (told := getattr(given, "__cuda_array_interface__", None)) is not None:
        return ndarray(told["shape"], told["typestr"], MemoryPointer(given))
    return numpy.array(given, dtype).view(ndarray)


def array(given, dtype=None, copy=True):
    return numpy.array(given, dtype).view(ndarray)


def asnumpy(given, out=None):
    return given.get(out=out)


def _made(function):
    return lambda *args, **given: function(*args, **given).view(ndarray)


empty, zeros, arange, concatenate, frombuffer, empty_like = map(
    _made,
    (numpy.empty, numpy.zeros, numpy.arange, numpy.concatenate, numpy.frombuffer, numpy.empty_like),
)


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


class Device:
    """One of the GPUs that this process sees."""

    def __init__(self, number=0):
        self.id = number

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def use(self):
        COUNTS["use"] += 1

    def synchronize(self):
        COUNTS["synchronize"] += 1


def _own():
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def _free(pointer):
    if _own() not in os.environ.get("FAKE_GPUS", "0,1").split(","):
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    COUNTS["context"] += 1


_allocator = [None]


def _set_allocator(function):
    _allocator[0] = function


class _Pool:
    def malloc(self, size):
        raise NotImplementedError


cuda = SimpleNamespace(
    Device=Device,
    get_allocator=lambda: _allocator[0] or _Pool().malloc,
    set_allocator=_set_allocator,
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        free=_free,
        getDevice=lambda: 0,
        getDeviceProperties=lambda number: {
            "name": b"Fake GPU", "uuid": _own().encode().ljust(16, b"\0"),
        },
        deviceGetPCIBusId=lambda number: f"0000:0{_own()}:00.0",
    ),
)  # fmt: skip

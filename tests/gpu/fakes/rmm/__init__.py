"""An RMM whose GPU memory is host memory."""

import ctypes
from types import SimpleNamespace

import numpy

__version__ = "26.10.0"


class DeviceBuffer:
    """Bytes in "GPU" memory."""

    def __init__(self, ptr=None, size=0):
        self._memory = numpy.zeros(size, "u1")
        self.size = self.nbytes = size
        if ptr:
            ctypes.memmove(self._memory.ctypes.data, ptr, size)

    def __len__(self):
        return self.size

    @property
    def __cuda_array_interface__(self):
        return {**self._memory.__array_interface__, "version": 3}


class CudaMemoryResource:
    """As RMM's."""


class PoolMemoryResource:
    """As RMM's."""

    def __init__(self, upstream):
        self.upstream_mr = upstream


class CudaAsyncMemoryResource:
    """As RMM's."""


_current = [CudaMemoryResource()]


def _set(resource):
    _current[0] = resource


mr = SimpleNamespace(
    get_current_device_resource=lambda: _current[0], set_current_device_resource=_set
)

"""A view of "GPU" memory."""

from types import SimpleNamespace

import cupy


def as_cuda_array(buffer):
    return SimpleNamespace(copy_to_host=lambda: cupy.asarray(buffer).get())

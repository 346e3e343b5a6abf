"""The set-up of RMM, with the parameters that dask-cuda 26.10 has."""

import cupy
import rmm

ASKED = []


class RMMSetup:
    """As dask-cuda's."""

    def __init__(
        self, initial_pool_size, maximum_pool_size, managed_memory, async_alloc, release_threshold,
        log_directory, track_allocations, external_lib_list,
    ):  # fmt: skip
        self._asked = dict(locals())
        del self._asked["self"]

    def setup(self, worker=None):
        ASKED.append(self._asked)
        size = self._asked["initial_pool_size"]
        if size is not None and size > 10**12:
            raise MemoryError("std::bad_alloc: out_of_memory: CUDA error")
        resource = rmm.CudaMemoryResource()
        if self._asked["async_alloc"]:
            resource = rmm.CudaAsyncMemoryResource()
        elif size is not None:
            resource = rmm.PoolMemoryResource(resource)
        rmm.mr.set_current_device_resource(resource)

        def rmm_cupy_allocator(nbytes):
            raise NotImplementedError

        if "cupy" in self._asked["external_lib_list"]:
            cupy.cuda.set_allocator(rmm_cupy_allocator)

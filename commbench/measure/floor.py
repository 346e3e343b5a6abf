"""The floor under all layers: a copy within one process, between two buffers that stay."""

from __future__ import annotations

from typing import Any

from commbench.measure.layers import Check, Exchange


class Copy(Exchange):
    """Copies between two buffers of host memory."""

    def __init__(self) -> None:
        self._copy: Any = None

    async def announce(self, payload: Any, count: int) -> None:  # noqa: D102
        del count
        if self._copy is None or self._copy.shape != payload.shape:
            self._copy = ~payload

    async def exchange(self, payload: Any) -> Any:  # noqa: D102
        source, target = memoryview(payload), memoryview(self._copy)
        for _ in range(self.messages(payload.nbytes)):
            target[:] = source
        return self._copy

    def messages(self, size: int) -> int:  # noqa: D102
        return 100 if size <= 8192 else 10 if size < 1 << 20 else 1

    def checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        return [(payload, answer)]

    async def whole_checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        return [(payload, answer)]


class DeviceCopy(Copy):
    """Copies from this process's GPU to another one, each complete before the next begins.

    Where the link allows it, the one reads from the other's memory (peer access), as ``cuda_ipc``
    does between processes.

    Parameters
    ----------
    peer
        The GPU to copy to, as CUDA counts those that this process sees; 0 is its own.
    """

    def __init__(self, peer: int) -> None:
        super().__init__()
        self._peer = peer

    async def announce(self, payload: Any, count: int) -> None:  # noqa: D102
        import cupy

        del count
        if self._copy is None or self._copy.shape != payload.shape:
            with cupy.cuda.Device(self._peer):
                self._copy = cupy.zeros(payload.shape, payload.dtype)
                cupy.cuda.Device().synchronize()

    async def exchange(self, payload: Any) -> Any:  # noqa: D102
        import cupy

        source, target, here = payload.data, self._copy.data, cupy.cuda.Device()
        for _ in range(self.messages(payload.nbytes)):
            # CuPy sees to the peer access.
            target.copy_from_device(source, payload.nbytes)
            here.synchronize()
        return self._copy

    def checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        import cupy

        return [(payload, cupy.array(answer))]

    async def whole_checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        return self.checks(payload, answer)

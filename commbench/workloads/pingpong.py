"""``pingpong``: one message to the other process and back, over a sweep of message sizes.

At the layer ``comm`` that is Dask's ``write`` and ``read`` of one NumPy (or CuPy) array of bytes,
with Dask's serialization at both ends, as a worker uses it; at the layer ``coroutine`` the
backend's own asynchronous send and receive, from buffer to buffer. The other process answers with
what it read. Sizes, message counts and warm-up follow ``osu_latency`` of the OSU Micro-Benchmarks:
sizes double from 1 B to 4 MiB, and messages above 8 KiB are sent a tenth as often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from commbench.errors import UnknownNameError, UsageError, VerificationError
from commbench.workloads.base import Context, PairWorkload
from commbench.workloads.device import array_library

_LARGE_MESSAGE = 8192
_STAMP_BYTES = 8
_LAYERS = ("coroutine", "comm")


def _doubling(last: int) -> tuple[int, ...]:
    return tuple(1 << exponent for exponent in range(last.bit_length()))


class PingPong(PairWorkload):
    """Latency and bandwidth of one connection between two processes on one host."""

    name = "pingpong"
    summary = "latency and bandwidth against message size between two processes"
    # A tenth of osu_latency's: here a small message takes 100 times as long as there.
    defaults: ClassVar[Mapping[str, int]] = {"iterations": 1000, "warmups": 100}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        """The options of ``commbench run pingpong``."""

        sizes: tuple[int, ...] = field(
            default=_doubling(4 << 20),
            metadata={"help": "message sizes, for example 1,1KiB,8MiB", "unit": "bytes"},
        )
        layers: tuple[str, ...] = field(
            default=("comm",),
            metadata={
                "help": "comm: Dask's read and write of one array; coroutine: the backend's own "
                "send and receive"
            },
        )
        seconds_per_size: float = field(
            default=1.0, metadata={"help": "stop a size after this long, if ten messages are timed"}
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        if not params.sizes:
            raise UsageError("pingpong: sizes is empty; give at least one, for example --sizes 1")
        if len(set(params.sizes)) < len(params.sizes):
            raise UsageError("pingpong: sizes names a size twice; each is measured once")
        for size in params.sizes:
            if size < 1:
                raise UsageError(f"pingpong: a message size of {size} B can't be sent; at least 1")
        for layer in params.layers:
            if layer not in _LAYERS:
                raise UnknownNameError("layer", layer, _LAYERS)
        if not params.layers or len(set(params.layers)) < len(params.layers):
            raise UsageError("pingpong: layers names none, or one twice; for example --layers comm")
        if "coroutine" in params.layers and context.device == "gpu":
            raise UsageError(
                "pingpong: the layer coroutine knows host memory only; "
                "--device cpu, or --layers comm"
            )
        if params.seconds_per_size <= 0:
            raise UsageError("pingpong: seconds-per-size must be above 0")

    @property
    def sizes(self) -> tuple[int, ...]:  # noqa: D102
        sizes: tuple[int, ...] = self.params.sizes
        return sizes

    @property
    def layers(self) -> tuple[str, ...]:  # noqa: D102
        layers: tuple[str, ...] = self.params.layers
        return layers

    def n_messages(self, size: int, iterations: int) -> int:
        """Return `iterations` up to 8 KiB and a tenth above, as OSU does; never below one."""
        return iterations if size <= _LARGE_MESSAGE else max(1, iterations // 10)

    def payload(self, size: int) -> Any:
        """Return a uint8 array of shape ``(size,)`` on the device."""
        import numpy

        random = numpy.random.default_rng([self.context.seed, size])
        return array_library(self.context.device).asarray(
            random.integers(0, 256, size, dtype=numpy.uint8)
        )

    def stamp(self, payload: Any, number: int) -> None:
        """Write `number` into the first eight bytes, or as many as there are."""
        stamp = number.to_bytes(_STAMP_BYTES, "little")[: payload.size]
        payload[: len(stamp)] = array_library(self.context.device).frombuffer(stamp, dtype="u1")

    async def exchange(self, comm: Any, payload: Any) -> Any:  # noqa: D102
        from distributed.protocol import to_serialize

        await comm.write(to_serialize(payload))
        return await comm.read()

    def check(self, payload: Any, reply: Any, *, whole: bool) -> None:  # noqa: D102
        if type(reply) is not type(payload) or reply.shape != payload.shape:
            raise VerificationError(
                f"pingpong: sent {_describe(payload)}, the peer answered {_describe(reply)}"
            )
        end = None if whole else _STAMP_BYTES
        if not bool((payload[:end] == reply[:end]).all()):
            raise VerificationError(
                f"pingpong: the reply to a message of {payload.size} B differs from what was sent"
            )


def _describe(message: Any) -> str:
    shape, dtype = getattr(message, "shape", None), getattr(message, "dtype", None)
    return f"{type(message).__name__} of shape {shape}, {dtype}" if shape else repr(message)[:80]

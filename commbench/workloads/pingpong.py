"""``pingpong``: messages between two processes, over a sweep of message sizes, layer by layer.

``docs/measurements.md``, "What is timed", says what moves the message at each layer.

Sizes, message counts and warm-up follow the OSU Micro-Benchmarks: sizes double from 1 B to 4 MiB,
messages above 8 KiB are sent a tenth as often, and all modes but those of latency send a window
of 64 messages before the peer acknowledges them.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.errors import UnknownNameError, UsageError, VerificationError
from commbench.model.layers import LAYERS
from commbench.workloads.device import array_library, random_bytes
from commbench.workloads.workload import MODES, Context, Mode, PairWorkload, option

_LARGE_MESSAGE = 8192
_STAMP_BYTES = 8
_SELECTABLE = LAYERS[1:]
"""The layers that users may select; ``raw`` includes ``memcpy``."""
_EVENT_LOOP_MODES = ("loaded-latency", "multi-pair")
"""The modes that need an event loop."""


class PingPong(PairWorkload):
    """Latency and bandwidth of connections between processes on one or two hosts, two by two."""

    name = "pingpong"
    summary = "latency and bandwidth against message size between two processes"
    stresses = "messages"
    quick: ClassVar[Mapping[str, Any]] = {
        "sizes": (1, 1 << 10, 1 << 16, 1 << 20), "seconds_per_size": 0.5,
    }  # fmt: skip
    # A tenth of osu_latency's counts, because a small message takes 100 times as long.
    defaults: ClassVar[Mapping[str, int]] = {"iterations": 1000, "warmups": 100}

    @dataclass(frozen=True, kw_only=True)
    class Params:
        sizes: tuple[int, ...] = option(
            tuple(1 << exponent for exponent in range(23)),
            "message sizes, for example 1,1KiB,8MiB",
            unit="bytes",
        )
        layers: tuple[str, ...] = option(
            ("comm",),
            "raw: the transport without Python's event loop; coroutine: the backend's "
            "own send and receive; comm: Dask's read and write of one array; worker: one "
            "worker fetching a key from another",
        )
        mode: Mode = option(  # noqa: RUF009
            "latency",
            "as osu_latency; the same during a stream of --load-size messages; "
            "as osu_bw, osu_bibw, osu_mbw_mr of one pair, or of --pairs",
        )
        load_size: int = option(
            1 << 20, "message size of the stream of loaded-latency", unit="bytes", least=1
        )
        pairs: int = option(2, "pairs of processes that stream at once, for multi-pair", least=1)
        window: int = option(
            64, "messages before an acknowledgement, in all modes but latency", least=1
        )
        seconds_per_size: float = option(
            1.0, "stop a size after this long, if ten messages are timed", unit="seconds"
        )
        peer: str = option(
            "",
            "measure between this host and another: its name, for ssh, or a command "
            "that runs a program there, such as 'srun -N1 -n1 -w node2'",
            added="0.1",
        )

    def __init__(self, params: Params, context: Context) -> None:
        super().__init__(params, context)
        self._validate_sizes()
        for layer in params.layers:
            if layer not in _SELECTABLE:
                raise UnknownNameError("layer", layer, _SELECTABLE)
        if not params.layers or len(set(params.layers)) < len(params.layers):
            raise UsageError("pingpong: layers names none, or one twice; for example --layers comm")
        if "worker" in params.layers and params.mode != "latency":
            raise UsageError(
                f"pingpong: a worker fetches one key at a time, so the layer worker has no mode "
                f"{params.mode}; --mode latency, or leave worker out of --layers"
            )
        if params.mode in _EVENT_LOOP_MODES and not {"comm", "coroutine"}.issuperset(params.layers):
            raise UsageError(
                f"pingpong: the layers comm and coroutine only have the mode {params.mode}; "
                "--layers comm,coroutine, or another --mode"
            )
        try:
            command = shlex.split(params.peer)
        except ValueError as error:
            raise UsageError(f"pingpong: --peer {params.peer!r}: {error}") from error
        if params.peer and (not command or (command[1:] and shutil.which(command[0]) is None)):
            raise UsageError(
                f"pingpong: --peer {params.peer!r} is neither one word, the name of a host, nor "
                "begins with a program of this machine; for example node2 or 'ssh -p 22 node2'"
            )
        if "worker" in params.layers and params.peer:
            raise UsageError(
                "pingpong: the layer worker has both workers on this host; leave it out of "
                "--layers, or fetch between hosts with commbench links --hosts"
            )
        if params.seconds_per_size <= 0:
            raise UsageError("pingpong: seconds-per-size must be above 0")

    @property
    def layers(self) -> tuple[str, ...]:  # noqa: D102
        asked = self.params.layers
        # In the order from the wire up: Dask's libraries and polling must not be in the process
        # while the raw transport is measured.
        return tuple(
            name for name in LAYERS
            if name in asked or (name == "memcpy" and "raw" in asked and self.mode == "latency")
        )  # fmt: skip

    @property
    def seconds_per_size(self) -> float:  # noqa: D102
        return float(self.params.seconds_per_size)

    @property
    def peer(self) -> str:  # noqa: D102
        return str(self.params.peer)

    def n_samples(self, size: int, iterations: int) -> int:
        """Return `iterations` up to 8 KiB and a tenth above, as OSU does, but at least 1.

        There are a tenth as many windows, as in OSU's benchmarks.
        """
        fewer = (10 if size > _LARGE_MESSAGE else 1) * (10 if "window" in MODES[self.mode] else 1)
        return max(1, iterations // fewer) if iterations else 0

    def payload(self, size: int) -> Any:
        """Return a uint8 array of shape ``(size,)`` on the device."""
        return random_bytes(self.context.device, size, self.context.seed, size)

    def stamp(self, payload: Any, number: int) -> None:
        """Write `number` into the first eight bytes, or fewer if the payload is smaller."""
        stamp = number.to_bytes(_STAMP_BYTES, "little")[: payload.size]
        payload[: len(stamp)] = array_library(self.context.device).frombuffer(stamp, dtype="u1")

    async def exchange(self, comm: Any, payload: Any) -> Any:  # noqa: D102
        from distributed.protocol import to_serialize

        await comm.write(to_serialize(payload))
        return await comm.read()

    def verify(self, payload: Any, reply: Any, *, whole: bool) -> None:  # noqa: D102
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

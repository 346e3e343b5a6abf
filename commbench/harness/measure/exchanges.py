"""The timed exchanges of each layer, over one connection between two processes.

A sample is one exchange: a message and its reply, or, in the modes with a window, a window of
messages (both ways at once if ``bidirectional``) and the peer's acknowledgement. This has the first
bytes of the last message, so that lost and stale messages are detected. The peer's end is in
:mod:`commbench.harness.measure.peer`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from commbench.backends.backend import Backend, Transport
from commbench.backends.endpoints import DeviceEndpoint, Endpoint, repeats
from commbench.harness.measure.peer import (
    ROUND,
    STAMP_BYTES,
    Kind,
    byte_array,
    endpoints,
    read_window,
    write_window,
)
from commbench.machine import gpu
from commbench.workloads.workload import MODES, PairWorkload

MIN_SAMPLES = 10
"""The number of exchanges of a size before the time limit applies."""
_BATCH = 10
"""The number of exchanges per announcement."""
_SMALL = 1 << 20

Check = tuple[Any, Any]
"""Sent data, and the data that the peer received or returned."""


class Exchange(ABC):
    """The operation that is timed."""

    one_by_one: bool = True
    """Whether an exchange is a message and its reply, rather than a window."""

    @abstractmethod
    async def announce(self, payload: Any, count: int) -> None:
        """Prepare `count` exchanges of messages like `payload`; not timed."""

    @abstractmethod
    async def exchange(self, payload: Any) -> Any:
        """Make one exchange, and return the last received message; this call is timed."""

    @abstractmethod
    def messages(self, size: int) -> int:
        """Return the number of messages of `size` bytes per exchange, in both directions."""

    def checks(self, payload: Any, answer: Any) -> list[Check]:
        """Return the data whose first bytes must be equal after an exchange."""
        return [(payload, answer)]

    async def whole_checks(self, payload: Any, answer: Any) -> list[Check]:
        """Return the data that must be equal after the last exchange."""
        return self.checks(payload, answer)


class Conversation(Exchange):
    """The initiator's end of a connection; the mode defines its exchanges."""

    def __init__(self, backend: Backend, workload: PairWorkload, mode: str) -> None:
        self._backend, self._workload = backend, workload
        if "window" not in MODES[mode]:
            self._kind = Kind.PING
        else:
            self._kind = Kind.CROSS if mode == "bidirectional" else Kind.STREAM
        self.one_by_one = self._kind == Kind.PING
        self._window = workload.window
        self._theirs: Any = None
        """The peer's messages in the mode bidirectional: a copy of the announced payload."""
        self._reply: Any = None
        self._acknowledgement: Any = None

    async def announce(self, payload: Any, count: int) -> None:  # noqa: D102
        await self._announce_kind(payload.size, count, self._kind)
        if self._kind == Kind.CROSS:
            self._theirs = payload.copy()
            gpu.synchronize(self._workload.context.device)
            await self._send(self._theirs)
        # It must not be under way when the clock starts.
        await self._receive(self._acknowledgement)

    async def exchange(self, payload: Any) -> Any:  # noqa: D102
        if self._kind == Kind.PING:
            return await self._ping(payload)
        return await self._exchange_windows(payload)

    def messages(self, size: int) -> int:  # noqa: D102
        del size
        return {Kind.PING: 2, Kind.STREAM: self._window, Kind.CROSS: 2 * self._window}[self._kind]

    def checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        if self._kind == Kind.PING:
            return super().checks(payload, answer)
        checks = [(payload[:STAMP_BYTES], answer)]
        if self._kind == Kind.CROSS:
            checks.append((self._theirs[:STAMP_BYTES], self._reply[:STAMP_BYTES].copy()))
        return checks

    async def whole_checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        if self._kind == Kind.PING:
            return [(payload, answer)]
        await self._announce_kind(payload.size, 1, Kind.SHOW)
        other = ~payload
        gpu.synchronize(self._workload.context.device)
        checks = [(payload, await self._receive(other))]
        if self._kind == Kind.CROSS:
            checks.append((self._theirs, self._reply))
        return checks

    @abstractmethod
    async def transports(self) -> tuple[Transport, Transport]:
        """Return the connection's transport as seen by this end and by the peer."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the connection at once, after an error."""

    @abstractmethod
    async def _announce_kind(self, size: int, count: int, kind: Kind) -> None: ...

    @abstractmethod
    async def _send(self, payload: Any) -> None: ...

    @abstractmethod
    async def _receive(self, buffer: Any) -> Any: ...

    @abstractmethod
    async def _ping(self, payload: Any) -> Any: ...

    @abstractmethod
    async def _exchange_windows(self, payload: Any) -> Any: ...


class CommConversation(Conversation):
    """Reads and writes of ``distributed.comm``, with Dask's serialization."""

    def __init__(self, comm: Any, backend: Backend, workload: PairWorkload, mode: str) -> None:
        super().__init__(backend, workload, mode)
        self._comm = comm

    async def announce(self, payload: Any, count: int) -> None:  # noqa: D102
        # The peer echoes all messages but dicts, without announcement.
        if self._kind != Kind.PING:
            await super().announce(payload, count)

    async def _announce_kind(self, size: int, count: int, kind: Kind) -> None:
        del size
        await self._comm.write({"kind": int(kind), "count": count, "window": self._window})

    async def _send(self, payload: Any) -> None:
        await write_window(self._comm, payload, 1)

    async def _receive(self, buffer: Any) -> Any:
        del buffer
        return await self._comm.read()

    async def _ping(self, payload: Any) -> Any:
        return await self._workload.exchange(self._comm, payload)

    async def _exchange_windows(self, payload: Any) -> Any:
        if self._kind == Kind.CROSS:
            await write_window(self._comm, payload[:STAMP_BYTES], 1)
        writing = write_window(self._comm, payload, self._window)
        if self._kind == Kind.CROSS:
            _, self._reply = await asyncio.gather(writing, read_window(self._comm, self._window))
        else:
            await writing
        return await self._comm.read()

    async def transports(self) -> tuple[Transport, Transport]:  # noqa: D102
        ours = self._backend.transport(self._comm)
        await self._comm.write({"kind": int(Kind.TRANSPORT)})
        theirs = await self._comm.read()
        return ours, Transport(theirs["name"], theirs["evidence"])

    async def close(self) -> None:  # noqa: D102
        await self._comm.close()

    def abort(self) -> None:  # noqa: D102
        self._comm.abort()


class EndpointConversation(Conversation):
    """Send and receive of the backend's endpoints, with the same buffers for all messages."""

    def __init__(
        self, endpoint: Endpoint, backend: Backend, workload: PairWorkload, mode: str
    ) -> None:
        super().__init__(backend, workload, mode)
        self._endpoint = endpoint

    async def announce(self, payload: Any, count: int) -> None:  # noqa: D102
        if self._reply is None or self._reply.shape != payload.shape:
            self._reply, self._acknowledgement = ~payload, ~payload[:STAMP_BYTES]
        await super().announce(payload, count)

    def messages(self, size: int) -> int:  # noqa: D102
        n_rounds = self._endpoint.round_trips(size) if self._kind == Kind.PING else 1
        return n_rounds * super().messages(size)

    def checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        checks = super().checks(payload, answer)
        if self._kind == Kind.CROSS:
            # The next window has the same bytes, so clear them to detect its loss.
            self._reply[:STAMP_BYTES] ^= 0xFF
        return checks

    async def whole_checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        if self._kind == Kind.CROSS:
            self._reply[:STAMP_BYTES] ^= 0xFF
        return await super().whole_checks(payload, answer)

    async def _announce_kind(self, size: int, count: int, kind: Kind) -> None:
        await self._endpoint.send(byte_array(ROUND.pack(size, count, kind, self._window)))

    async def _send(self, payload: Any) -> None:
        await self._endpoint.send(payload)

    async def _receive(self, buffer: Any) -> Any:
        await self._endpoint.receive(buffer)
        return buffer

    async def _ping(self, payload: Any) -> Any:
        await self._endpoint.ping(payload, self._reply)
        return self._reply

    async def _exchange_windows(self, payload: Any) -> Any:
        if self._kind == Kind.CROSS:
            await self._endpoint.send(self._acknowledgement)
            await self._endpoint.cross_windows(payload, self._reply, self._window)
        else:
            await self._endpoint.send_window(payload, self._window)
        return await self._receive(self._acknowledgement)

    async def transports(self) -> tuple[Transport, Transport]:  # noqa: D102
        # Both ends have the same kind of endpoint, and so the same transport.
        endpoint = self._endpoint
        carrier = endpoint.carrier if isinstance(endpoint, DeviceEndpoint) else endpoint
        used = self._backend.transport(carrier)
        return used, used

    async def close(self) -> None:  # noqa: D102
        # Not all transports deliver empty messages.
        await self._announce_kind(0, 0, Kind.END)
        await self._endpoint.close()

    def abort(self) -> None:  # noqa: D102
        self._endpoint.abort()


async def open_conversation(
    layer: str, address: str, backend: Backend, workload: PairWorkload, mode: str
) -> Conversation:
    """Connect to a peer's ``serve``, at the layer ``comm``, ``coroutine`` or ``raw``."""
    if layer == "comm":
        from distributed import Security
        from distributed.comm import connect

        comm = await connect(address, **Security().get_connection_args("worker"))
        return CommConversation(comm, backend, workload, mode)
    endpoint = await endpoints(backend, layer).connect(address)
    if workload.context.device == "gpu":
        endpoint = DeviceEndpoint(endpoint)
    return EndpointConversation(endpoint, backend, workload, mode)


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
        return repeats(size)


class DeviceCopy(Copy):
    """Copies from this process's GPU to another one, each complete before the next begins.

    CUDA uses peer access if the link allows it, as ``cuda_ipc`` does between processes. `peer` is
    CUDA's number, in this process, of the GPU to copy to; 0 is the source.
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
            # CuPy enables peer access.
            target.copy_from_device(source, payload.nbytes)
            here.synchronize()
        return self._copy

    def checks(self, payload: Any, answer: Any) -> list[Check]:  # noqa: D102
        import cupy

        return [(payload, cupy.array(answer))]


Timing = tuple[float, float]
"""The start and end of an exchange, by the clock shared by all processes of a host."""


class Messages:
    """Exchanges of messages of `size` bytes, numbered, timed and verified.

    Every message has the number `pair`, to detect messages of other pairs.
    """

    def __init__(
        self, exchange: Exchange, workload: PairWorkload, size: int, pair: int = 0
    ) -> None:
        self._exchange, self._workload = exchange, workload
        self._payload = workload.payload(size)
        # All announced windows must be sent, which takes long for large messages.
        self._batch = _BATCH if exchange.one_by_one or size <= _SMALL else 1
        self._announced = 0
        self._number = pair << 32
        self._on_gpu = workload.context.device == "gpu"
        self._answer: Any = None

    async def exchange(self, n_left: int = _BATCH) -> Timing:
        """Make one of the `n_left` exchanges, and verify it when the clock has stopped."""
        if not self._announced:
            self._announced = min(self._batch, n_left)
            await self._exchange.announce(self._payload, self._announced)
        self._announced -= 1
        self._workload.stamp(self._payload, self._number)
        self._number += 1
        clock, on_gpu = time.perf_counter, self._on_gpu
        if on_gpu:
            gpu.synchronize()
        began = clock()
        answer = await self._exchange.exchange(self._payload)
        if on_gpu:
            gpu.synchronize()
        ended = clock()
        for sent, received in self._exchange.checks(self._payload, answer):
            self._workload.verify(sent, received, whole=False)
        self._answer = answer
        return began, ended

    async def finish(self) -> None:
        """Make all announced exchanges, and verify every byte of the last message."""
        while self._announced:
            await self.exchange()
        for sent, received in await self._exchange.whole_checks(self._payload, self._answer):
            self._workload.verify(sent, received, whole=True)


class Pace:
    """The numbers of a size's exchanges, below 0 for warm-ups, until a time limit.

    The limit, in seconds, applies to the warm-ups and, after `MIN_SAMPLES`, to the samples. `used`
    returns the CPU seconds of all processes.
    """

    def __init__(
        self, n_warmups: int, n_samples: int, limit_s: float, used: Callable[[], float] = float
    ) -> None:
        self._numbers, self._limit_s, self._used = range(-n_warmups, n_samples), limit_s, used

    def __iter__(self) -> Iterator[int]:
        clock = time.perf_counter
        self._cpu_began, began = self._used(), clock()
        for number in self._numbers:
            if number == 0:
                self._cpu_began, began = self._used(), clock()
            elif clock() - began > self._limit_s:
                if number >= MIN_SAMPLES:
                    break
                # Skip the other warm-ups.
                if number < 0:
                    continue
            self._last = number
            yield number

    def cpu_seconds(self) -> float:
        """Return the mean CPU seconds per sample; call this after the last one."""
        return (self._used() - self._cpu_began) / max(1, self._last + 1)

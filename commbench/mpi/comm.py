"""distributed's ``Comm`` over a channel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from typing import Any

from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import ensure_memoryview, offload

from commbench.mpi import gpu_frames, wire_format
from commbench.mpi.channel import Channel, ChannelClosedError

__all__ = ["MPIComm"]

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 10.0
"""How long `close` waits for a peer that does not read."""

_ON_GPUS = ("cuda", "dask", "pickle", "error")
"""Serializers that keep GPU memory on the GPU, as distributed uses them for UCX."""

UNSPLIT = 2**62
"""A frame size that is never reached: merging frames that Dask has split would copy them."""


class MPIComm(Comm):  # type: ignore[misc]
    """An established connection.

    Parameters
    ----------
    channel
        The channel that carries it; closed with the comm.
    local_address, peer_address
        With ``mpi://``.
    deserialize
        Whether `read` deserializes what was marked with ``to_serialize``.
    mode
        How the two processes are connected: ``"elastic"``, ``"world"`` or ``"self"``.
    library
        The MPI library.
    gpu_memory
        How GPU memory travels, as in :mod:`commbench.mpi.gpu_frames`.

    Attributes
    ----------
    channel
        As given.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        local_address: str,
        peer_address: str,
        deserialize: bool,
        mode: str,
        library: str,
        gpu_memory: str = gpu_frames.HOST,
    ) -> None:
        super().__init__(deserialize=deserialize)
        # distributed.comm.core reads these two by their private names.
        self._local_addr = local_address
        self._peer_addr = peer_address
        self.channel = channel
        self._extra_info = {"mode": mode, "library": library, "gpu_memory": gpu_memory}
        self._serializers = None if gpu_memory == gpu_frames.HOST else _ON_GPUS
        loop = asyncio.get_running_loop()
        self._finalizer = weakref.finalize(self, _close_dangling, channel, loop, repr(self))
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        """The address of this end."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The address of the other end."""
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        """The mode, the MPI library and the path of GPU memory."""
        return self._extra_info

    async def read(self, deserializers: Any = None) -> Any:
        """Return the next message.

        Raises
        ------
        CommClosedError
            If the connection is closed.
        """
        try:
            frames = await self.channel.receive()
        except ChannelClosedError as error:
            self.abort()
            raise CommClosedError(f"in {self}: {error}") from error
        except BaseException:
            # Cancelled in the middle of a message: the rest of it would pass for the next one.
            self.abort()
            raise
        if len(frames) > wire_format.MANY:
            frames = await offload(wire_format.separate, frames)
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError("aborted on truncated data") from error

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Send a message and return its bytes, without waiting for the peer to read it.

        Raises
        ------
        CommClosedError
            If the connection is closed.
        """
        if self.channel.closed:
            raise CommClosedError(f"in {self}: {self.channel.end_reason()}")
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers or self._serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            # Of what is compressed, lz4 takes less than 2 GiB at a time.
            frame_split_size=None if self.handshake_options.get("compression") else UNSPLIT,
        )
        try:
            if self._serializers is not None:
                return self._send_marked(frames)
            return self.channel.send(
                [frame if type(frame) is bytes else ensure_memoryview(frame) for frame in frames]
            )
        except ChannelClosedError as error:
            raise CommClosedError(f"in {self}: {error}") from error
        except BaseException:
            self.abort()
            raise

    def _send_marked(self, frames: list[Any]) -> int:
        """Send frames, some of which may be in GPU memory."""
        on_device = {index for index, frame in enumerate(frames) if gpu_frames.is_device(frame)}
        return self.channel.send(
            [
                gpu_frames.outgoing(frame) if index in on_device
                else frame if type(frame) is bytes
                else ensure_memoryview(frame)
                for index, frame in enumerate(frames)
            ],
            on_device,
        )  # fmt: skip

    async def close(self) -> None:
        """Close once everything written has left this process."""
        self._finalizer.detach()
        self.channel.close()
        n_before = math.inf
        # A peer that reads slowly gets everything.
        while (n_unsent := self.channel.n_unsent) < n_before:
            n_before = n_unsent
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_TIMEOUT_S):
                    await self.channel.flush()

    def abort(self) -> None:
        """Close at once."""
        self._finalizer.detach()
        self.channel.close()

    def closed(self) -> bool:
        """Whether nothing more can be read or written."""
        return self.channel.closed


def _close_dangling(channel: Channel, loop: asyncio.AbstractEventLoop, name: str) -> None:
    if not channel.closed and not loop.is_closed():
        logger.warning("Closing dangling connection in %s", name)
        # The garbage collector may run in any thread.
        loop.call_soon_threadsafe(channel.close)

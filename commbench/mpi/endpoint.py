"""Awaitable MPI messages from buffer to buffer, without framing."""

from __future__ import annotations

from typing import Any

from commbench.mpi.comm import MPIComm
from commbench.mpi.runtime import runtime

__all__ = ["MPIEndpoint"]


class MPIEndpoint:
    """One end of a pair, on separate tags of a connection's communicator.

    It does not detect a dead peer: reading from the connection does.

    Parameters
    ----------
    comm
        A connection between the two processes; it must stay open.
    send_tag, receive_tag
        The tags that the two ends have agreed on.
    """

    def __init__(self, comm: MPIComm, send_tag: int, receive_tag: int) -> None:
        channel = comm.channel
        self._complete = channel.engine.complete
        self._isend, self._irecv = channel.communicator.Isend, channel.communicator.Irecv
        self._rank, self._send_tag, self._receive_tag = channel.rank, send_tag, receive_tag

    @classmethod
    async def from_comm(cls, comm: MPIComm) -> MPIEndpoint:
        """Agree on tags over `comm` and return this end; both ends must call this."""
        receive_tag = runtime().tags.allocate()
        await comm.write({"tag": receive_tag})
        return cls(comm, (await comm.read())["tag"], receive_tag)

    async def send(self, buffer: Any) -> None:
        """Send a contiguous buffer; it may be modified when this returns."""
        request = self._isend(buffer, self._rank, self._send_tag)
        await self._complete(request, buffer, receives=False)

    async def receive(self, buffer: Any) -> None:
        """Receive the next message into a contiguous buffer of exactly its size."""
        request = self._irecv(buffer, self._rank, self._receive_tag)
        await self._complete(request, buffer, receives=True)

    def close(self) -> None:
        """Release the tag; both ends must have received everything sent to them."""
        runtime().tags.release(self._receive_tag)

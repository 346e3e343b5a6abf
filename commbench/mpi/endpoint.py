"""Messages from buffer to buffer, for those who need no framing: MPI's own, but awaitable."""

from __future__ import annotations

from typing import Any

from commbench.mpi.comm import MPIComm
from commbench.mpi.runtime import runtime

__all__ = ["MPIEndpoint"]


class MPIEndpoint:
    """One end of a pair, on tags of its own beside a connection.

    It notices no dead peer: the connection does, for whoever reads from it.

    Parameters
    ----------
    comm
        A connection between the two processes, which must stay open.
    send_tag, receive_tag
        As the two ends have agreed.
    """

    def __init__(self, comm: MPIComm, send_tag: int, receive_tag: int) -> None:
        channel = comm.channel
        self._complete = channel.engine.complete
        self._isend, self._irecv = channel.communicator.Isend, channel.communicator.Irecv
        self._rank, self._send_tag, self._receive_tag = channel.rank, send_tag, receive_tag

    @classmethod
    async def beside(cls, comm: MPIComm) -> MPIEndpoint:
        """Agree on tags over `comm`; both ends must call this."""
        receive_tag = runtime().tags.allocate()
        await comm.write({"tag": receive_tag})
        return cls(comm, (await comm.read())["tag"], receive_tag)

    async def send(self, buffer: Any) -> None:
        """Send the bytes of a contiguous buffer; it may change when this returns."""
        request = self._isend(buffer, self._rank, self._send_tag)
        await self._complete(request, buffer, receives=False)

    async def receive(self, buffer: Any) -> None:
        """Fill a contiguous buffer with the next message, which has just its size."""
        request = self._irecv(buffer, self._rank, self._receive_tag)
        await self._complete(request, buffer, receives=True)

    def close(self) -> None:
        """Give the tag back; both ends must have received all that was sent to them."""
        runtime().tags.release(self._receive_tag)

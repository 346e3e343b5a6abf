"""The sending half of a channel: hands messages to MPI, and knows which have not left yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from commbench.mpi import wire
from commbench.mpi.engine import Engine
from commbench.mpi.line import Line, Record
from commbench.mpi.transfer import Transfer

__all__ = ["ChannelClosedError", "Outbox"]


class ChannelClosedError(OSError):
    """There is nothing more to read, or nobody to write to."""


class Outbox:
    """Sends messages, and waits for none of them.

    Parameters
    ----------
    engine
        Sees the transfers to their end.
    line
        Rings for the peer.
    communicator, rank, tag
        Where the messages go to, and the tag that the peer allocated.
    mpi
        The module ``mpi4py.MPI``.
    on_left
        Called where a message that took its time has left.
    on_failure
        Called with the reason why no more can be sent.

    Attributes
    ----------
    n_sent
        How many messages MPI has taken.
    peer_rests
        Whether the peer wants to be rung for every message.
    """

    def __init__(
        self,
        engine: Engine,
        line: Line,
        communicator: Any,
        rank: int,
        tag: int,
        mpi: Any,
        on_left: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._line = line
        self._communicator = communicator
        self._rank = rank
        self._tag = tag
        self._byte = mpi.BYTE
        self._on_left = on_left
        self._on_failure = on_failure
        self._leaving: set[Transfer] = set()
        self._emptied: asyncio.Future[None] | None = None
        self._closed: str | None = None
        self.n_sent = 0
        self.peer_rests = True

    def send(self, frames: Sequence[wire.Buffer], on_device: Collection[int] = ()) -> int:
        """Send one message and return its bytes; it need not be received for that.

        The frames must stay unchanged until they have left. Those at the places `on_device` arrive
        in GPU memory.

        Raises
        ------
        ChannelClosedError
            Where this end or the peer has closed, or MPI fails.
        """
        if self._closed is not None:
            raise ChannelClosedError(self._closed)
        header, large, nbytes = wire.pack(frames, on_device)
        send, rank, tag, byte = self._communicator.Isend, self._rank, self._tag, self._byte
        requests = []
        try:
            requests.append(send((header, byte), rank, tag))
            for buffer in large:
                for piece in wire.pieces(buffer):
                    requests.append(send((piece, byte), rank, tag))
            complete = not large and requests[0].Test()
        except Exception as error:
            # What has left already can't be taken back, and announces what won't come.
            self._engine.park(Transfer(requests, (header, large), nbytes, False, None))
            reason = f"MPI could not send: {error}"
            self._on_failure(reason)
            raise ChannelClosedError(reason) from error
        self.n_sent += 1
        if not complete:
            transfer = Transfer(requests, (header, large), nbytes, False, self._on_sent)
            self._leaving.add(transfer)
            self._engine.start(transfer)
        if self.peer_rests:
            self._line.record(Record.RING, self.n_sent)
        return nbytes

    def _on_sent(self, transfer: Transfer, error: BaseException | None) -> None:
        self._leaving.discard(transfer)
        if error is not None:
            self._on_failure(f"MPI could not send: {error}")
        if not self._leaving:
            self._tell_empty()
        self._on_left()

    def _tell_empty(self) -> None:
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def empty(self) -> bool:
        """Whether everything sent has left this process."""
        return not self._leaving

    async def flush(self) -> None:
        """Wait until everything sent has left this process, or never will."""
        if self._leaving:
            self._emptied = self._emptied or self._engine.loop.create_future()
            await asyncio.shield(self._emptied)

    def close(self) -> None:
        """Take no more."""
        self._closed = self._closed or "the connection is closed"

    def give_up(self, reason: str) -> None:
        """Take no more for that reason, and let go of what has not left."""
        self._closed = reason
        for transfer in self._leaving:
            self._engine.park(transfer)
        self._leaving.clear()
        self._tell_empty()

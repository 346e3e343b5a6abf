"""The sending half of a channel."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from commbench.mpi import wire_format
from commbench.mpi.control import Control, Record, wake
from commbench.mpi.engine import Engine
from commbench.mpi.transfers import INTERRUPTED, Transfer

__all__ = ["ChannelClosedError", "Sender"]


class ChannelClosedError(OSError):
    """The channel is closed: no more messages can be received or sent."""


class Sender:
    """Posts sends without waiting for them.

    Parameters
    ----------
    engine
        Progresses the transfers.
    control
        Carries the doorbell.
    communicator, rank, tag
        The destination, and the tag that the peer has allocated.
    mpi
        The module ``mpi4py.MPI``.
    on_drained
        Called when a send completes that could not at once.
    on_failure
        Called with the reason if a send fails.

    Attributes
    ----------
    n_sent
        The number of messages posted.
    peer_is_idle
        Whether the peer sleeps, and needs a doorbell for every message.
    """

    def __init__(
        self,
        engine: Engine,
        control: Control,
        communicator: Any,
        rank: int,
        tag: int,
        mpi: Any,
        on_drained: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._control = control
        self._communicator = communicator
        self._rank = rank
        self._tag = tag
        self._byte = mpi.BYTE
        self._on_drained = on_drained
        self._on_failure = on_failure
        self._pending: set[Transfer] = set()
        self._small: Transfer | None = None
        self._drained: asyncio.Future[None] | None = None
        self._closed: str | None = None
        self.n_sent = 0
        self.peer_is_idle = True

    def send(self, frames: Sequence[wire_format.Buffer], on_device: Collection[int] = ()) -> int:
        """Post one message and return its size in bytes.

        The frames must stay unchanged until they have left this process. Frames whose indices are
        in `on_device` arrive in GPU memory.

        Raises
        ------
        ChannelClosedError
            Where this end or the peer has closed, or MPI fails.
        """
        if self._closed is not None:
            raise ChannelClosedError(self._closed)
        header, large, nbytes = wire_format.pack(frames, on_device)
        send, rank, tag, byte = self._communicator.Isend, self._rank, self._tag, self._byte
        requests = []
        try:
            requests.append(send((header, byte), rank, tag))
            for buffer in large:
                for piece in wire_format.pieces(buffer):
                    requests.append(send((piece, byte), rank, tag))
            complete = not large and requests[0].Test()
            self.n_sent += 1
            if not complete:
                self._add(requests, header, large, nbytes)
        except BaseException as error:
            # Sends can't be withdrawn: the peer may wait for the rest of this message.
            self._engine.park([Transfer(requests, (header, large), nbytes, False, None)])
            reason = f"MPI could not send: {str(error) or repr(error)}"
            self._on_failure(reason)
            if not isinstance(error, Exception):
                INTERRUPTED.append((header, large))
                raise
            raise ChannelClosedError(reason) from error
        if self.peer_is_idle:
            self._control.record(Record.DOORBELL, self.n_sent)
        return nbytes

    def _add(self, requests: list[Any], header: bytes, large: Sequence[Any], nbytes: int) -> None:
        small = self._small
        if not large and small is not None and small in self._pending:
            # Thousands may wait for a peer that stands still: only the first is tested.
            self._engine.extend(small, requests[0], header, nbytes)
            return
        buffers = (header, large) if large else deque([header])
        transfer = Transfer(requests, buffers, nbytes, False, self._on_sent)
        if not large:
            self._small = transfer
        self._pending.add(transfer)
        self._engine.start(transfer)

    def _on_sent(self, transfer: Transfer, error: BaseException | None) -> None:
        if error is not None:
            # It parks this transfer, of which some requests may be incomplete.
            self._on_failure(f"MPI could not send: {error}")
        self._pending.discard(transfer)
        if not self._pending:
            wake(self._drained)
        self._on_drained()

    @property
    def empty(self) -> bool:
        """Whether everything sent has left this process."""
        return not self._pending

    @property
    def n_unsent(self) -> int:
        """The number of pieces that have not left this process."""
        return sum(len(transfer.requests) for transfer in self._pending)

    async def flush(self) -> None:
        """Wait until everything sent has left this process, or was abandoned."""
        if self._pending:
            self._drained = self._drained or self._engine.loop.create_future()
            await asyncio.shield(self._drained)

    def close(self, reason: str = "the connection is closed") -> None:
        """Refuse further messages."""
        self._closed = self._closed or reason

    def abandon(self, reason: str) -> None:
        """Refuse further messages with that reason, and park pending sends."""
        self._closed = reason
        pending, self._pending = self._pending, set()
        self._engine.park(pending)
        wake(self._drained)

"""The receiving half of a channel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from commbench.mpi import peer_failure, wire_format
from commbench.mpi.buffers import BUFFERS
from commbench.mpi.engine import Engine
from commbench.mpi.gpu_frames import Incoming
from commbench.mpi.transfers import INTERRUPTED, Transfer

__all__ = ["Receiver"]

MAX_DRAINED = 2**44
"""Whoever announces a message of more bytes lies, and has not sent that many pieces."""
DRAIN_S = 5.0
"""How long to wait for the pieces of a message that can't be received: its sender may be dead."""


class Receiver:
    """Receives one message at a time.

    It probes for a header with ``MPI_Improbe``: an idle connection has no request and no buffer,
    and nothing to cancel when it closes.

    Parameters
    ----------
    engine
        Progresses the transfers.
    communicator, rank, tag
        The source, and the tag that this end has allocated.
    peer_pid
        The process id of the source.
    mpi
        The module ``mpi4py.MPI``.
    on_message
        Called with the frames of each message.
    on_failure
        Called with the reason if a receive fails.
    """

    def __init__(
        self,
        engine: Engine,
        communicator: Any,
        rank: int,
        tag: int,
        peer_pid: int,
        mpi: Any,
        on_message: Callable[[list[memoryview]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._communicator = communicator
        self._rank = rank
        self._tag = tag
        self._peer_pid = peer_pid
        self._byte = mpi.BYTE
        self._status = mpi.Status()
        self._on_message = on_message
        self._on_failure = on_failure
        self._transfer: Transfer | None = None
        self._n_failures = 0
        self._abandoned = self._drains = False

    @property
    def busy(self) -> bool:
        """Whether a message has begun to arrive."""
        return self._transfer is not None

    def probe(self) -> None:
        """Start to receive the next message if its header has arrived."""
        status = self._status
        header: Any = None
        requests: list[Any] = []
        try:
            message = self._communicator.Improbe(self._rank, self._tag, status)
            if message is None:
                return
            nbytes = status.Get_count(self._byte)
            header = np.empty(nbytes, np.uint8).data
            self._n_failures = peer_failure.n_failures(self._peer_pid)
            requests.append(message.Irecv((header, self._byte)))
            if requests[0].Test() and peer_failure.n_failures(self._peer_pid) == self._n_failures:
                self._on_header(header)
            else:
                self._transfer = self._receives(nbytes, lambda: self._on_header(header))
                self._transfer.requests.extend(requests)
                self._transfer.buffers = header
                self._engine.start(self._transfer)
        except BaseException as error:
            if is_interrupt := not isinstance(error, Exception):
                INTERRUPTED.append(header)
            # The channel parks it: MPI may still write to the header.
            self._transfer = self._transfer or Transfer(requests, header, 0, True, None)
            self._on_failure(f"MPI could not receive: {str(error) or repr(error)}")
            if is_interrupt:
                raise

    def abandon(self, then: Callable[[], None]) -> None:
        """Cancel the receives of an incomplete message; call `then` when there are none."""
        self._abandoned = True
        if (transfer := self._transfer) is None:
            then()
        else:
            self._engine.park([transfer], then, cancel=not self._drains)
            if self._drains and not self._engine.loop.is_closed():
                self._engine.loop.call_later(DRAIN_S, transfer.cancel)

    def _receives(
        self, nbytes: int, then: Callable[[], None], post: Callable[[], bool] | None = None
    ) -> Transfer:
        """Return a transfer without requests yet; `then` is called when it is complete."""

        def on_done(_: Transfer, error: BaseException | None) -> None:
            self._transfer = None
            if error is not None:
                self._on_failure(f"MPI could not receive: {error}")
            elif peer_failure.n_failures(self._peer_pid) != self._n_failures:
                self._on_failure("the peer went away in the middle of a message")
            elif not self._abandoned:
                then()

        return Transfer([], None, nbytes, True, on_done, post)

    def _on_header(self, header: memoryview) -> None:
        try:
            layout = wire_format.Layout(header)
            frames = None if layout.large_sizes else layout.frames(())
        except Exception as error:  # noqa: BLE001 - the engine must go on for all other channels
            self._on_failure(f"what arrived can't be read: {error!r}")
            return
        if frames is not None:
            self._on_message(frames)
            return
        parts: list[Any] = []
        transfer = self._receives(
            sum(layout.large_sizes),
            lambda: self._on_parts(layout, parts),
            lambda: self._post(transfer, layout, parts),
        )
        # Before it starts, for it may be done within the call.
        self._transfer = transfer
        self._engine.admit(transfer)

    def _post(self, transfer: Transfer, layout: wire_format.Layout, parts: list[Any]) -> bool:
        receive, rank, tag = self._communicator.Irecv, self._rank, self._tag
        self._n_failures = peer_failure.n_failures(self._peer_pid)
        try:
            for size, on_device in zip(layout.large_sizes, layout.on_device, strict=True):
                parts.append(Incoming(size) if on_device else BUFFERS.take(size))
            transfer.buffers = [getattr(part, "buffer", part) for part in parts]
            for buffer in transfer.buffers:
                for piece in wire_format.pieces(buffer):
                    transfer.requests.append(receive((piece, self._byte), rank, tag))
        except BaseException as error:
            if is_interrupt := not isinstance(error, Exception):
                INTERRUPTED.append(parts)
            elif transfer.nbytes < MAX_DRAINED:
                # A peer that lives keeps what it sends until that is received, be it truncated.
                self._drains = True
                n_pieces = sum(len(wire_format.pieces(range(size))) for size in layout.large_sizes)
                with suppress(Exception):
                    while len(transfer.requests) < n_pieces:
                        transfer.requests.append(receive((bytearray(), self._byte), rank, tag))
            self._on_failure(f"MPI could not receive: {error!r}")
            if is_interrupt:
                raise
            return False
        return True

    def _on_parts(self, layout: wire_format.Layout, parts: list[Any]) -> None:
        try:
            frames = layout.frames(
                [part.finish() if isinstance(part, Incoming) else part for part in parts]
            )
        except Exception as error:  # noqa: BLE001 - the engine must go on for all other channels
            self._on_failure(f"what arrived can't be copied: {error!r}")
            return
        self._on_message(frames)

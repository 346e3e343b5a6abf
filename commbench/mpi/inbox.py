"""The receiving half of a channel: finds a message, and puts it together from its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commbench.mpi import survival, wire
from commbench.mpi.buffers import BUFFERS
from commbench.mpi.device import Incoming
from commbench.mpi.engine import Engine
from commbench.mpi.transfer import Transfer

__all__ = ["Inbox"]


class Inbox:
    """Receives one message at a time, whether or not somebody waits for it.

    It looks for a header with ``MPI_Improbe``, so an idle connection holds no request and no
    buffer, and has nothing to cancel when it closes.

    Parameters
    ----------
    engine
        Sees the transfers to their end.
    communicator, rank, tag
        Where the messages come from, and the tag that this end allocated.
    peer_pid
        The process there.
    mpi
        The module ``mpi4py.MPI``.
    on_message
        Called with the frames of a message.
    on_failure
        Called with the reason why no more can be received.
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
        self._given_up = False

    @property
    def busy(self) -> bool:
        """Whether a message has begun to arrive."""
        return self._transfer is not None

    def look(self) -> None:
        """Begin to receive the next message if its header is there."""
        status = self._status
        try:
            message = self._communicator.Improbe(self._rank, self._tag, status)
            if message is None:
                return
            nbytes = status.Get_count(self._byte)
            header = memoryview(bytearray(nbytes))
            n_failures = survival.n_failures(self._peer_pid)
            request = message.Irecv((header, self._byte))
            complete = request.Test()
        except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
            self._on_failure(f"MPI could not receive: {error}")
            return
        if complete and survival.n_failures(self._peer_pid) == n_failures:
            self._on_header(header)
        else:
            self._start([request], header, nbytes, self._on_header, n_failures)

    def give_up(self) -> None:
        """Let go of what has begun to arrive."""
        self._given_up = True
        if self._transfer is not None:
            self._transfer.cancel()
            self._engine.park(self._transfer)

    def _start(
        self,
        requests: list[Any],
        buffers: Any,
        nbytes: int,
        then: Callable[[Any], None],
        n_failures: int,
    ) -> None:

        def on_done(_: Transfer, error: BaseException | None) -> None:
            self._transfer = None
            if error is not None:
                self._on_failure(f"MPI could not receive: {error}")
            elif survival.n_failures(self._peer_pid) != n_failures:
                self._on_failure("the peer went away in the middle of a message")
            elif not self._given_up:
                then(buffers)

        # Before it starts, for it may be done within the call.
        self._transfer = Transfer(requests, buffers, nbytes, True, on_done)
        self._engine.start(self._transfer)

    def _on_header(self, header: memoryview) -> None:
        try:
            layout = wire.Layout(header)
            parts = [
                Incoming(size) if on_device else BUFFERS.take(size)
                for size, on_device in zip(layout.large_sizes, layout.on_device, strict=True)
            ]
        except Exception as error:  # noqa: BLE001 - the engine must go on for all other channels
            self._on_failure(f"what arrived can't be read: {error!r}")
            return
        if not parts:
            self._on_message(layout.frames(()))
            return
        buffers = [part.buffer if isinstance(part, Incoming) else part for part in parts]
        n_failures = survival.n_failures(self._peer_pid)
        nbytes = sum(layout.large_sizes)
        receive, rank, tag = self._communicator.Irecv, self._rank, self._tag
        requests: list[Any] = []
        try:
            for buffer in buffers:
                requests.append(receive((buffer, self._byte), rank, tag))
        except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
            # MPI may still write into those that it has taken.
            begun = Transfer(requests, buffers, nbytes, True, lambda *_: None)
            begun.cancel()
            self._engine.park(begun)
            self._on_failure(f"MPI could not receive: {error}")
            return
        self._start(
            requests,
            buffers,
            nbytes,
            lambda _: self._on_parts(layout, parts),
            n_failures,
        )

    def _on_parts(self, layout: wire.Layout, parts: list[Any]) -> None:
        try:
            frames = [part.finish() if isinstance(part, Incoming) else part for part in parts]
        except Exception as error:  # noqa: BLE001 - the engine must go on for all other channels
            self._on_failure(f"what arrived can't be copied to the GPU: {error!r}")
            return
        self._on_message(layout.frames(frames))

"""The TCP connection of a channel: handshake, doorbell, liveness and close.

MPI does not report a killed peer, and a process that sleeps in its event loop does not notice an
MPI message. This connection does both: the kernel closes it when the peer dies, and a *record* of
9 bytes wakes the peer. Each record carries a count of messages, so that it means the same whenever
it arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol, cast

from distributed.comm.addressing import unparse_host_port
from distributed.comm.tcp import set_tcp_timeout

from commbench.mpi.handshake import (
    HEADER,
    MAC_BYTES,
    MAGIC,
    Kind,
    MismatchError,
    ProtocolError,
    RefusedError,
    decode_body,
    decode_header,
    encode,
    shortened,
)

__all__ = ["Control", "Record", "RecordHandler", "wake"]

_RECORD = struct.Struct("<BQ")
_MAX_UNREAD = 1024
"""How many handshake messages may wait to be read: there are never that many."""
_MAX_UNREAD_BYTES = 1 << 18
"""How many bytes may wait behind READY: asyncio reads no more than that at once."""


class Record(enum.IntEnum):
    """A record: its kind, and a count of messages."""

    DOORBELL = 1
    """The sender has sent `count` messages: poll for them."""
    IDLE = 2
    """The receiver has `count` messages and does not poll: ring for each. The initial state."""
    POLLING = 3
    """The receiver has `count` messages and polls for the next: don't ring."""
    CLOSE = 4
    """The sender has sent `count` messages, and sends no more."""


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Complete the future that a coroutine awaits, if there is one."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class RecordHandler(Protocol):
    """The receiver of records: the channel."""

    def on_record(self, record: Record, count: int) -> None:
        """Handle a record from the peer."""

    def on_lost(self, reason: str) -> None:
        """Handle the loss of the connection."""


class Control(asyncio.Protocol):
    """One end of the connection.

    Parameters
    ----------
    loop
        The event loop of the connection.
    on_made
        Called with the connection once it is made.
    key
        The key of the HMAC in the handshake's messages.

    Attributes
    ----------
    error
        The reason why the connection is gone, if it is.
    on_closed
        Called when the connection is gone, if given.
    keep_open
        Whether `close` and `abort` do nothing: after a failed ``MPI_Comm_connect`` the peer still
        needs it.
    finishing
        The task that waits for the peer after such a failure.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_made: Any = None, key: bytes = b""
    ) -> None:
        self.loop = loop
        self._on_made = on_made
        self._key = key
        self.keep_open = False
        self.on_closed: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._messages: list[tuple[Kind, dict[str, Any]]] = []
        self._reader: asyncio.Future[None] | None = None
        self._handler: RecordHandler | None = None
        self.error: OSError | None = None
        self.finishing: asyncio.Task[None] | None = None
        self._is_ready = False
        self.local_address = self.peer_address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket as Dask's tcp does: its time-outs detect a dead host."""
        # uvloop's transports have no such base class.
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        set_tcp_timeout(SimpleNamespace(closed=lambda: False, socket=sock))
        try:
            self.local_address = unparse_host_port(*sock.getsockname()[:2])
            self.peer_address = unparse_host_port(*sock.getpeername()[:2])
        except OSError:
            # The peer is gone already: connection_lost comes next.
            self._transport.abort()
            return
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Parse messages of the handshake, or records once a channel is attached."""
        self._received += data
        try:
            if self._handler is not None:
                self._parse_records(self._handler)
            else:
                if not self._is_ready:
                    self._parse_messages()
                if len(self._received) > _MAX_UNREAD_BYTES:
                    raise ProtocolError("a handshake without end")
        except MismatchError as error:
            self._fail(error)
            # With an HMAC of the key a stranger could test guesses.
            self._key = b""
            self.send(Kind.REFUSE, reason=shortened(str(error)))
            self.close()
        except ProtocolError as error:
            self._fail(error)
            self.abort()

    def _parse_messages(self) -> None:
        while len(self._received) >= HEADER.size:
            kind, length = decode_header(self._received[: HEADER.size])
            end = HEADER.size + length + MAC_BYTES
            if len(self._received) < end:
                return
            self._messages.append((kind, decode_body(self._received[:end], self._key)))
            del self._received[:end]
            wake(self._reader)
            if kind is Kind.READY:
                # What follows are records, for the channel that is about to be made.
                self._is_ready = True
                return
            if len(self._messages) > _MAX_UNREAD:
                raise ProtocolError("a handshake without end")

    def _parse_records(self, handler: RecordHandler) -> None:
        while len(self._received) >= _RECORD.size and self._transport is not None:
            code, count = _RECORD.unpack_from(self._received)
            del self._received[: _RECORD.size]
            if code not in Record._value2member_map_:
                # FAILED may follow READY.
                gave_up = code == MAGIC[0]
                raise ProtocolError("the peer gave up" if gave_up else f"a record of kind {code}")
            handler.on_record(Record(code), count)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake up the reader, and report the loss."""
        self._transport = None
        self._fail(OSError(str(exc) if exc else "the peer closed the connection"))
        if self.on_closed is not None:
            self.on_closed()

    def _fail(self, error: OSError) -> None:
        if self.error is None:
            self.error = error
            wake(self._reader)
            if self._handler is not None:
                self._handler.on_lost(str(error))

    def send(self, kind: Kind, **body: Any) -> None:
        """Send one message of the handshake."""
        if self._transport is not None:
            self._transport.write(encode(kind, body, self._key))

    async def receive(self, *expected: Kind) -> tuple[Kind, dict[str, Any]]:
        """Return the next message of the handshake.

        Raises
        ------
        ProtocolError
            Where it is not of an expected kind.
        OSError
            Where the connection ends.
        RefusedError
            Where the peer refuses, with its reason.
        """
        while not self._messages:
            self.raise_if_failed()
            self._reader = self.loop.create_future()
            await self._reader
        self.raise_if_failed()
        kind, body = self._messages.pop(0)
        if kind not in expected:
            raise ProtocolError(f"the peer sent {kind.name} out of order")
        return kind, body

    async def receive_last(self) -> None:
        """Receive until the peer fails or refuses, or its end of the connection is closed."""
        with contextlib.suppress(OSError):
            while True:
                await self.receive(*Kind)

    def raise_if_failed(self) -> None:
        """Raise what `receive` would raise now."""
        if self._messages:
            kind, body = self._messages[0]
            if kind is Kind.REFUSE:
                raise RefusedError(str(body.get("reason")))
            if kind is Kind.FAILED:
                raise OSError(f"the peer could not meet: {body.get('reason')}")
        elif self.error is not None:
            raise self.error

    def raise_if_lost(self) -> None:
        """Raise what `raise_if_failed` raises, or that the connection is gone."""
        self.raise_if_failed()
        if self.error is not None:
            raise self.error

    def attach(self, handler: RecordHandler) -> None:
        """End the handshake: pass records to `handler` from now on."""
        self._handler = handler
        if self.error is not None:
            handler.on_lost(str(self.error))
        else:
            self.data_received(b"")

    def record(self, record: Record, count: int) -> None:
        """Send a record."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_RECORD.pack(record, count))

    def duplicate(self) -> int:
        """Return a duplicate of the socket's descriptor: it keeps the connection open.

        Raises
        ------
        OSError
            Where the connection is gone, or no more descriptors can be opened.
        """
        if self._transport is None:
            raise self.error or OSError("not connected")
        return os.dup(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        """Close once what was sent has left."""
        if (transport := self._closable()) is not None:
            transport.close()

    def abort(self) -> None:
        """Close at once."""
        if (transport := self._closable()) is not None:
            transport.abort()

    def _closable(self) -> asyncio.Transport | None:
        # With a closed event loop, the garbage collector closes the socket.
        if self._transport is None or self.keep_open or self.loop.is_closed():
            return None
        return self._transport

"""Endpoints of TCP with TCP_NODELAY: tornado's streams, and blocking sockets (``raw``)."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.tcpclient import TCPClient
from tornado.tcpserver import TCPServer

from commbench.backends.endpoints import Endpoint, Endpoints, Handler

_MAX_BUFFER_BYTES = sys.maxsize
"""No limit: tornado's default closes a stream that gets a message above 100 MiB."""


class _TcpEndpoint(Endpoint):
    """A stream or a socket, and the addresses of the socket."""

    def __init__(self, connection: Any, used: socket.socket) -> None:
        self._connection = connection
        self.local_address, self.peer_address = (
            "tcp://{}:{}".format(*name[:2]) for name in (used.getsockname(), used.getpeername())
        )

    async def receive_window(self, buffer: Any, count: int) -> None:
        for _ in range(count):
            await self.receive(buffer)

    def abort(self) -> None:
        self._connection.close()

    async def close(self) -> None:
        self._connection.close()


class StreamEndpoint(_TcpEndpoint):
    """A tornado stream, as below Dask's comms; ``read_into`` fills the caller's buffer."""

    def __init__(self, stream: IOStream) -> None:
        stream.set_nodelay(True)
        super().__init__(stream, stream.socket)

    async def send(self, buffer: Any) -> None:  # noqa: D102
        await self._connection.write(buffer.data)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        await self._connection.read_into(buffer.data)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        # A stream allows one reader at a time.
        for _ in range(count):
            await self.send(buffer)


@asynccontextmanager
async def _listen_streams(handler: Handler, ip: str) -> AsyncIterator[str]:
    """Listen on the interface of an IP address."""

    class Server(TCPServer):
        async def handle_stream(self, stream: IOStream, address: Any) -> None:
            del address
            await handler(StreamEndpoint(stream))

    (listener,) = bind_sockets(0, ip)
    server = Server(max_buffer_size=_MAX_BUFFER_BYTES)
    server.add_socket(listener)
    try:
        yield "{}:{}".format(*listener.getsockname())
    finally:
        server.stop()


async def _connect_stream(address: str) -> StreamEndpoint:
    """Connect to a listener."""
    host, _, port = address.partition(":")
    stream = await TCPClient().connect(host, int(port), max_buffer_size=_MAX_BUFFER_BYTES)
    return StreamEndpoint(stream)


class BlockingTcpEndpoint(_TcpEndpoint):
    """A blocking socket: one ``sendall``, and ``recv_into`` until the buffer is full.

    The coroutines never suspend, so the event loop does not run between two messages.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(connection, connection)
        self._sendall, self._recv_into = connection.sendall, connection.recv_into

    async def send(self, buffer: Any) -> None:  # noqa: D102
        self._sendall(buffer)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        n_received = self._recv_into(buffer)
        if n_received < buffer.nbytes:
            self._receive_rest(buffer, n_received)

    def _receive_rest(self, buffer: Any, n_received: int) -> None:
        view = memoryview(buffer)
        while n_received < len(view):
            n_more = self._recv_into(view[n_received:])
            if not n_more:
                raise ConnectionError("the peer closed the connection")
            n_received += n_more

    async def ping(self, message: Any, reply: Any) -> None:  # noqa: D102
        self._sendall(message)
        n_received = self._recv_into(reply)
        if n_received < reply.nbytes:
            self._receive_rest(reply, n_received)

    async def pong(self, buffer: Any) -> None:  # noqa: D102
        n_received = self._recv_into(buffer)
        if n_received < buffer.nbytes:
            self._receive_rest(buffer, n_received)
        self._sendall(buffer)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        for _ in range(count):
            self._sendall(buffer)

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:
        """Send and receive in turns, each as far as possible without blocking.

        If each end sent everything first, both would block in ``sendall``.
        """
        outgoing, incoming = memoryview(sent), memoryview(received)
        size = len(outgoing)
        n_sent = n_received = 0
        end = size * count
        both = select.poll()
        both.register(self._connection, select.POLLIN | select.POLLOUT)
        only_in = select.poll()
        only_in.register(self._connection, select.POLLIN)
        while n_sent < end or n_received < end:
            moved = 0
            if n_sent < end:
                try:
                    moved = self._connection.send(outgoing[n_sent % size :], socket.MSG_DONTWAIT)
                    n_sent += moved
                except BlockingIOError:
                    pass
            if n_received < end:
                try:
                    n_more = self._recv_into(incoming[n_received % size :], 0, socket.MSG_DONTWAIT)
                    if not n_more:
                        raise ConnectionError("the peer closed the connection")
                    n_received += n_more
                    moved += n_more
                except BlockingIOError:
                    pass
            if not moved:
                (both if n_sent < end else only_in).poll()


@asynccontextmanager
async def _listen_blocking(handler: Handler, ip: str) -> AsyncIterator[str]:
    """Listen on the interface of an IP address, for one connection."""
    loop = asyncio.get_running_loop()
    with socket.create_server((ip, 0)) as listener:
        listener.setblocking(False)

        async def serve() -> None:
            connection, _ = await loop.sock_accept(listener)
            with connection:
                await handler(BlockingTcpEndpoint(connection))

        serving = asyncio.create_task(serve())
        yield "{}:{}".format(*listener.getsockname())
        serving.cancel()


async def _connect_blocking(address: str) -> BlockingTcpEndpoint:
    """Connect to a listener."""
    host, _, port = address.partition(":")
    return BlockingTcpEndpoint(socket.create_connection((host, int(port))))


TCP_STREAMS = Endpoints(_listen_streams, _connect_stream)
BLOCKING_TCP = Endpoints(_listen_blocking, _connect_blocking)

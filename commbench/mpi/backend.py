"""The connector, listener and backend of ``mpi://host:port`` addresses.

The address is that of a TCP listener, with all of tcp's rules for hosts, ports and interfaces.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed.comm.addressing import get_address_host, parse_host_port, unparse_host_port
from distributed.comm.core import (
    BaseListener,
    CommClosedError,
    Connector,
    FatalCommClosedError,
)
from distributed.comm.tcp import BaseTCPBackend, RequireEncryptionMixin
from distributed.comm.utils import ensure_concrete_host
from distributed.utils import get_ip
from tornado import netutil

from commbench.errors import UnavailableError
from commbench.mpi import gpu_frames
from commbench.mpi.channel import Channel
from commbench.mpi.comm import MPIComm
from commbench.mpi.control import Control
from commbench.mpi.engine import Engine
from commbench.mpi.handshake import Hello, MismatchError, RefusedError
from commbench.mpi.libraries import WHAT
from commbench.mpi.pairing import introduce, share_communicator
from commbench.mpi.pairs import release_dead_soon
from commbench.mpi.runtime import runtime

__all__ = ["MPIBackend", "MPIConnector", "MPIListener"]

logger = logging.getLogger(__name__)

PREFIX = "mpi://"
_NOBODY = -1
"""The pid of no process."""


def _key() -> bytes:
    key = dask.config.get("distributed.comm.mpi.key", default=None)
    # Dask reads a variable of 000 as the number 0.
    return b"" if key is None else str(key).encode()


def _check_timeout() -> None:
    """Refuse what distributed's `set_tcp_timeout` asserts: in a callback that error is lost."""
    timeout = dask.config.get("distributed.comm.timeouts.tcp")
    if parse_timedelta(timeout) < 11:
        raise UnavailableError(
            WHAT, f"distributed.comm.timeouts.tcp is {timeout}", "set it to 11s or more"
        )


async def _establish(
    control: Control, *, connects: bool, local: str, peer: str, deserialize: bool
) -> MPIComm:
    mpi = runtime()
    tag = mpi.tags.allocate()
    # What a scheduler has received it must be able to send on over any connection.
    gpu_memory = gpu_frames.path() if deserialize else gpu_frames.HOST
    hello = Hello(
        process=mpi.process, mode=mpi.mode, library=mpi.library, world=mpi.world, rank=mpi.rank,
        host=mpi.host, pid=mpi.pid, tag=tag, gpu_memory=gpu_memory, nonce=secrets.token_hex(16),
    )  # fmt: skip
    control.on_closed = release_dead_soon
    try:
        theirs, mode = await introduce(control, mpi, hello, connects=connects)
        pair = await share_communicator(mpi, hello, theirs, mode, control)
    except BaseException:
        mpi.tags.release(tag)
        raise
    # Another event loop of this process may be closed before it sees what a dead peer has left.
    release_dead_soon()
    channel = Channel(
        Engine.for_loop(asyncio.get_running_loop()),
        control,
        pair.communicator,
        pair.rank,
        # Processes of other hosts and containers may have the same pid.
        peer_pid=theirs.pid if theirs.host == mpi.host else _NOBODY,
        send_tag=theirs.tag,
        receive_tag=tag,
        mpi=mpi.mpi,
        release=lambda: mpi.tags.release(tag),
    )
    return MPIComm(
        channel,
        local_address=PREFIX + local,
        peer_address=PREFIX + peer,
        deserialize=deserialize,
        mode=mode,
        library=mpi.library,
        gpu_memory=gpu_frames.agreed(gpu_memory, theirs.gpu_memory),
    )


def _facing_scheduler(comm_handler: Any) -> str | None:
    """Return this host's address towards the scheduler, if the handler is that of a worker.

    `distributed.Worker` says this itself to listeners of tcp and tls, and to no other.
    """
    scheduler = getattr(getattr(comm_handler, "__self__", None), "scheduler", None)
    address = getattr(scheduler, "address", None)
    return str(get_ip(get_address_host(address))) if isinstance(address, str) else None


class MPIConnector(Connector, RequireEncryptionMixin):  # type: ignore[misc]
    """Connects to ``mpi://`` addresses."""

    prefix = PREFIX
    encrypted = False

    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> MPIComm:
        """Return a connection to the listener at `address`, given without ``mpi://``.

        Raises
        ------
        UnavailableError
            If MPI can't be used in this process, or Dask's time-out of TCP is too short.
        FatalCommClosedError
            If the two processes can't connect, however often they try.
        CommClosedError
            If the peer can't be reached, or goes away.
        """
        self._check_encryption(address, connection_args)
        _check_timeout()
        host, port = parse_host_port(address)
        loop = asyncio.get_running_loop()
        control = Control(loop, key=_key())
        try:
            await loop.create_connection(lambda: control, host, port)
            runtime(parse_host_port(control.local_address)[0])
            return await _establish(
                control,
                connects=True,
                local=control.local_address,
                peer=address,
                deserialize=deserialize,
            )
        except (RefusedError, MismatchError) as error:
            control.abort()
            # "This process" is that one.
            says = "; in its words" if isinstance(error, RefusedError) else ""
            raise FatalCommClosedError(f"{PREFIX}{address} refuses{says}: {error}") from error
        except OSError as error:
            control.abort()
            if isinstance(error, CommClosedError):
                raise
            raise CommClosedError(f"in {self}: {type(error).__name__}: {error}") from error
        except BaseException:
            control.abort()
            raise


class MPIListener(BaseListener, RequireEncryptionMixin):  # type: ignore[misc]
    """Listens on a TCP port for peers that connect over MPI."""

    prefix = PREFIX
    encrypted = False

    def __init__(
        self,
        address: str,
        comm_handler: Callable[[MPIComm], Awaitable[None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        self._check_encryption(address, connection_args)
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self._servers: list[asyncio.Server] | None = None
        self._bound: tuple[str, int] | None = None
        self._handshakes: set[asyncio.Task[MPIComm | None]] = set()
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start MPI and listen.

        Raises
        ------
        UnavailableError
            If MPI can't be used in this process, or Dask's time-out of TCP is too short.
        """
        _check_timeout()
        runtime(self.ip)
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        for attempt in range(5):
            try:
                sockets = netutil.bind_sockets(self.port, address=self.ip, backlog=backlog)
                break
            except OSError as error:
                # An ephemeral port that is free for IPv4 may be taken for IPv6.
                if self.port != 0 or error.errno != errno.EADDRINUSE or attempt == 4:
                    raise
        loop, key = asyncio.get_running_loop(), _key()
        self._bound = min(sockets, key=lambda sock: sock.family).getsockname()[:2]
        self._servers = [
            await loop.create_server(
                lambda: Control(loop, self._on_control, key),
                sock=sock, backlog=backlog, start_serving=False,
            )
            for sock in sockets
        ]  # fmt: skip
        try:
            for server in self._servers:
                if self._servers:  # `stop` may come meanwhile
                    await server.start_serving()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop listening, and refuse connections whose handshake is not complete."""
        servers, self._servers = self._servers, None
        for server in servers or ():
            server.close()
        for task in self._handshakes:
            task.cancel()

    def _on_control(self, control: Control) -> None:
        if self._servers is None:
            control.abort()
            return
        loop = asyncio.get_running_loop()
        handshake = loop.create_task(self._shake_hands(control))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)
        task = loop.create_task(self._handle(control, handshake))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _handle(self, control: Control, handshake: asyncio.Task[MPIComm | None]) -> None:
        try:
            comm = await handshake
        except asyncio.CancelledError:
            # The listener has stopped before the handshake began.
            control.abort()
            return
        if comm is None:
            return
        if self._servers is None:
            comm.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("%s went away in Dask's handshake", comm.peer_address)
            return
        await self.comm_handler(comm)

    async def _shake_hands(self, control: Control) -> MPIComm | None:
        timeout = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
        try:
            async with asyncio.timeout(timeout):
                comm = await _establish(
                    control,
                    connects=False,
                    local=control.local_address,
                    peer=control.peer_address,
                    deserialize=self.deserialize,
                )
        except (FatalCommClosedError, MismatchError) as error:
            logger.warning("Refused %s: %s", control.peer_address, error)
            control.close()
            return None
        except (asyncio.CancelledError, OSError) as error:
            logger.info("No mpi:// connection from %s: %r", control.peer_address, error)
        except Exception:
            # Any fault of the peer must only cost this connection.
            logger.exception("No mpi:// connection from %s", control.peer_address)
        else:
            comm.allow_offload = self.allow_offload
            return comm
        control.abort()
        return None

    def get_host_port(self) -> tuple[str, int]:
        """Return the host and the port that this listens on.

        Raises
        ------
        ValueError
            Before `start` and after `stop`.
        """
        if self._servers is None or self._bound is None:
            raise ValueError("invalid operation on non-started MPIListener")
        return self._bound

    @property
    def listen_address(self) -> str:
        """The address listened on; ``0.0.0.0`` means all interfaces."""
        return PREFIX + str(unparse_host_port(*self.get_host_port()))

    @property
    def contact_address(self) -> str:
        """An address that others can connect to."""
        host, port = self.get_host_port()
        default = self.default_host or _facing_scheduler(self.comm_handler)
        host = ensure_concrete_host(host, default_host=default)
        return PREFIX + str(unparse_host_port(host, port))


class MPIBackend(BaseTCPBackend):  # type: ignore[misc]
    """The backend that distributed's registry has for ``mpi://``."""

    _connector_class = MPIConnector
    _listener_class = MPIListener

"""Endpoints of MPI, made from ``mpi://`` connections: with coroutines, or with blocking loops in C.

The loops are in C because a call of mpi4py takes as long as a small message of MPI.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from distributed.comm import connect as dask_connect
from distributed.comm import listen as dask_listen

from commbench.backends.endpoints import Endpoint, Endpoints, Handler, repeats
from commbench.backends.mpi import compiler
from commbench.errors import LaunchError, VerificationError
from commbench.mpi import gpu_frames
from commbench.mpi.libraries import loaded
from commbench.mpi.runtime import runtime
from commbench.mpi.transfers import Transfer

_FUNCTIONS = ("MPI_Send_c", "MPI_Recv_c", "MPI_Isend_c", "MPI_Irecv_c", "MPI_Waitall")


class _CommEndpoint(Endpoint):
    """One end of a pair, on separate tags of an ``mpi://`` connection, which stays open.

    It does not detect a dead peer: reading from the connection does.
    """

    def __init__(self, comm: Any, send_tag: int, receive_tag: int) -> None:
        self._comm, self._send_tag, self._receive_tag = comm, send_tag, receive_tag
        self.extra_info = comm.extra_info
        self.takes_gpu = comm.extra_info["gpu_memory"] == gpu_frames.DIRECT
        self.local_address, self.peer_address = comm.local_address, comm.peer_address

    @classmethod
    async def from_comm(cls, comm: Any) -> Self:
        """Agree on tags over `comm`; both ends must call this."""
        receive_tag = runtime().tags.allocate()
        await comm.write({"tag": receive_tag})
        return cls(comm, (await comm.read())["tag"], receive_tag)

    async def close(self) -> None:
        """Release the tag; both ends must have received everything sent to them."""
        runtime().tags.release(self._receive_tag)
        await self._comm.close()


class MpiEndpoint(_CommEndpoint):
    """``Isend`` and ``Irecv``, with the peer of an ``mpi://`` connection."""

    def __init__(self, comm: Any, send_tag: int, receive_tag: int) -> None:
        super().__init__(comm, send_tag, receive_tag)
        channel = comm.channel
        self._rank, self._engine = channel.rank, channel.engine
        self._complete = channel.engine.complete
        self._isend, self._irecv = channel.communicator.Isend, channel.communicator.Irecv

    async def send(self, buffer: Any) -> None:  # noqa: D102
        request = self._isend(buffer, self._rank, self._send_tag)
        await self._complete(request, buffer, receives=False)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        request = self._irecv(buffer, self._rank, self._receive_tag)
        await self._complete(request, buffer, receives=True)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        await self._exchange(buffer, 0, buffer, count)

    async def receive_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        await self._exchange(buffer, count, buffer, 0)

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:  # noqa: D102
        await self._exchange(received, count, sent, count)

    async def _exchange(self, received: Any, n_received: int, sent: Any, n_sent: int) -> None:
        """Have all messages in flight, then await them: ``complete`` tests one at a time."""
        posted: deque[tuple[Any, Any, bool]] = deque()
        try:
            for _ in range(n_received):
                request = self._irecv(received, self._rank, self._receive_tag)
                posted.append((request, received, True))
            for _ in range(n_sent):
                posted.append((self._isend(sent, self._rank, self._send_tag), sent, False))
            while posted:
                request, buffer, receives = posted.popleft()
                await self._complete(request, buffer, receives=receives)
        except BaseException:
            self._engine.park(
                [Transfer([each], buffer, buffer.nbytes, way, None) for each, buffer, way in posted]
            )
            raise


class _Line(ctypes.Structure):
    """``struct line`` of mpi_loops.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("send", "recv", "isend", "irecv", "waitall")),
        ("byte", ctypes.c_size_t),
        ("communicator", ctypes.c_size_t),
        ("request_bytes", ctypes.c_int64),
        ("rank", ctypes.c_int),
        ("send_tag", ctypes.c_int),
        ("receive_tag", ctypes.c_int),
    )


class BlockingMpiEndpoint(_CommEndpoint):
    """``MPI_Send`` and ``MPI_Recv``, with the peer of an ``mpi://`` connection."""

    def __init__(self, comm: Any, send_tag: int, receive_tag: int) -> None:
        super().__init__(comm, send_tag, receive_tag)
        mpi, channel = runtime().mpi, comm.channel
        (library,) = loaded("libmpi")
        functions = ctypes.CDLL(library)
        self._line = _Line(
            *(ctypes.cast(getattr(functions, name), ctypes.c_void_p) for name in _FUNCTIONS),
            byte=mpi._handleof(mpi.BYTE),
            communicator=mpi._handleof(channel.communicator),
            request_bytes=mpi._sizeof(mpi.Request),
            rank=channel.rank,
            send_tag=send_tag,
            receive_tag=receive_tag,
        )
        self._at = ctypes.byref(self._line)
        self._loops = compile_and_load(Path(__file__).with_name("mpi_loops.c"))
        self._addresses: list[tuple[Any, int]] = []

    def _address(self, buffer: Any) -> ctypes.c_void_p:
        # Reading an array's address takes as long as a message.
        for known, address in self._addresses:
            if known is buffer:
                return ctypes.c_void_p(address)
        on_gpu = gpu_frames.is_device(buffer)
        address = buffer.data.ptr if on_gpu else buffer.ctypes.data
        self._addresses = [(buffer, address), *self._addresses[:2]]
        return self._address(buffer)

    def _done(self, error: int) -> None:
        if error == -1:
            raise VerificationError("MPI's reply differs from what was sent")
        if error:
            raise LaunchError(f"MPI failed with error {error}")

    def round_trips(self, size: int) -> int:
        """Return enough round trips to make Python's part of a sample negligible."""
        return repeats(size)

    async def ping(self, message: Any, reply: Any) -> None:  # noqa: D102
        size = message.nbytes
        self._done(
            self._loops.ping(
                self._at, self._address(message), self._address(reply), ctypes.c_int64(size),
                ctypes.c_int64(self.round_trips(size)),
            )
        )  # fmt: skip

    async def pong(self, buffer: Any) -> None:  # noqa: D102
        size = buffer.nbytes
        count = ctypes.c_int64(self.round_trips(size))
        self._done(self._loops.pong(self._at, self._address(buffer), ctypes.c_int64(size), count))

    async def send(self, buffer: Any) -> None:  # noqa: D102
        self._windows(buffer, 1, buffer, 0)

    async def receive(self, buffer: Any) -> None:  # noqa: D102
        self._windows(buffer, 0, buffer, 1)

    async def send_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        self._windows(buffer, count, buffer, 0)

    async def receive_window(self, buffer: Any, count: int) -> None:  # noqa: D102
        self._windows(buffer, 0, buffer, count)

    async def cross_windows(self, sent: Any, received: Any, count: int) -> None:  # noqa: D102
        self._windows(sent, count, received, count)

    def _windows(self, sent: Any, n_sent: int, received: Any, n_received: int) -> None:
        self._done(
            self._loops.windows(
                self._at, self._address(sent), ctypes.c_int64(n_sent), self._address(received),
                ctypes.c_int64(n_received), ctypes.c_int64(sent.nbytes),
            )
        )  # fmt: skip


def _endpoints(kind: type[_CommEndpoint]) -> Endpoints:
    @asynccontextmanager
    async def listen(handler: Handler, ip: str) -> AsyncIterator[str]:
        async def serve(comm: Any) -> None:
            await handler(await kind.from_comm(comm))

        async with dask_listen(f"mpi://{ip}:0", serve) as listener:
            yield listener.contact_address

    async def connect(address: str) -> Endpoint:
        return await kind.from_comm(await dask_connect(address))

    return Endpoints(listen, connect)


def compile_and_load(source: Path) -> ctypes.CDLL:
    """Compile `source` and load it into this process, or raise a LaunchError."""
    with tempfile.TemporaryDirectory(prefix="commbench-") as folder:
        library = Path(folder) / f"{source.stem}.so"
        command = [compiler() or "cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise LaunchError(f"{command[0]} can't be run: {error.strerror}") from error
        if done.returncode:
            raise LaunchError(f"{' '.join(command)} failed: {done.stderr.strip()[:500]}")
        # The file is not needed after loading.
        return ctypes.CDLL(str(library))


AWAITED, BLOCKING = _endpoints(MpiEndpoint), _endpoints(BlockingMpiEndpoint)

"""``MPI_Comm_connect`` in a thread: make a communicator of two processes started separately.

Both ends call it, each with the port of the other and a common tag. Neither calls
``MPI_Comm_accept``: MPICH 5.0 waits in it with a lock that every other MPI call needs, so that a
peer which dies at that moment stops all traffic. ``MPI_Comm_connect`` holds the lock until its
first message has left, which within a host is at once unless the peer's queue is full. Then it
releases the lock between polls.

What can fail in ``MPI_Comm_connect``, and how it is handled:

- The peer dies before the call: MPICH ignores that it could not attach the peer's memory, and uses
  an endpoint that does not exist. So that memory is attached first, until the call returns.
- The peer dies or stops in the call: each of its three waits times out after `CONNECT_TIMEOUT_S`,
  in a thread.
- The peer is late: after a time-out MPICH leaves a receive posted, and a late message would be
  written into the stack of the thread that called. So that thread stays, and lets MPI receive,
  until the peer can send no more: until both ends have sent FAILED, or the TCP connection is gone.
- The first message does not leave in time: MPICH then leaks one of the 100 slots that it has for
  such calls, and UCX may still send from the stack of the thread. So that thread stays for ever,
  and a process refuses to connect after `MAX_LOST` of these failures.
- The port is damaged: UCX may crash on it. The HMAC of the handshake's messages detects that.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

from distributed.comm.core import FatalCommClosedError

from commbench.mpi import shared_memory
from commbench.mpi.receive_queue import SENDERS
from commbench.mpi.runtime import Runtime

__all__ = [
    "CALLS", "CONNECT_TIMEOUT_S", "TAG_BITS", "PeerEnd", "check_port", "free", "start_connect",
]  # fmt: skip

CONNECT_TIMEOUT_S = 1
"""The time-out of MPI's waits in connect: a process that answers over TCP needs milliseconds."""
MAX_PEERS = 1000
"""The number of peers in the life of a process: MPICH 5.0 aborts at the 1,024th world."""
MAX_CALLS = 32
"""The number of concurrent calls: MPICH 5.0 crashes at 100."""
MAX_LOST = 60
"""The number of slots, of these 100, that a process may leak."""
MAX_KEPT = 256
"""The failed calls and handshakes whose peers have not confirmed that they send no more."""
LATE_S, N_LATE = 1.0, 64
"""How long MPI may need to receive what the peer sent before it confirmed that, and the least tests
of a request: on a busy machine a thread may make few in that time.
"""
TAG_BITS = 27

_REMEDY = "start it anew, or start all processes with one mpiexec (dask-mpi), or use tcp://"
_TAG = re.compile(r"tag#\d+\$")
_PORT = re.compile(r"tag#\d{1,9}\$connentry#[0-9A-F\[\]]{8,2000}\$")
_NEVER = threading.Event()
_NO_TAG = 0
"""No channel receives on it."""


def check_port(port: str, tag: int) -> bool:
    """Return whether `port` looks like one of MPICH's, and `tag` is in range.

    Examples
    --------
    >>> check_port("tag#0$connentry#202A48B197F363EC$", 7), check_port("host:8786", 7)
    (True, False)
    """
    return _PORT.fullmatch(port) is not None and 0 <= tag < 2**TAG_BITS


class Calls:
    """Counts calls of ``MPI_Comm_connect``, and the resources that they keep."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.n_running = 0
        self.n_worlds = 0
        self.n_lost = 0
        self.n_kept = 0

    def begin(self) -> None:
        """Count the start of a call, if one is allowed.

        Raises
        ------
        FatalCommClosedError
            If this process can't connect any more, with what to do about it.
        OSError
            If it can later.
        """
        with self._lock:
            if self.n_worlds >= MAX_PEERS:
                raise FatalCommClosedError(
                    f"this process has met {MAX_PEERS} others over mpi://, and MPICH takes no more "
                    f"in the life of a process: {_REMEDY}"
                )
            if self.n_lost >= MAX_LOST:
                raise FatalCommClosedError(
                    f"MPI in this process could not send to {MAX_LOST} processes that it had "
                    "reached over TCP, and can't take more such failures: see that no firewall "
                    f"stops UCX between the hosts; then {_REMEDY}"
                )
            n_open = self.n_running + self.n_kept
            if (
                self.n_running >= MAX_CALLS
                or self.n_worlds + self.n_running >= MAX_PEERS
                or n_open >= MAX_KEPT
            ):
                raise OSError("too many processes connect at once")
            self.n_running += 1

    def end(self, error: Exception | None = None) -> None:
        """Count a call that failed, or was not made."""
        with self._lock:
            self.n_running -= 1
            # If MPICH can't send to the peer, it leaks the slot of the call.
            self.n_lost += _is_lost(error)

    def succeed(self) -> None:
        """Count a call that made a communicator."""
        with self._lock:
            self.n_running -= 1
            self.n_worlds += 1

    def count_kept(self, change: int) -> None:
        """Count a failed call or handshake until its peer confirms its end: 1, then -1."""
        with self._lock:
            self.n_kept += change


def _is_lost(error: Exception | None) -> bool:
    """Return whether the first message of a call did not leave."""
    return "establish_peer_conn" in str(error)


CALLS = Calls()
"""The calls of this process."""


class PeerEnd:
    """Whether the peer of a failed call sends nothing more over MPI.

    Parameters
    ----------
    loop
        The event loop of the connection. Its coroutine sends FAILED and waits for the peer's.
    descriptor
        A duplicate of the connection's. To the peer, the end of the connection means that this
        process's call has ended. So it stays open until then, even if the event loop is closed.

    Attributes
    ----------
    is_confirmed
        Set by the coroutine when the peer has confirmed, or is gone.
    is_left_to_thread
        Set if the coroutine was cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self._loop = weakref.ref(loop)
        self._connection = socket.socket(fileno=descriptor)
        self.is_confirmed = threading.Event()
        self.is_left_to_thread = threading.Event()

    def close(self) -> None:
        """Close the duplicate."""
        self._connection.close()

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds` at most; return whether the peer sends nothing more."""
        if self.is_confirmed.wait(seconds):
            return True
        loop = self._loop()
        if not self.is_left_to_thread.is_set() and loop is not None and not loop.is_closed():
            return False
        try:
            # What FAILED says, the end of this direction says, too.
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.setblocking(False)
            while self._connection.recv(4096):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


def start_connect(
    local: Runtime, port: str, tag: int, segments: frozenset[int], end: PeerEnd
) -> Future[Any]:
    """Call ``MPI_Comm_connect`` in a thread; return a future of the communicator or an OSError.

    The end of the call is counted in `CALLS`, as its begin must have been.

    Parameters
    ----------
    local
        MPI in this process.
    port, tag
        The peer's port, and the tag that both ends use.
    segments
        The peer's System V segments, if it is on this host.
    end
        The peer's end, in case that the call fails.

    Raises
    ------
    OSError
        If no thread can be started.
    """
    call: Future[Any] = Future()

    def run() -> None:
        try:
            with shared_memory.attached(segments):
                communicator = _connect(local, _TAG.sub(f"tag#{tag}$", port, count=1))
        except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
            CALLS.count_kept(1)
            CALLS.end(error)
            if not isinstance(error, FatalCommClosedError):
                error = OSError(f"MPI could not connect two processes: {error}")
            call.set_result(error)
            try:
                _drain_late_messages(local, end)
            finally:
                CALLS.count_kept(-1)
            if _is_lost(error):
                threading.current_thread().name = "mpi-lost"
                _NEVER.wait()
        else:
            CALLS.succeed()
            end.close()
            call.set_result(communicator)

    try:
        threading.Thread(target=run, name="mpi-connect", daemon=True).start()
    except RuntimeError as error:
        CALLS.end()
        end.close()
        raise OSError(f"MPI could not connect two processes: {error}") from error
    return call


def _drain_late_messages(local: Runtime, end: PeerEnd) -> None:
    """Let MPI receive what the peer of a failed call sends, until `LATE_S` after its `end`.

    MPICH receives it into the stack of this thread, which therefore must not end before. Testing a
    request makes MPI progress; probing does not always.
    """
    with local.lock:
        request = local.self_comm.Irecv((bytearray(1), local.mpi.BYTE), 0, _NO_TAG)
    while not end.wait(0.05):
        request.Test()
    end.close()
    while SENDERS.are_blocked():
        # What the peer has sent may lie behind a slot that another sender has not written.
        request.Test()
        time.sleep(0.05)
    until, n_tests = time.monotonic() + LATE_S, 0
    while time.monotonic() < until or n_tests < N_LATE:
        request.Test()
        n_tests += 1
        time.sleep(0.01)
    request.Cancel()
    request.Wait()


def _connect(local: Runtime, port: str) -> Any:
    # Collective calls on one communicator must follow each other, and several may meet at once.
    with local.lock:
        alone = local.self_comm.Dup()
        info = local.mpi.Info.Create({"timeout": str(CONNECT_TIMEOUT_S)})
    try:
        communicator = alone.Connect(port, info=info)
        communicator.Set_errhandler(local.mpi.ERRORS_RETURN)
    finally:
        with local.lock:
            free(info)
            free(alone)
    return communicator


def free(handle: Any) -> None:
    """Free a communicator or info."""
    # MPI's class of errors is not importable here, and there is nothing more to do about one.
    with contextlib.suppress(Exception):
        handle.Free()

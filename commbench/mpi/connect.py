"""MPI_Comm_connect in a thread: two processes that were started apart come to a communicator.

Both call it, with the port of the other and a tag of their own. Nobody calls ``MPI_Comm_accept``:
MPICH 5.0 waits in it with a lock that every other call of MPI needs, so that a peer which dies at
that moment stops all traffic. In connect it gives that lock away between polls, once its first
message to the peer has left: within a host at once, while the peer's queue has room.

What can go wrong in ``MPI_Comm_connect``, and what is done about it:

- The peer dies before: MPICH takes no note that it could not attach the peer's memory, and uses an
  endpoint that does not exist. So that memory is attached first, and kept until the call returns.
- The peer dies or stops in it: each of three waits ends after `CONNECT_TIMEOUT_S`, in a thread.
- The peer is late: after a time-out MPICH leaves a receive behind, whose buffer is on the stack of
  the thread that called. So that thread stays, and lets MPI receive, until the peer can send no
  more: until both ends have sent FAILED, or the connection is gone.
- The first message does not leave in time: MPICH never gives the slot of that call back, of which
  it has 100. So a process has `MAX_LOST` such failures, and then refuses to meet others.
- The port is damaged: UCX may crash on it. The HMAC of the handshake's messages finds that.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from concurrent.futures import Future
from typing import Any

from distributed.comm.core import FatalCommClosedError

from commbench.mpi import shared_memory
from commbench.mpi.runtime import Runtime

__all__ = ["CALLS", "CONNECT_TIMEOUT_S", "TAG_BITS", "check_port", "free", "start_connect"]

CONNECT_TIMEOUT_S = 1
"""How long MPI waits in connect: a process that answers over TCP gets there in milliseconds."""
MAX_PEERS = 1000
"""The number of processes that one can meet in its life: MPICH 5.0 aborts at the 1,024th world."""
MAX_CALLS = 32
"""The number of processes to meet at once: MPICH 5.0 crashes where it connects to 100."""
MAX_LOST = 60
"""The number of slots, of these 100, that a process may lose."""
MAX_KEPT = 256
"""The number of failed calls whose peers have not said yet that they send no more."""
LATE_S = 0.2
"""How long MPI takes to find what a peer had sent before it said that it sends no more."""
TAG_BITS = 27

_REMEDY = "start it anew, or start all processes with one mpiexec (dask-mpi), or use tcp://"
_TAG = re.compile(r"tag#\d+\$")
_PORT = re.compile(r"tag#\d{1,9}\$connentry#[0-9A-F\[\]]{8,2000}\$")
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
    """Counts calls of MPI_Comm_connect, and what MPICH and this process keep of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_running = 0
        self.n_worlds = 0
        self.n_lost = 0
        self.n_kept = 0

    def begin(self) -> None:
        """Count a call that is about to begin, if there may be one.

        Raises
        ------
        FatalCommClosedError
            Where this process can meet no other any more, with what to do about it.
        OSError
            Where it can later.
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
                raise OSError("too many processes meet at once")
            self.n_running += 1

    def end(self, error: Exception | None = None) -> None:
        """Count the end of a call, or that there was none."""
        with self._lock:
            self.n_running -= 1
            # Where MPICH could not send to the peer, it never gives the slot of the call back.
            self.n_lost += "establish_peer_conn" in str(error)

    def met(self) -> None:
        """Count a call that made a communicator."""
        with self._lock:
            self.n_running -= 1
            self.n_worlds += 1

    def kept(self, change: int) -> None:
        """Count a thread that stays after its call, or ends."""
        with self._lock:
            self.n_kept += change


CALLS = Calls()
"""Those of this process."""


def start_connect(
    own: Runtime, port: str, tag: int, segments: frozenset[int], over: threading.Event
) -> Future[Any]:
    """Call MPI in a thread, which ends what ``CALLS.begin`` began.

    Return what will be a communicator, or an OSError.

    Parameters
    ----------
    own
        MPI in this process.
    port, tag
        The peer's port, and the tag that both have agreed on.
    segments
        The peer's shared memory, where it is on this host.
    over
        To be set once the peer sends nothing more over MPI, where the call failed.

    Raises
    ------
    OSError
        Where no thread can be started.
    """
    call: Future[Any] = Future()

    def run() -> None:
        try:
            with shared_memory.attached(segments):
                communicator = _connect(own, _TAG.sub(f"tag#{tag}$", port, count=1))
        except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
            CALLS.kept(1)
            CALLS.end(error)
            call.set_result(OSError(f"MPI could not connect two processes: {error}"))
            _take_what_is_late(own, over)
            CALLS.kept(-1)
        else:
            CALLS.met()
            call.set_result(communicator)

    try:
        threading.Thread(target=run, name="mpi-connect", daemon=True).start()
    except RuntimeError as error:
        CALLS.end()
        raise OSError(f"MPI could not connect two processes: {error}") from error
    return call


def _take_what_is_late(own: Runtime, over: threading.Event) -> None:
    """Have MPI receive what the peer of a failed call sends, until `over` and a while longer.

    MPICH receives that into the stack of this thread, which therefore must not end before. A test
    of a request makes it look at what has arrived, which a probe does not always.
    """
    with own.lock:
        request = own.own.Irecv((bytearray(1), own.mpi.BYTE), 0, _NO_TAG)
    while not over.wait(0.05):
        request.Test()
    until = time.monotonic() + LATE_S
    while time.monotonic() < until:
        request.Test()
        time.sleep(0.01)
    request.Cancel()
    request.Wait()


def _connect(own: Runtime, port: str) -> Any:
    # Collective calls on one communicator must follow each other, and several may meet at once.
    with own.lock:
        alone = own.own.Dup()
        info = own.mpi.Info.Create({"timeout": str(CONNECT_TIMEOUT_S)})
    try:
        communicator = alone.Connect(port, info=info)
        communicator.Set_errhandler(own.mpi.ERRORS_RETURN)
    finally:
        with own.lock:
            free(info)
            free(alone)
    return communicator


def free(handle: Any) -> None:
    """Free a communicator or info."""
    # MPI's class of errors is not importable here, and there is nothing more to do about one.
    with contextlib.suppress(Exception):
        handle.Free()

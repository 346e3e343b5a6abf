"""The communicator that two processes share: at most one per pair, made when they first meet.

In world mode that is ``MPI_COMM_WORLD``, and within a process a duplicate of ``MPI_COMM_SELF``.
Processes that were started apart (elastic mode) agree over TCP, and then *both* call
``MPI_Comm_connect`` with the port of the other and a tag of their own. Nobody calls
``MPI_Comm_accept``: MPICH 5.0 waits in it with a lock that every other call of MPI needs, so that a
peer which dies at that moment stops all traffic. In connect it gives that lock away between polls,
once its first message to the peer has left: within a host, that is at once.

What can go wrong in ``MPI_Comm_connect``, and what is done about it:

- The peer dies before: MPICH takes no note that it could not attach the peer's memory, and uses an
  endpoint that does not exist. So that memory is attached first, and kept until the call returns.
- The peer dies or stops within: the call returns after `CONNECT_TIMEOUT_S`, in a thread of its own.
- The peer is late: after a time-out MPICH leaves a receive behind, whose buffer is on the stack of
  the thread that called. So that thread stays, and lets MPI receive, until the peer can send no
  more: until both ends have sent FAILED, or the connection is gone.
- The port is damaged: UCX may crash on it. The HMAC of the handshake's messages finds that.

Two processes that have met agree on a key over their communicator. With it, each proves over later
connections that it is the same process: a stranger who knows its name cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from distributed.comm.core import FatalCommClosedError

from commbench.mpi import shared_memory
from commbench.mpi.engine import Engine
from commbench.mpi.handshake import Hello, Kind, ProtocolError, fields
from commbench.mpi.line import Line
from commbench.mpi.runtime import Runtime
from commbench.mpi.transfer import Transfer

__all__ = ["MAX_PEERS", "Pair", "how_to_pair", "release_dead_soon", "share_communicator"]

CONNECT_TIMEOUT_S = 1
"""How long MPI waits in connect: a process that answers over TCP gets there in milliseconds."""
STEP_TIMEOUT_S = 10
"""How long the leader waits for each answer, while other connections of the pair wait for it."""
MAX_PEERS = 1000
"""The number of processes that one can meet in its life: MPICH 5.0 aborts at the 1,024th world."""
MAX_CALLS = 32
"""The number of processes to meet at once: MPICH 5.0 crashes where it connects to 100."""
LATE_S = 0.2
"""How long MPI takes to find what a peer had sent before it said that it sends no more."""

RELEASE_AFTER_S = 1.0
"""How long after the end of a connection to look whether the peer has died."""

_TAG_BITS = 27
_TAG = re.compile(r"tag#\d+\$")
_PORT = re.compile(r"tag#\d{1,9}\$connentry#[0-9A-F\[\]]{8,2000}\$")
_MAX_PROOFS = 8
_NO_TAG = 0
"""No channel receives on it."""


class Pair(NamedTuple):
    """What this process shares with another.

    Attributes
    ----------
    communicator, rank
        Where to send to the other.
    key
        Known to these two processes alone.
    pid
        The id of the other process.
    segments
        Its shared memory, where both are on one host.
    """

    communicator: Any
    rank: int
    key: bytes
    pid: int
    segments: frozenset[int] = frozenset()


_pairs: dict[str, list[Pair]] = {}
"""By the name that the other process gives itself: more than one where somebody lies."""
_meetings: dict[str, Future[None]] = {}
"""Where this process leads a meeting: done when that has ended, well or not."""
_lock = threading.Lock()
_release_at = 0.0
_ends: set[asyncio.Task[None]] = set()


def how_to_pair(own: Runtime, peer: Hello) -> str:
    """Return the mode that this process and `peer` have in common.

    Raises
    ------
    FatalCommClosedError
        Where they have none, with what to do about it.
    """
    if peer.process == own.process:
        return "self"
    if peer.library != own.library:
        raise FatalCommClosedError(
            f"one end of mpi:// has {own.library}, the other {peer.library}: "
            "use the same MPI library everywhere"
        )
    if own.mode == peer.mode == "world" and own.world == peer.world and own.rank != peer.rank:
        if peer.rank >= own.size:
            raise FatalCommClosedError(f"a world of {own.size} ranks has no rank {peer.rank}")
        return "world"
    if "self" in (own.mode, peer.mode) or not own.port:
        raise FatalCommClosedError(
            f"{own.library} can't connect processes that were started apart "
            f"(here mode {own.mode}, at the peer {peer.mode}): start all of them with one mpiexec "
            "(dask-mpi), or use MPICH 5 and let mpi:// be the first to initialise MPI, "
            "or start each with mpiexec -n 1"
        )
    if own.devices == frozenset({"lo"}) and peer.host != own.host:
        raise FatalCommClosedError(
            "MPI in this process uses the loopback interface alone, because it first listened or "
            "connected there: set UCX_NET_DEVICES, or use another address first"
        )
    return "elastic"


async def share_communicator(
    own: Runtime, hello: Hello, peer: Hello, mode: str, line: Line
) -> Pair:
    """Return what this process shares with `peer`; the two meet if they have not.

    Both ends call this, and return when both know that the other is the process it says it is.

    Parameters
    ----------
    own
        MPI in this process.
    hello, peer
        What this end and the other have said.
    mode
        As `how_to_pair` returns it.
    line
        The connection.

    Raises
    ------
    OSError
        Where the peer goes away, or is another process than it says.
    FatalCommClosedError
        Where this process has met `MAX_PEERS` others.
    """
    if hello.nonce == peer.nonce:
        raise ProtocolError("the peer sent this end's nonce")
    if mode == "self":
        with _lock:
            if own.process not in _pairs:
                key = secrets.token_bytes(32)
                _pairs[own.process] = [Pair(own.own, 0, key, own.pid)]
    side = _Side(own, hello, peer, mode, line)
    if (own.process, hello.nonce) < (peer.process, peer.nonce):
        return await side.lead()
    return await side.follow()


class _Side:
    """One end of a handshake; the parameters are those of `share_communicator`."""

    def __init__(self, own: Runtime, hello: Hello, peer: Hello, mode: str, line: Line) -> None:
        self._own = own
        self._hello = hello
        self._peer = peer
        self._mode = mode
        self._line = line

    # -- those who have met

    def _proof(self, key: bytes, *, own: bool) -> str:
        ends = [json.dumps(vars(end), sort_keys=True) for end in (self._hello, self._peer)]
        text = "\n".join(ends if own else ends[::-1]).encode()
        return hmac.digest(key, text, hashlib.sha256).hex()

    def _shared(self, proofs: Iterable[Any]) -> Pair | None:
        """Return the pair that one of the peer's proofs is right for."""
        given = [proof for proof in proofs if type(proof) is str and proof.isascii()]
        for pair in _pairs.get(self._peer.process, ()):
            expected = self._proof(pair.key, own=False)
            if any(hmac.compare_digest(expected, proof) for proof in given[:_MAX_PROOFS]):
                return pair
        return None

    def _send_ready(self, pair: Pair) -> None:
        self._line.send(Kind.READY, proof=self._proof(pair.key, own=True))

    def _check_ready(self, body: dict[str, Any], pair: Pair | None = None) -> Pair:
        """Return the pair that the proof in READY is right for; it must be `pair`, if given."""
        shared = self._shared(fields(body, proof=str))
        if shared is None or pair not in (None, shared):
            raise ProtocolError("the peer is not the process that it says it is")
        return shared

    # -- the two roles

    async def lead(self) -> Pair:
        """Decide over which connection to meet, if need be."""
        name = self._peer.process
        while True:
            _, body = await self._receive(Kind.PROOF)
            if (pair := self._shared(fields(body, proofs=list)[0])) is not None:
                self._send_ready(pair)
                return pair
            if self._mode == "self":
                raise ProtocolError("the peer is not this process")
            with _lock:
                if (meeting := _meetings.get(name)) is None:
                    ended = _meetings[name] = Future[None]()
                    break
            await asyncio.shield(asyncio.wrap_future(meeting))
            self._line.send(Kind.AGAIN)
        try:
            self._check_number()
            tag = secrets.randbits(_TAG_BITS)
            self._line.send(Kind.MEET, tag=tag, **self._contact())
            _, body = await self._receive(Kind.COMING)
            pair = await self._meet(tag, *fields(body, port=str, segments=list))
            async with self._failing(pair):
                self._check_ready((await self._receive(Kind.READY))[1], pair)
                self._send_ready(pair)
            return pair
        finally:
            with _lock:
                del _meetings[name]
            ended.set_result(None)

    async def follow(self) -> Pair:
        """Do as the leader decides."""
        while True:
            keys = [pair.key for pair in _pairs.get(self._peer.process, ())][-_MAX_PROOFS:]
            self._line.send(Kind.PROOF, proofs=[self._proof(key, own=True) for key in keys])
            kind, body = await self._line.receive(Kind.AGAIN, Kind.READY, Kind.MEET)
            if kind is Kind.READY:
                return self._check_ready(body)
            if kind is Kind.MEET:
                tag, port, segments = fields(body, tag=int, port=str, segments=list)
                break
        if self._mode == "self":
            raise ProtocolError("a process met itself")
        self._check_number()
        self._line.send(Kind.COMING, **self._contact())
        pair = await self._meet(tag, port, segments)
        async with self._failing(pair):
            self._send_ready(pair)
            self._check_ready((await self._line.receive(Kind.READY))[1], pair)
        return pair

    async def _receive(self, kind: Kind) -> tuple[Kind, dict[str, Any]]:
        try:
            return await asyncio.wait_for(self._line.receive(kind), STEP_TIMEOUT_S)
        except TimeoutError:
            raise OSError(f"the peer sent no {kind.name} within {STEP_TIMEOUT_S} s") from None

    # -- those who meet

    def _contact(self) -> dict[str, Any]:
        if self._mode == "world":
            return {"port": "", "segments": []}
        return {"port": self._own.port, "segments": sorted(self._own.segments)}

    def _check_number(self) -> None:
        if self._mode != "elastic":
            return
        if _calls.n_worlds >= MAX_PEERS:
            reason = (
                f"this process has met {MAX_PEERS} others over mpi://, and MPICH takes no more in "
                "the life of a process: start it anew, or start all processes with one mpiexec "
                "(dask-mpi), or use tcp://"
            )
            self._line.send(Kind.REFUSE, reason=reason)
            raise FatalCommClosedError(reason)
        if _calls.n_running >= MAX_CALLS:
            self._send_failed(error := OSError("too many processes meet at once"))
            raise error

    def _send_failed(self, error: BaseException) -> None:
        self._line.send(Kind.FAILED, reason=(str(error) or repr(error))[:500])

    async def _meet(self, tag: int, port: str, segments: list[Any]) -> Pair:
        """Make a communicator with the peer, agree on a key, and remember both."""
        own, peer = self._own, self._peer
        if self._mode == "world":
            pair = Pair(own.mpi.COMM_WORLD, peer.rank, b"", peer.pid)
        else:
            if not _PORT.fullmatch(port) or not 0 <= tag < 2**_TAG_BITS:
                raise ProtocolError("a port that MPICH did not make")
            if len(segments) > 16 or not all(type(i) is int and 0 <= i < 2**31 for i in segments):
                raise ProtocolError("segments that are not the ids of segments")
            if own.segments.intersection(segments):
                raise ProtocolError("segments of this process")
            near = frozenset(segments) if own.host and peer.host == own.host else frozenset()
            communicator = await self._connect(_TAG.sub(f"tag#{tag}$", port, count=1), near)
            pair = Pair(communicator, 0, b"", peer.pid, near)
        async with self._failing(pair), asyncio.timeout(STEP_TIMEOUT_S):
            pair = pair._replace(key=await self._agree_on_key(pair))
        with _lock:
            _pairs.setdefault(peer.process, []).append(pair)
        return pair

    async def _connect(self, port: str, segments: frozenset[int]) -> Any:
        release_dead()
        self._line.check()
        over = threading.Event()
        call = _start_connect(self._own, port, segments, over)
        try:
            communicator = await asyncio.shield(asyncio.wrap_future(call))
            if isinstance(communicator, OSError):
                raise communicator
        except BaseException as error:
            self._see_off(call, over, error)
            raise
        return communicator

    def _see_off(self, call: Future[Any], over: threading.Event, error: BaseException) -> None:
        """Say FAILED once this end's call has returned, and end when the peer has said so, too."""
        line = self._line
        line.keep_open = True

        async def see_off() -> None:
            try:
                communicator = await asyncio.shield(asyncio.wrap_future(call))
                if not isinstance(communicator, OSError):
                    _free(communicator)
                self._send_failed(error)
                with contextlib.suppress(OSError):
                    while True:
                        await line.receive(*Kind)
                over.set()
            finally:
                line.keep_open = False
                line.abort()

        task = asyncio.get_running_loop().create_task(see_off())
        _ends.add(task)
        task.add_done_callback(_ends.discard)

    @contextlib.asynccontextmanager
    async def _failing(self, pair: Pair) -> AsyncIterator[None]:
        """Forget `pair`, and let the peer know, where the block fails."""
        try:
            yield
        except BaseException as error:
            with _lock:
                remaining = [p for p in _pairs.get(self._peer.process, ()) if p is not pair]
                _pairs[self._peer.process] = remaining
                if not remaining:
                    del _pairs[self._peer.process]
            if self._mode == "elastic":
                _free(pair.communicator)
            self._send_failed(error)
            raise

    async def _agree_on_key(self, pair: Pair) -> bytes:
        """Return a key that both ends make of what they send each other over MPI."""
        mine, theirs = bytearray(secrets.token_bytes(32)), bytearray(32)
        byte = self._own.mpi.BYTE
        requests: list[Any] = []
        delay = 0.0
        try:
            requests.append(pair.communicator.Irecv((theirs, byte), pair.rank, self._hello.tag))
            requests.append(pair.communicator.Isend((mine, byte), pair.rank, self._peer.tag))
            while not self._own.mpi.Request.Testall(requests):
                self._line.check()
                await asyncio.sleep(delay)
                delay = min(delay * 1.5 + 1e-4, 0.02)
        except BaseException as error:
            begun = Transfer(requests, (mine, theirs), 32, True, lambda *_: None)
            begun.cancel()
            Engine.of(asyncio.get_running_loop()).park(begun)
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise OSError(f"MPI could not exchange keys: {error}") from error
            raise
        return hashlib.sha256(b"".join(sorted([bytes(mine), bytes(theirs)]))).digest()


class _Calls:
    """Counts calls of MPI_Comm_connect, and the worlds that MPICH makes of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_running = 0
        self.n_worlds = 0

    def begin(self) -> None:
        """Count a call that begins, if there may be one."""
        with self._lock:
            if self.n_running >= MAX_CALLS or self.n_worlds >= MAX_PEERS:
                raise OSError("too many processes meet at once")
            self.n_running += 1
            self.n_worlds += 1

    def end(self, error: Exception | None) -> None:
        """Count its end. Where MPICH could not send to the peer, it never gives its slot back."""
        with self._lock:
            self.n_worlds -= error is not None
            self.n_running -= "establish_peer_conn" not in str(error)


_calls = _Calls()


def _start_connect(
    own: Runtime, port: str, segments: frozenset[int], over: threading.Event
) -> Future[Any]:
    """Return what will be a communicator, or an OSError, which may come when nobody waits."""
    call: Future[Any] = Future()
    _calls.begin()

    def run() -> None:
        try:
            with shared_memory.attached(segments):
                communicator = _connect(own, port)
        except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
            _calls.end(error)
            call.set_result(OSError(f"MPI could not connect two processes: {error}"))
            _take_what_is_late(own, over)
        else:
            _calls.end(None)
            call.set_result(communicator)

    threading.Thread(target=run, name="mpi-connect", daemon=True).start()
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
        time.sleep(0.001)
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
            _free(info)
            _free(alone)
    return communicator


def _free(handle: Any) -> None:
    # MPI's class of errors is not importable here, and there is nothing more to do about one.
    with contextlib.suppress(Exception):
        handle.Free()


def release_dead_soon() -> None:
    """Do `release_dead` in a while, and for many calls once; to be called in an event loop."""
    global _release_at
    now = time.monotonic()
    if now > _release_at:
        _release_at = now + RELEASE_AFTER_S
        asyncio.get_running_loop().call_later(RELEASE_AFTER_S, release_dead)


def release_dead() -> None:
    """Forget the processes on this host that have died, and release their shared memory."""
    with _lock:
        dead, alive = set[int](), set[int]()
        for name, pairs in list(_pairs.items()):
            gone = [pair for pair in pairs if pair.segments and not _exists(pair.pid)]
            dead.update(*(pair.segments for pair in gone))
            alive.update(*(pair.segments for pair in pairs if pair not in gone))
            if gone:
                _pairs[name] = [pair for pair in pairs if pair not in gone]
            if not _pairs[name]:
                del _pairs[name]
        if dead:
            shared_memory.release(dead - alive)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True

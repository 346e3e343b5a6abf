"""The communicator that two processes share, made when they first meet.

In world mode that is ``MPI_COMM_WORLD``, and within a process a duplicate of ``MPI_COMM_SELF``.
Processes that were started apart (elastic mode) agree over TCP, and both connect
(:mod:`commbench.mpi.connect`).

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
import secrets
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from typing import Any

from distributed.comm.core import FatalCommClosedError

from commbench.mpi.connect import CALLS, TAG_BITS, check_port, free, start_connect
from commbench.mpi.handshake import Hello, Kind, ProtocolError, fields, shortened
from commbench.mpi.line import Line
from commbench.mpi.pairs import LOCK, PAIRS, Pair, agree_on_key, forget, release_dead
from commbench.mpi.receive_queue import SENDERS
from commbench.mpi.runtime import Runtime

__all__ = ["share_communicator"]

STEP_TIMEOUT_S = 10
"""How long the leader waits for each answer, while other connections of the pair wait for it."""
_MAX_PROOFS = 8

_meetings: dict[str, Future[None]] = {}
"""Where this process leads a meeting: done when that has ended, well or not."""
_ends: set[asyncio.Task[None]] = set()


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
        Where this process can meet no other any more.
    """
    if hello.nonce == peer.nonce:
        raise ProtocolError("the peer sent this end's nonce")
    if mode == "self":
        with LOCK:
            if own.process not in PAIRS:
                key = secrets.token_bytes(32)
                PAIRS[own.process] = [Pair(own.own, 0, key, own.pid)]
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
        self._counted = False

    # -- those who have met

    def _proof(self, key: bytes, *, own: bool) -> str:
        ends = [json.dumps(vars(end), sort_keys=True) for end in (self._hello, self._peer)]
        text = "\n".join(ends if own else ends[::-1]).encode()
        return hmac.digest(key, text, hashlib.sha256).hex()

    def _shared(self, proofs: Iterable[Any]) -> Pair | None:
        """Return the pair that one of the peer's proofs is right for."""
        given = [proof for proof in proofs if type(proof) is str and proof.isascii()]
        for pair in PAIRS.get(self._peer.process, ()):
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
            with LOCK:
                if (meeting := _meetings.get(name)) is None:
                    ended = _meetings[name] = Future[None]()
                    break
            await asyncio.shield(asyncio.wrap_future(meeting))
            self._line.send(Kind.AGAIN)
        try:
            self._count()
            tag = secrets.randbits(TAG_BITS)
            self._line.send(Kind.MEET, tag=tag, **self._contact())
            _, body = await self._receive(Kind.COMING)
            pair = await self._meet(tag, *fields(body, port=str, segments=list))
            async with self._failing(pair):
                self._check_ready((await self._receive(Kind.READY))[1], pair)
                self._send_ready(pair)
            return pair
        finally:
            self._uncount()
            with LOCK:
                del _meetings[name]
            ended.set_result(None)

    async def follow(self) -> Pair:
        """Do as the leader decides."""
        while True:
            keys = [pair.key for pair in PAIRS.get(self._peer.process, ())][-_MAX_PROOFS:]
            self._line.send(Kind.PROOF, proofs=[self._proof(key, own=True) for key in keys])
            kind, body = await self._line.receive(Kind.AGAIN, Kind.READY, Kind.MEET)
            if kind is Kind.READY:
                return self._check_ready(body)
            if kind is Kind.MEET:
                tag, port, segments = fields(body, tag=int, port=str, segments=list)
                break
        if self._mode == "self":
            raise ProtocolError("a process met itself")
        self._count()
        try:
            self._line.send(Kind.COMING, **self._contact())
            pair = await self._meet(tag, port, segments)
        finally:
            self._uncount()
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
        own, peer = self._own.host, self._peer.host
        if own == peer:
            SENDERS.add(self._peer.pid)
        elif own.rpartition("-")[0] == peer.rpartition("-")[0] or not peer:
            # It may share memory with this process, and its threads can't be seen.
            SENDERS.watch(None)
        return {"port": self._own.port, "segments": sorted(self._own.segments)}

    def _count(self) -> None:
        """Count this meeting, or refuse it."""
        if self._mode != "elastic":
            return
        try:
            CALLS.begin()
        except FatalCommClosedError as error:
            self._line.send(Kind.REFUSE, reason=shortened(str(error)))
            raise
        except OSError as error:
            self._send_failed(error)
            raise
        self._counted = True

    def _uncount(self) -> None:
        """End what `_count` began, where no call did."""
        if self._counted:
            self._counted = False
            CALLS.end()

    def _send_failed(self, error: BaseException) -> None:
        self._line.send(Kind.FAILED, reason=shortened(str(error) or repr(error)))

    async def _meet(self, tag: int, port: str, segments: list[Any]) -> Pair:
        """Make a communicator with the peer, agree on a key, and remember both."""
        own, peer = self._own, self._peer
        if self._mode == "world":
            pair = Pair(own.mpi.COMM_WORLD, peer.rank, b"", peer.pid)
        else:
            if not check_port(port, tag):
                raise ProtocolError("a port that MPICH did not make")
            if len(segments) > 16 or not all(type(i) is int and 0 <= i < 2**31 for i in segments):
                raise ProtocolError("segments that are not the ids of segments")
            # Ids count from 0 in each IPC namespace: those of another host say nothing here.
            near = frozenset(segments) if own.host and peer.host == own.host else frozenset()
            if own.segments & near:
                raise ProtocolError("segments of this process")
            communicator = await self._connect(port, tag, near)
            pair = Pair(communicator, 0, b"", peer.pid, near)
        async with self._failing(pair), asyncio.timeout(STEP_TIMEOUT_S):
            pair = pair._replace(key=await agree_on_key(own, pair, self._hello, peer, self._line))
        with LOCK:
            PAIRS.setdefault(peer.process, []).append(pair)
        return pair

    async def _connect(self, port: str, tag: int, segments: frozenset[int]) -> Any:
        release_dead()
        self._line.check()
        over = threading.Event()
        self._counted = False
        call = start_connect(self._own, port, tag, segments, over)
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
        # The peer takes the connection's end for that of this call: it must not come before, not
        # even where the event loop is closed.
        with contextlib.suppress(OSError):
            connection = line.duplicate()
            call.add_done_callback(lambda _: os.close(connection))

        async def see_off() -> None:
            try:
                communicator = await asyncio.shield(asyncio.wrap_future(call))
                if not isinstance(communicator, OSError):
                    free(communicator)
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
            if not forget(self._peer.process, pair) and self._mode == "elastic":
                free(pair.communicator)
            self._send_failed(error)
            raise

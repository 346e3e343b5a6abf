"""The communicator that two processes share, made at their first connection.

In world mode that is ``MPI_COMM_WORLD``, and within a process a duplicate of ``MPI_COMM_SELF``.
Processes that were started separately (elastic mode) coordinate over TCP, and then both call
``MPI_Comm_connect`` (:mod:`commbench.mpi.connect`).

Over a new communicator, the two processes agree on a key. With it, each proves over later
connections that it is the same process: a stranger who knows its name can't.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from typing import Any

from distributed.comm.core import FatalCommClosedError

from commbench.mpi.connect import CALLS, TAG_BITS, PeerEnd, check_port, free, start_connect
from commbench.mpi.control import Control
from commbench.mpi.handshake import Hello, Kind, ProtocolError, fields, shortened
from commbench.mpi.pairs import (
    LOCK,
    PAIRS,
    Pair,
    agree_on_key,
    awaited_secret,
    forget,
    release_dead,
)
from commbench.mpi.receive_queue import SENDERS, started_at
from commbench.mpi.runtime import Runtime

__all__ = ["agree_on_mode", "introduce", "share_communicator"]

STEP_TIMEOUT_S = 10
"""How long the leader waits for each answer, and either end for the exchange of keys. Other
connections of the pair wait meanwhile.
"""
_MAX_PROOFS = 8

_connecting: dict[str, tuple[Future[None], asyncio.AbstractEventLoop]] = {}
"""By peer, the connect that this process leads: a future that is done when it has ended."""


async def introduce(
    control: Control, local: Runtime, hello: Hello, *, connects: bool
) -> tuple[Hello, str]:
    """Exchange HELLO; return the peer's, and the mode that both ends support.

    Raises
    ------
    FatalCommClosedError
        If there is none. The peer is sent the reason.
    OSError
        If the peer goes away, or is no peer of this kind.
    """
    if connects:
        control.send(Kind.HELLO, **vars(hello))
    peer = Hello.parse((await control.receive(Kind.HELLO))[1])
    if connects:
        return peer, agree_on_mode(local, peer)
    try:
        mode = agree_on_mode(local, peer)
    except FatalCommClosedError as error:
        control.send(Kind.REFUSE, reason=shortened(str(error)))
        control.close()
        raise
    control.send(Kind.HELLO, **vars(hello))
    return peer, mode


def agree_on_mode(local: Runtime, peer: Hello) -> str:
    """Return the mode that this process and `peer` both support.

    Raises
    ------
    FatalCommClosedError
        If there is none, with what to do about it.
    """
    if peer.process == local.process:
        return "self"
    if peer.library != local.library:
        raise FatalCommClosedError(
            f"one end of mpi:// has {local.library}, the other {peer.library}: "
            "use the same MPI library everywhere"
        )
    if local.mode == peer.mode == "world" and local.world == peer.world and local.rank != peer.rank:
        if peer.rank >= local.size:
            raise FatalCommClosedError(f"a world of {local.size} ranks has no rank {peer.rank}")
        if peer.tag not in local.tags:
            # The application that started MPI may receive on the others.
            raise FatalCommClosedError(f"the tag {peer.tag} is not one of mpi://")
        return "world"
    if "self" in (local.mode, peer.mode) or not local.port:
        raise FatalCommClosedError(
            f"{local.library} can't connect processes that were started apart "
            f"(here mode {local.mode}, at the peer {peer.mode}): start all of them with one "
            "mpiexec (dask-mpi), or use MPICH 5 and let mpi:// be the first to initialise MPI, "
            "or start each with mpiexec -n 1"
        )
    if local.devices == frozenset({"lo"}):
        alone = (
            "MPI in this process uses the loopback interface alone, because it first listened or "
            "connected there, or UCX_NET_DEVICES says so"
        )
        if peer.host != local.host:
            raise FatalCommClosedError(f"{alone}: set that, or use another address first")
        if not local.segments:
            # UCX's TCP finds no route there, and MPICH uses the missing endpoint.
            transports = os.environ.get("UCX_TLS", "")
            raise FatalCommClosedError(
                f"{alone}, and UCX has no System V shared memory (UCX_TLS={transports}): allow it, "
                "or use another address, such as that of a network interface"
            )
    spaces = {local.host.rpartition("-")[0], peer.host.rpartition("-")[0]}
    if local.segments and local.host != peer.host and len(spaces) == 1:
        # UCX 1.20 looks for the peer's process by its id.
        raise FatalCommClosedError(
            "the two ends of mpi:// share an IPC namespace, but no PID namespace, in which UCX's "
            "shared memory crashes: let their containers share both, or none, or set "
            "UCX_TLS=tcp,self at both, with addresses other than loopback"
        )
    return "elastic"


async def share_communicator(
    local: Runtime, hello: Hello, peer: Hello, mode: str, control: Control
) -> Pair:
    """Return the communicator and the key shared with `peer`, made if there are none.

    Both ends call this. It returns when each has proved to be the process that it claims to be.

    Parameters
    ----------
    local
        MPI in this process.
    hello, peer
        HELLO of this end and of the peer.
    mode
        As `agree_on_mode` returns it.
    control
        The TCP connection.

    Raises
    ------
    OSError
        If the peer goes away, or is not the process that it claims to be.
    FatalCommClosedError
        If this process can't connect to any other process any more.
    """
    if hello.nonce == peer.nonce:
        raise ProtocolError("the peer sent this end's nonce")
    if mode == "self":
        with LOCK:
            if local.process not in PAIRS:
                key = secrets.token_bytes(32)
                PAIRS[local.process] = [Pair(local.self_comm, 0, key, local.pid)]
    handshake = _Handshake(local, hello, peer, mode, control)
    if (local.process, hello.nonce) < (peer.process, peer.nonce):
        return await handshake.lead()
    return await handshake.follow()


class _Handshake:
    """One end of the handshake; the parameters are those of `share_communicator`."""

    def __init__(
        self, local: Runtime, hello: Hello, peer: Hello, mode: str, control: Control
    ) -> None:
        self._local = local
        self._hello = hello
        self._peer = peer
        self._mode = mode
        self._control = control
        self._counted = False
        self._sender: Any = None

    # -- known peers

    def _proof(self, key: bytes, *, ours: bool) -> str:
        ends = [json.dumps(vars(end), sort_keys=True) for end in (self._hello, self._peer)]
        text = "\n".join(ends if ours else ends[::-1]).encode()
        return hmac.digest(key, text, hashlib.sha256).hex()

    def _shared(self, proofs: Iterable[Any]) -> Pair | None:
        """Return the pair for whose key one of the peer's proofs is right."""
        given = [proof for proof in proofs if type(proof) is str and proof.isascii()]
        for pair in PAIRS.get(self._peer.process, ()):
            expected = self._proof(pair.key, ours=False)
            if any(hmac.compare_digest(expected, proof) for proof in given[:_MAX_PROOFS]):
                return pair
        return None

    def _send_ready(self, pair: Pair) -> None:
        self._control.send(Kind.READY, proof=self._proof(pair.key, ours=True))

    def _check_ready(self, body: dict[str, Any], pair: Pair | None = None) -> Pair:
        """Return the pair for whose key READY has a proof; it must be `pair`, if given."""
        shared = self._shared(fields(body, proof=str))
        if shared is None or pair not in (None, shared):
            raise ProtocolError("the peer is not the process that it claims to be")
        return shared

    # -- the two roles

    async def lead(self) -> Pair:
        """Accept the peer's proof, or connect over MPI over one TCP connection of the pair."""
        name = self._peer.process
        while True:
            _, body = await self._receive(Kind.PROOF)
            if (pair := self._shared(fields(body, proofs=list)[0])) is not None:
                self._send_ready(pair)
                return pair
            if self._mode == "self":
                raise ProtocolError("the peer is not this process")
            with LOCK:
                connecting, loop = _connecting.get(name, (None, None))
                # In a closed loop no connect ends.
                if connecting is None or (loop is not None and loop.is_closed()):
                    ours = Future[None](), asyncio.get_running_loop()
                    _connecting[name] = ours
                    break
            await asyncio.shield(asyncio.wrap_future(connecting))
            self._control.send(Kind.RETRY)
        try:
            self._count()
            tag = secrets.randbits(TAG_BITS)
            with awaited_secret(self._hello, self._peer) as mark:
                self._control.send(Kind.CONNECT, tag=tag, **self._contact())
                _, body = await self._receive(Kind.CONNECTING)
                pair = await self._make_pair(mark, tag, *fields(body, port=str, segments=list))
            async with self._failing(pair):
                self._check_ready((await self._receive(Kind.READY))[1], pair)
                self._send_ready(pair)
            return pair
        except BaseException as error:
            self._discard_sender(error)
            raise
        finally:
            self._uncount()
            with LOCK:
                if _connecting.get(name) is ours:
                    del _connecting[name]
            ours[0].set_result(None)

    async def follow(self) -> Pair:
        """Offer proofs until the leader accepts one, or asks to connect over MPI."""
        while True:
            keys = [pair.key for pair in PAIRS.get(self._peer.process, ())][-_MAX_PROOFS:]
            self._control.send(Kind.PROOF, proofs=[self._proof(key, ours=True) for key in keys])
            kind, body = await self._control.receive(Kind.RETRY, Kind.READY, Kind.CONNECT)
            if kind is Kind.READY:
                return self._check_ready(body)
            if kind is Kind.CONNECT:
                tag, port, segments = fields(body, tag=int, port=str, segments=list)
                break
        if self._mode == "self":
            raise ProtocolError("a process connected to itself")
        self._count()
        try:
            with awaited_secret(self._hello, self._peer) as mark:
                self._control.send(Kind.CONNECTING, **self._contact())
                pair = await self._make_pair(mark, tag, port, segments)
        except BaseException as error:
            self._discard_sender(error)
            raise
        finally:
            self._uncount()
        async with self._failing(pair):
            self._send_ready(pair)
            self._check_ready((await self._control.receive(Kind.READY))[1], pair)
        return pair

    async def _receive(self, kind: Kind) -> tuple[Kind, dict[str, Any]]:
        async with _step(kind.name):
            return await self._control.receive(kind)

    # -- connecting over MPI

    def _contact(self) -> dict[str, Any]:
        if self._mode == "world":
            return {"port": "", "segments": []}
        local, peer = self._local.host, self._peer.host
        if local == peer:
            self._sender = SENDERS.add(self._peer.pid)
        elif not peer:
            # It may share memory with this process, but its threads are not visible.
            self._sender = SENDERS.add(None)
        return {"port": self._local.port, "segments": sorted(self._local.segments)}

    def _discard_sender(self, error: BaseException) -> None:
        """Undo `_contact` once the peer can't write to this process's memory any more.

        It knows the port, and may call MPI until it reads FAILED. Its end of the connection stays
        open until that call has ended.
        """
        sender, self._sender = self._sender, None
        if sender is None:
            return
        control = self._control
        try:
            control.raise_if_lost()
        except OSError:
            SENDERS.discard(sender)
            return
        if not control.loop.is_running():
            # The garbage collector ends this, without a loop: a sender until it has died.
            return
        control.keep_open = True
        self._send_failed(error)

        async def finish() -> None:
            CALLS.count_kept(1)
            try:
                await control.receive_last()
                SENDERS.discard(sender)
            finally:
                CALLS.count_kept(-1)
                control.keep_open = False
                control.abort()

        # Not kept elsewhere: if the event loop is closed, the sender stays until it has died.
        control.finishing = control.loop.create_task(finish())

    def _count(self) -> None:
        """Count this connect, or refuse it."""
        if self._mode != "elastic":
            return
        try:
            CALLS.begin()
        except OSError as error:
            self._send_failed(error)
            raise
        self._counted = True

    def _uncount(self) -> None:
        """Undo `_count`, if ``MPI_Comm_connect`` was not called."""
        if self._counted:
            self._counted = False
            CALLS.end()

    def _send_failed(self, error: BaseException) -> None:
        reason = "cancelled" if isinstance(error, asyncio.CancelledError) else str(error)
        kind = Kind.REFUSE if isinstance(error, FatalCommClosedError) else Kind.FAILED
        self._control.send(kind, reason=shortened(reason or repr(error)))

    async def _make_pair(self, mark: bytes, tag: int, port: str, segments: list[Any]) -> Pair:
        """Make a communicator with the peer, agree on a key, and keep both in `PAIRS`."""
        local, peer = self._local, self._peer
        if self._mode == "world":
            pair = Pair(local.mpi.COMM_WORLD, peer.rank, b"", peer.pid)
        else:
            if not check_port(port, tag):
                raise ProtocolError("a port that MPICH did not make")
            if len(segments) > 16 or not all(type(i) is int and 0 <= i < 2**31 for i in segments):
                raise ProtocolError("segments that are not the ids of segments")
            # Each IPC namespace numbers segments from 0: ids of another host mean nothing here.
            # UCX without shared memory here attaches none.
            is_near = local.segments and local.host and peer.host == local.host
            near = frozenset(segments) if is_near else frozenset()
            if local.segments & near:
                raise ProtocolError("segments of this process")
            pair = Pair(None, 0, b"", peer.pid, started_at(peer.pid), near)
            pair = pair._replace(communicator=await self._connect(port, tag, pair))
            self._sender = None
        async with self._failing(pair), _step("secret"):
            pair = pair._replace(key=await agree_on_key(local, pair, mark, self._control))
        with LOCK:
            PAIRS.setdefault(peer.process, []).append(pair)
        return pair

    async def _connect(self, port: str, tag: int, pair: Pair) -> Any:
        release_dead()
        self._control.raise_if_lost()
        end = PeerEnd(asyncio.get_running_loop(), self._control.duplicate())
        self._counted = False
        call = start_connect(self._local, port, tag, pair.segments, end)
        try:
            communicator = await asyncio.shield(asyncio.wrap_future(call))
            if isinstance(communicator, OSError):
                # The peer may have failed first, and know why.
                self._control.raise_if_failed()
                raise communicator
        except BaseException as error:
            # UCX may have attached the peer's memory.
            call.add_done_callback(lambda _: forget(self._peer.process, pair))
            self._finish_failed(call, end, error)
            raise
        return communicator

    def _finish_failed(self, call: Future[Any], end: PeerEnd, error: BaseException) -> None:
        """Send FAILED or REFUSE when this end's call has returned, and wait for the peer's."""
        control = self._control
        if not control.loop.is_running():
            # The garbage collector ends this, without a loop. The peer may still write.
            self._sender = None
            end.is_left_to_thread.set()
            call.add_done_callback(_free_result)
            return
        control.keep_open = True
        sender, self._sender = self._sender, None

        async def finish() -> None:
            try:
                communicator = await asyncio.shield(asyncio.wrap_future(call))
                if not isinstance(communicator, OSError):
                    free(communicator)
                self._send_failed(error)
                await control.receive_last()
                end.is_confirmed.set()
                if sender is not None:
                    SENDERS.discard(sender)
            finally:
                if not end.is_confirmed.is_set():
                    end.is_left_to_thread.set()
                    call.add_done_callback(_free_result)
                control.keep_open = False
                control.abort()

        # Not kept elsewhere: if the event loop is closed, the thread goes on alone.
        control.finishing = control.loop.create_task(finish())

    @contextlib.asynccontextmanager
    async def _failing(self, pair: Pair) -> AsyncIterator[None]:
        """If the block fails, drop `pair` and send FAILED."""
        try:
            yield
        except BaseException as error:
            if not forget(self._peer.process, pair) and self._mode == "elastic":
                free(pair.communicator)
            self._send_failed(error)
            raise


@contextlib.asynccontextmanager
async def _step(awaited: str) -> AsyncIterator[None]:
    """Raise OSError if the block takes longer than `STEP_TIMEOUT_S`."""
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            yield
    except TimeoutError:
        raise OSError(f"the peer sent no {awaited} within {STEP_TIMEOUT_S} s") from None


def _free_result(call: Future[Any]) -> None:
    if not isinstance(communicator := call.result(), OSError):
        free(communicator)

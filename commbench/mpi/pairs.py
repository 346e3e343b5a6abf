"""The peers to which this process has a communicator; on this host, until they die."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from commbench.mpi import shared_memory
from commbench.mpi.control import Control
from commbench.mpi.engine import Engine
from commbench.mpi.handshake import Hello
from commbench.mpi.receive_queue import SENDERS, has_ended
from commbench.mpi.runtime import Runtime
from commbench.mpi.transfers import Transfer

__all__ = [
    "LOCK", "PAIRS", "Pair", "agree_on_key", "awaited_secret", "forget", "release_dead",
    "release_dead_soon",
]  # fmt: skip

RELEASE_AFTER_S = (1, 4, 16, 64)
"""The delays after the end of a connection at which to check whether the peer has died. The last
check is repeated as long as there are peers on this host.
"""
_RECHECK_S = 0.25
"""The delay between two checks of the receive queue while a slot is unwritten."""


class Pair(NamedTuple):
    """The communicator and the key that this process shares with a peer.

    Attributes
    ----------
    communicator, rank
        The communicator, and the peer's rank in it.
    key
        A secret of the two processes.
    pid, started
        The peer's process id, and when it started, as in `started_at`.
    segments
        The peer's System V segments, if both are on one host.
    """

    communicator: Any
    rank: int
    key: bytes
    pid: int
    started: int | None = None
    segments: frozenset[int] = frozenset()


PAIRS: dict[str, list[Pair]] = {}
"""By the peer's name. There are several if one end has abandoned a connect."""
LOCK = threading.RLock()
"""Reentrant: the garbage collector may end a handshake in a thread that has it."""
_failed: set[tuple[int, int | None]] = set()
"""The processes, by pid and start, of failed pairs: their memory may be attached."""
_SECRET_NBYTES = 32
_awaited: dict[bytes, bytes] = {}
"""By what it begins with, the secret that each handshake awaits; empty until it has arrived."""
_checks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, float]] = WeakKeyDictionary()
"""By event loop and delay, the time of the next check."""


def release_dead_soon() -> None:
    """Schedule `release_dead` in this event loop, once for many calls."""
    for delay in RELEASE_AFTER_S:
        _schedule_check(delay)


def _schedule_check(delay: float) -> None:
    loop = asyncio.get_running_loop()
    checks = _checks.setdefault(loop, {})
    # The check of an earlier call counts for this one, too, if it comes late enough.
    if (now := time.monotonic()) + delay / 2 > checks.get(delay, 0):
        checks[delay] = now + delay
        loop.call_later(delay, _check, delay)


def _check(delay: float) -> None:
    if release_dead() and delay == RELEASE_AFTER_S[-1]:
        _schedule_check(delay)
    if not SENDERS.are_blocked():
        return

    def on_checked(check: asyncio.Future[bool]) -> None:
        if not check.cancelled() and not check.exception() and check.result():
            _schedule_check(_RECHECK_S)

    # Reading the threads of hundreds of processes takes long.
    with contextlib.suppress(RuntimeError):  # No thread can be started.
        check = asyncio.get_running_loop().run_in_executor(None, SENDERS.skip_abandoned)
        check.add_done_callback(on_checked)


def forget(name: str, pair: Pair) -> bool:
    """Don't use `pair` for new connections; return whether it was in `PAIRS`.

    If it was, connections may use it already. When the peer has died, its memory is detached.
    """
    with LOCK:
        pairs = PAIRS.get(name, [])
        if known := pair in pairs:
            pairs.remove(pair)
            if not pairs:
                del PAIRS[name]
        if pair.segments:
            _failed.add((pair.pid, pair.started))
    return known


def release_dead() -> bool:
    """Drop peers on this host that have died, detach their memory; return whether some live."""
    with LOCK:
        known = _near()
    dead = {process for process in known if has_ended(*process)}
    with LOCK:
        alive = _near() - dead
        for name, pairs in list(PAIRS.items()):
            PAIRS[name] = [p for p in pairs if not p.segments or (p.pid, p.started) not in dead]
            if not PAIRS[name]:
                del PAIRS[name]
        _failed.difference_update(dead)
        # Not only what they said: UCX may have attached more, and strangers may name any segment.
        if pids := {pid for pid, _ in dead} - {pid for pid, _ in alive}:
            try:
                shared_memory.release(shared_memory.made_by(pids))
            except OSError:
                # No file can be opened now: at the next check.
                _failed.update(dead)
                return True
        return bool(alive)


def _near() -> set[tuple[int, int | None]]:
    """Return the processes on this host whose memory may be attached, by pid and start."""
    return {(p.pid, p.started) for some in [*PAIRS.values()] for p in some if p.segments} | _failed


@contextlib.contextmanager
def awaited_secret(hello: Hello, peer: Hello) -> Iterator[bytes]:
    """Keep the peer's secret from now on; give what it begins with, a hash of both nonces.

    The peer may send it as soon as it knows that both ends connect. What no handshake waits for is
    dropped: in world mode, strangers can have a process send to any rank.
    """
    mark = hashlib.sha256("".join(sorted([hello.nonce, peer.nonce])).encode()).digest()
    _awaited[mark] = b""
    try:
        yield mark
    finally:
        del _awaited[mark]


async def agree_on_key(local: Runtime, pair: Pair, mark: bytes, control: Control) -> bytes:
    """Return a key derived from random bytes that both ends exchange over MPI.

    Parameters
    ----------
    mark
        What both messages begin with: that of `awaited_secret`.

    Raises
    ------
    OSError
        If the peer goes away, or MPI fails.
    """
    secret = secrets.token_bytes(_SECRET_NBYTES)
    buffer = bytearray(mark + secret)
    requests: list[Any] = []
    delay = 0.0
    engine = Engine.for_loop(asyncio.get_running_loop())
    try:
        send = pair.communicator.Isend
        requests.append(send((buffer, local.mpi.BYTE), pair.rank, local.tags.reserved))
        while True:
            _receive_secrets(local, pair.communicator)
            if _awaited[mark] and local.mpi.Request.Testall(requests):
                break
            control.raise_if_lost()
            await asyncio.sleep(delay)
            delay = min(delay * 1.5 + 1e-4, 0.02)
    except BaseException as error:
        engine.park([Transfer(requests, buffer, len(buffer), False, None)])
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise OSError(f"MPI could not exchange keys: {error}") from error
        raise
    return hashlib.sha256(b"".join(sorted([secret, _awaited[mark]]))).digest()


def _receive_secrets(local: Runtime, communicator: Any) -> None:
    """Receive all secrets that have arrived, of this handshake and of others."""
    with LOCK:
        status, byte = local.mpi.Status(), local.mpi.BYTE
        probe = communicator.Improbe
        while (message := probe(local.mpi.ANY_SOURCE, local.tags.reserved, status)) is not None:
            buffer = bytearray(status.Get_count(byte))
            message.Recv((buffer, byte))
            mark, secret = bytes(buffer[:-_SECRET_NBYTES]), bytes(buffer[-_SECRET_NBYTES:])
            if mark in _awaited:
                _awaited[mark] = secret

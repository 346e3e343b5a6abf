"""The peers to which this process has a communicator; on this host, until they die."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import threading
import time
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
    "LOCK", "PAIRS", "Pair", "agree_on_key", "forget", "release_dead", "release_dead_soon",
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
LOCK = threading.Lock()
_failed: set[tuple[int, int | None]] = set()
"""The processes, by pid and start, of failed pairs: their memory may be attached."""
_SECRET_NBYTES = 32
_awaited: dict[bytes, bytes] = {}
"""By what it begins with, the secret that each handshake awaits; empty until it has arrived."""
_MAX_EARLY = 256
_early: dict[bytes, bytes] = {}
"""Secrets that no handshake awaits: not yet, or not any more."""
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
        known = {(p.pid, p.started) for pairs in PAIRS.values() for p in pairs if p.segments}
        known |= _failed
        dead = {process for process in known if has_ended(*process)}
        alive = known - dead
        for name, pairs in list(PAIRS.items()):
            PAIRS[name] = [p for p in pairs if not p.segments or (p.pid, p.started) in alive]
            if not PAIRS[name]:
                del PAIRS[name]
        _failed.difference_update(dead)
        # Not only what they said: UCX may have attached more, and strangers may name any segment.
        if pids := {pid for pid, _ in dead} - {pid for pid, _ in alive}:
            shared_memory.release(shared_memory.made_by(pids))
        return bool(alive)


async def agree_on_key(
    local: Runtime, pair: Pair, hello: Hello, peer: Hello, control: Control
) -> bytes:
    """Return a key derived from random bytes that both ends exchange over MPI.

    The message begins with a hash of both nonces. In world mode, strangers can have this process
    send to any rank, which drops what no handshake there waits for.

    Raises
    ------
    OSError
        If the peer goes away, or MPI fails.
    """
    nonces = "".join(sorted([hello.nonce, peer.nonce])).encode()
    mark, secret = hashlib.sha256(nonces).digest(), secrets.token_bytes(_SECRET_NBYTES)
    buffer = bytearray(mark + secret)
    requests: list[Any] = []
    delay = 0.0
    engine = Engine.for_loop(asyncio.get_running_loop())
    with LOCK:
        _awaited[mark] = _early.pop(mark, b"")
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
    finally:
        theirs = _awaited.pop(mark)
    return hashlib.sha256(b"".join(sorted([secret, theirs]))).digest()


def _receive_secrets(local: Runtime, communicator: Any) -> None:
    """Receive all secrets that have arrived, of this handshake and of others."""
    with LOCK:
        status, byte = local.mpi.Status(), local.mpi.BYTE
        probe = communicator.Improbe
        while (message := probe(local.mpi.ANY_SOURCE, local.tags.reserved, status)) is not None:
            buffer = bytearray(status.Get_count(byte))
            message.Recv((buffer, byte))
            mark, secret = bytes(buffer[:-_SECRET_NBYTES]), bytes(buffer[-_SECRET_NBYTES:])
            (_awaited if mark in _awaited else _early)[mark] = secret
            while len(_early) > _MAX_EARLY:
                del _early[next(iter(_early))]

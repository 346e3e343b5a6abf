"""The peers to which this process has a communicator; those on this host until they die."""

from __future__ import annotations

import asyncio
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
from commbench.mpi.receive_queue import SENDERS, exists
from commbench.mpi.runtime import Runtime
from commbench.mpi.transfers import Transfer

__all__ = [
    "LOCK", "PAIRS", "Pair", "agree_on_key", "forget", "release_dead", "release_dead_soon",
]  # fmt: skip

RELEASE_AFTER_S = (1, 4, 16, 64)
"""The delays after the end of a connection at which to check whether the peer has died."""
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
    pid
        The peer's process id.
    segments
        The peer's System V segments, if both are on one host.
    """

    communicator: Any
    rank: int
    key: bytes
    pid: int
    segments: frozenset[int] = frozenset()


PAIRS: dict[str, list[Pair]] = {}
"""By the peer's name. There are several if one end has abandoned a connect."""
LOCK = threading.Lock()
_FORGOTTEN = ""
"""The key of pairs that failed after the connect; no process has this name."""
_checks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, float]] = WeakKeyDictionary()
"""By event loop and delay, the time of the next check."""


def release_dead_soon() -> None:
    """Schedule `release_dead` in this event loop, once for many calls."""
    for delay in RELEASE_AFTER_S:
        _schedule_check(delay)


def _schedule_check(delay: float) -> None:
    loop = asyncio.get_running_loop()
    checks = _checks.setdefault(loop, {})
    if (now := time.monotonic()) > checks.get(delay, 0):
        checks[delay] = now + delay
        loop.call_later(delay, _check)


def _check() -> None:
    release_dead()
    if SENDERS.skip_abandoned():
        _schedule_check(_RECHECK_S)


def forget(name: str, pair: Pair) -> bool:
    """Don't use `pair` for new connections; return whether some may use it already."""
    with LOCK:
        pairs = PAIRS.get(name, [])
        if pair not in pairs:
            return False
        pairs.remove(pair)
        if not pairs:
            del PAIRS[name]
        PAIRS.setdefault(_FORGOTTEN, []).append(pair)
    return True


def release_dead() -> None:
    """Forget peers on this host that have died, and detach their shared memory."""
    with LOCK:
        dead, alive = set[int](), set[int]()
        for name, pairs in list(PAIRS.items()):
            gone = [pair for pair in pairs if pair.segments and not exists(pair.pid)]
            dead.update(*(pair.segments for pair in gone))
            alive.update(*(pair.segments for pair in pairs if pair not in gone))
            if gone:
                PAIRS[name] = [pair for pair in pairs if pair not in gone]
            if not PAIRS[name]:
                del PAIRS[name]
        if dead:
            shared_memory.release(dead - alive)


async def agree_on_key(
    local: Runtime, pair: Pair, hello: Hello, peer: Hello, control: Control
) -> bytes:
    """Return a key derived from random bytes that both ends exchange over MPI.

    Raises
    ------
    OSError
        If the peer goes away, or MPI fails.
    """
    sent, received = bytearray(secrets.token_bytes(32)), bytearray(32)
    byte = local.mpi.BYTE
    requests: list[Any] = []
    delay = 0.0
    try:
        requests.append(pair.communicator.Irecv((received, byte), pair.rank, hello.tag))
        requests.append(pair.communicator.Isend((sent, byte), pair.rank, peer.tag))
        while not local.mpi.Request.Testall(requests):
            control.raise_if_failed()
            await asyncio.sleep(delay)
            delay = min(delay * 1.5 + 1e-4, 0.02)
    except BaseException as error:
        begun = Transfer(requests, (sent, received), 32, True, lambda *_: None)
        begun.cancel()
        Engine.for_loop(asyncio.get_running_loop()).park(begun)
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise OSError(f"MPI could not exchange keys: {error}") from error
        raise
    return hashlib.sha256(b"".join(sorted([bytes(sent), bytes(received)]))).digest()

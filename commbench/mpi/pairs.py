"""The processes that this one has met: those on this host until they die."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from commbench.mpi import shared_memory
from commbench.mpi.engine import Engine
from commbench.mpi.handshake import Hello
from commbench.mpi.line import Line
from commbench.mpi.receive_queue import SENDERS, exists
from commbench.mpi.runtime import Runtime
from commbench.mpi.transfer import Transfer

__all__ = [
    "LOCK", "PAIRS", "Pair", "agree_on_key", "forget", "release_dead", "release_dead_soon",
]  # fmt: skip

RELEASE_AFTER_S = (1, 4, 16, 64)
"""How long after the end of a connection to look whether the peer has died."""
_LOOK_AGAIN_S = 0.25
"""How long after a look at the receive queue to look again, where a slot is unwritten."""


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


PAIRS: dict[str, list[Pair]] = {}
"""By the name that the other process gives itself: several where one end gave a meeting up."""
LOCK = threading.Lock()
_FORGOTTEN = ""
"""The name of those with whom a meeting failed at last; no process can have it."""
_looks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, float]] = WeakKeyDictionary()
"""Of each event loop, when to look next, by the time since a connection ended or the last look."""


def release_dead_soon() -> None:
    """Look for dead peers later, and for many calls once; to be called in an event loop."""
    for delay in RELEASE_AFTER_S:
        _look_after(delay)


def _look_after(delay: float) -> None:
    loop = asyncio.get_running_loop()
    looks = _looks.setdefault(loop, {})
    if (now := time.monotonic()) > looks.get(delay, 0):
        looks[delay] = now + delay
        loop.call_later(delay, _look)


def _look() -> None:
    release_dead()
    if SENDERS.look():
        _look_after(_LOOK_AGAIN_S)


def forget(name: str, pair: Pair) -> bool:
    """Don't use `pair` for new connections; return whether there may be some that use it."""
    with LOCK:
        known = PAIRS.get(name, [])
        if pair not in known:
            return False
        known.remove(pair)
        if not known:
            del PAIRS[name]
        PAIRS.setdefault(_FORGOTTEN, []).append(pair)
    return True


def release_dead() -> None:
    """Forget the processes on this host that have died, and release their shared memory."""
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


async def agree_on_key(own: Runtime, pair: Pair, hello: Hello, peer: Hello, line: Line) -> bytes:
    """Return a key that both ends make of what they send each other over MPI.

    Raises
    ------
    OSError
        Where the peer goes away, or MPI fails.
    """
    mine, theirs = bytearray(secrets.token_bytes(32)), bytearray(32)
    byte = own.mpi.BYTE
    requests: list[Any] = []
    delay = 0.0
    try:
        requests.append(pair.communicator.Irecv((theirs, byte), pair.rank, hello.tag))
        requests.append(pair.communicator.Isend((mine, byte), pair.rank, peer.tag))
        while not own.mpi.Request.Testall(requests):
            line.check()
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

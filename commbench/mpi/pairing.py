"""The communicator that two processes share: at most one per pair, made when they first meet.

To make it both must call MPI at the same time, and wait in that call on a full core. So they first
agree over TCP. The process with the smaller name is the *acceptor*: it alone decides which of
several connections the pair meets over, so that crossing connections can't wait for each other.
It offers a place that no other pair uses, the other end says that it is coming, and both make the
call in a thread of its own.

A process meets one peer at a time, for MPICH crashes where several threads accept and connect at
once. Nobody waits in a circle for that: each meeting takes the turn of the process with the
smaller name first, then that of the other.

elastic
    ``MPI_Comm_accept`` and ``MPI_Comm_connect`` on a port opened for this meeting.
world
    ``MPI_Comm_create_group`` of the two ranks. One duplicate of ``MPI_COMM_WORLD`` would be
    collective over all ranks, in the order of their other collectives: under dask-mpi the
    scheduler listens, and so would wait in it, before it tells the others its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from distributed.comm.core import FatalCommClosedError

from commbench.mpi.handshake import Hello, Kind
from commbench.mpi.line import Line
from commbench.mpi.runtime import Runtime
from commbench.mpi.turn import Turn

__all__ = ["how_to_pair", "share_communicator"]

MEETING_TIMEOUT_S = 20
"""How long MPI waits in accept and connect."""

Place = Future[tuple[Any, int]]
"""The communicator, and the rank of the peer in it."""

_places: dict[str, Place] = {}
_lock = threading.Lock()
_turn = Turn()


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
        return "world"
    if "self" in (own.mode, peer.mode) or not own.library.startswith("MPICH"):
        raise FatalCommClosedError(
            f"{own.library} can't connect processes that were started apart "
            f"(here mode {own.mode}, at the peer {peer.mode}): start all of them with one mpiexec "
            "(dask-mpi), or use MPICH and let mpi:// be the first to initialise MPI, "
            "or start each with mpiexec -n 1"
        )
    return "elastic"


async def share_communicator(own: Runtime, peer: Hello, mode: str, line: Line) -> tuple[Any, int]:
    """Return the communicator of this process and `peer`, and the rank of `peer` in it.

    Both ends call this, and return when both have it.

    Raises
    ------
    OSError
        Where the peer goes away meanwhile.
    """
    if own.process < peer.process:
        return await _accept(own, peer, mode, line)
    return await _follow(own, peer, mode, line)


async def _accept(own: Runtime, peer: Hello, mode: str, line: Line) -> tuple[Any, int]:
    with _lock:
        place = _places.get(peer.process)
        offer = place is None or (place.done() and place.exception() is not None)
        if offer:
            place = _places[peer.process] = Future()
    assert place is not None
    if offer:
        # Not to be interrupted: the peer goes to the place as soon as it has said so.
        await asyncio.shield(asyncio.ensure_future(_offer(own, peer, mode, line, place)))
    shared = await asyncio.wrap_future(place)
    line.send(Kind.READY)
    return shared


async def _offer(own: Runtime, peer: Hello, mode: str, line: Line, place: Place) -> None:
    try:
        await _turn.take()
    except BaseException as error:
        place.set_exception(OSError(repr(error)))
        raise
    place.add_done_callback(lambda _: _turn.give_back())
    port = own.mpi.Open_port() if mode == "elastic" else ""
    try:
        line.send(Kind.OFFER, port=port)
        await line.receive(Kind.COMING)
    except BaseException as error:
        if port:
            own.mpi.Close_port(port)
        place.set_exception(error if isinstance(error, OSError) else OSError(repr(error)))
        raise

    def accept() -> tuple[Any, int]:
        try:
            return _intercommunicator(own, "Accept", port)
        finally:
            own.mpi.Close_port(port)

    _meet(place, accept if port else lambda: _group(own, peer))


async def _follow(own: Runtime, peer: Hello, mode: str, line: Line) -> tuple[Any, int]:
    kind, body = await line.receive(Kind.OFFER, Kind.READY)
    if kind is Kind.OFFER:
        port = str(body.get("port"))
        await _turn.take()
        if line.error is not None:
            # To go there now would be to wait for nobody.
            _turn.give_back()
            raise line.error
        with _lock:
            # An earlier one is void: the acceptor offers again only where that failed.
            place = _places[peer.process] = Future()
        place.add_done_callback(lambda _: _turn.give_back())
        line.send(Kind.COMING)
        if mode == "world":
            _meet(place, lambda: _group(own, peer))
        else:
            _meet(place, lambda: _intercommunicator(own, "Connect", port))
        await line.receive(Kind.READY)
    with _lock:
        place = _places[peer.process]
    return await asyncio.wrap_future(place)


def _meet(place: Place, call: Callable[[], tuple[Any, int]]) -> None:
    def run() -> None:
        try:
            place.set_result(call())
        except Exception as error:  # noqa: BLE001 - mpi4py's class is not importable here
            place.set_exception(OSError(f"MPI could not pair two processes: {error}"))

    threading.Thread(target=run, name="mpi-pairing", daemon=True).start()


def _intercommunicator(own: Runtime, verb: str, port: str) -> tuple[Any, int]:
    # Collective calls on one communicator must follow each other, and several may meet at once.
    with own.lock:
        alone = own.mpi.COMM_SELF.Dup()
        info = own.mpi.Info.Create({"timeout": str(MEETING_TIMEOUT_S)})
    try:
        shared = getattr(alone, verb)(port, info=info)
        shared.Set_errhandler(own.mpi.ERRORS_RETURN)
    finally:
        with contextlib.suppress(own.mpi.Exception):
            info.Free()
            alone.Free()
    return shared, 0


def _group(own: Runtime, peer: Hello) -> tuple[Any, int]:
    first, second = sorted((own.rank, peer.rank))
    group = own.mpi.COMM_WORLD.Get_group().Incl([first, second])
    # MPICH deadlocks where two threads make groups under the same tag.
    shared = own.mpi.COMM_WORLD.Create_group(group, tag=first * own.size + second)
    shared.Set_errhandler(own.mpi.ERRORS_RETURN)
    return shared, 1 - shared.Get_rank()

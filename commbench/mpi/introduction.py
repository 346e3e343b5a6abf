"""Two processes introduce themselves, and agree on a mode."""

from __future__ import annotations

from distributed.comm.core import FatalCommClosedError

from commbench.mpi.handshake import Hello, Kind, shortened
from commbench.mpi.line import Line
from commbench.mpi.runtime import Runtime

__all__ = ["how_to_pair", "introduce"]


async def introduce(line: Line, own: Runtime, hello: Hello, *, connects: bool) -> tuple[Hello, str]:
    """Exchange HELLO; return the peer's, and the mode that both ends have in common.

    Raises
    ------
    FatalCommClosedError
        Where they have none. The peer is sent the reason.
    OSError
        Where the peer goes away, or is no such peer.
    """
    if connects:
        line.send(Kind.HELLO, **vars(hello))
    peer = Hello.parse((await line.receive(Kind.HELLO))[1])
    if connects:
        return peer, how_to_pair(own, peer)
    try:
        mode = how_to_pair(own, peer)
    except FatalCommClosedError as error:
        line.send(Kind.REFUSE, reason=shortened(str(error)))
        line.close()
        raise
    line.send(Kind.HELLO, **vars(hello))
    return peer, mode


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
            "connected there, or UCX_NET_DEVICES says so: set that, or use another address first"
        )
    return "elastic"

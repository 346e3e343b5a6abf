"""What a stranger, who proves nothing, can make this process do: MPI is a stub."""

import asyncio
import secrets
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.comm.core import FatalCommClosedError
from mpi_stubs import Communicator, Status

from commbench.mpi import pairing, pairs
from commbench.mpi.connect import CALLS
from commbench.mpi.control import Control
from commbench.mpi.handshake import Hello, Kind, encode
from commbench.mpi.receive_queue import Senders
from commbench.mpi.tags import TagAllocator

HOST = "boot-1-2"


def hello(name: str, mode: str, **given: Any) -> Hello:
    """Return the HELLO of a process."""
    fields = {
        "library": "MPICH", "world": "2", "rank": 0, "host": HOST, "pid": 1, "tag": 120,
        "gpu_memory": "host", "nonce": secrets.token_hex(16),
    }  # fmt: skip
    return Hello(process=32 * name, mode=mode, **(fields | given))


class World(Communicator):
    """A communicator, on which other messages have arrived."""

    def Improbe(self, rank: int, tag: int, status: Status) -> Any:  # noqa: N802 - mpi4py's name
        assert tag == 99
        return super().Improbe(rank, tag, status)


def runtime(world: World) -> Any:
    """Return rank 0 of a world of two, in which mpi:// has the tags from 100 on."""
    mpi = SimpleNamespace(
        COMM_WORLD=world, BYTE=None, ANY_SOURCE=-1, Status=Status,
        Request=SimpleNamespace(Testall=lambda _: True),
    )  # fmt: skip
    return SimpleNamespace(
        process=32 * "0", mode="world", world="2", size=2, rank=0, library="MPICH", mpi=mpi,
        host=HOST, port="p", segments=frozenset(), tags=TagAllocator(100, 199), devices=None,
    )  # fmt: skip


class Connection:
    """The stranger's end: it sends these messages, and is gone."""

    def __init__(self, *messages: tuple[Kind, dict[str, Any]]) -> None:
        self.messages = list(messages)
        self.sent: list[Kind] = []

    def send(self, kind: Kind, **_: Any) -> None:
        self.sent.append(kind)

    async def receive(self, *_: Kind) -> tuple[Kind, dict[str, Any]]:
        if not self.messages:
            raise OSError("the stranger has gone")
        return self.messages.pop(0)

    def raise_if_lost(self) -> None:
        if not self.messages:
            raise OSError("the stranger has gone")


def handshake(world: World, mode: str, peer: Hello, *messages: tuple[Kind, dict[str, Any]]) -> None:
    """Go through the handshake with a stranger, up to its end."""
    local = hello("0", mode)
    with pytest.raises(OSError, match="has gone"):
        asyncio.run(
            pairing.share_communicator(runtime(world), local, peer, mode, Connection(*messages))  # type: ignore[arg-type]
        )


CONNECTS = ((Kind.PROOF, {"proofs": []}), (Kind.CONNECTING, {"port": "", "segments": []}))


def test_a_rank_sends_on_one_tag_only_before_anything_is_proven() -> None:
    world = World()
    handshake(world, "world", hello("f", "world", rank=1, tag=150), *CONNECTS)
    assert world.sent == [(64, 1, 99)]


def test_secrets_of_other_handshakes_are_kept_and_unknown_ones_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [secrets.token_bytes(64) for _ in range(1000)]
    awaited = others[::2]
    monkeypatch.setattr(pairs, "_awaited", {other[:32]: b"" for other in awaited})
    handshake(World(*others), "world", hello("f", "world", rank=1), *CONNECTS)
    assert pairs._awaited == {other[:32]: other[32:] for other in awaited}


@pytest.mark.parametrize(
    ("ours", "theirs", "messages", "connects"),
    [
        ("0", "f", CONNECTS, Kind.CONNECT),
        ("f", "0", [(Kind.CONNECT, {"tag": 1, "port": "", "segments": []})], Kind.CONNECTING),
    ],
)
def test_a_secret_is_awaited_before_the_peer_can_send_it(
    ours: str, theirs: str, messages: list[tuple[Kind, dict[str, Any]]], connects: Kind
) -> None:
    """Hundreds of ranks may send theirs at once."""
    n_awaited = {}

    class Watched(Connection):
        def send(self, kind: Kind, **_: Any) -> None:
            n_awaited[kind] = len(pairs._awaited)

    local, peer = hello(ours, "world"), hello(theirs, "world", rank=1)
    here = runtime(World())
    here.process = local.process
    with pytest.raises(OSError, match="has gone"):
        asyncio.run(
            pairing.share_communicator(here, local, peer, "world", Watched(*messages))  # type: ignore[arg-type]
        )
    assert n_awaited[connects] == 1
    assert not pairs._awaited


def test_a_connect_whose_loop_is_closed_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    monkeypatch.setattr(pairing, "_connecting", {32 * "f": (Future(), loop)})
    handshake(World(), "world", hello("f", "world", rank=1), *CONNECTS)
    assert not pairing._connecting


def test_the_garbage_collector_may_end_a_handshake_under_a_lock() -> None:
    with pairs.LOCK:
        assert not pairs.forget("nobody", pairs.Pair(None, 0, b"", 1))
    senders = Senders()
    with senders._lock:
        senders.discard(senders.add(None))
    tags = TagAllocator(7, 9)
    with tags._lock:
        tags.release(tags.allocate())


@pytest.mark.parametrize("tag", [7, 99, 200])
def test_a_tag_of_the_application_is_refused(tag: int) -> None:
    with pytest.raises(FatalCommClosedError, match=f"the tag {tag} is not one of mpi://"):
        pairing.agree_on_mode(runtime(World()), hello("f", "world", rank=1, tag=tag))
    assert pairing.agree_on_mode(runtime(World()), hello("f", "world", rank=1)) == "world"


@pytest.mark.parametrize("host", [HOST, ""])
def test_a_failed_handshake_adds_no_sender(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may name any process, or one that nobody can see."""
    senders = Senders()
    monkeypatch.setattr(pairing, "SENDERS", senders)
    added = []
    add = senders.add
    monkeypatch.setattr(senders, "add", lambda pid: added.append(add(pid)) or added[-1])
    handshake(World(), "elastic", hello("f", "elastic", host=host), CONNECTS[0])
    assert len(added) == 1
    assert not senders._counts


def test_a_follower_stays_a_sender_until_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have read CONNECT, and call MPI, though the leader was cancelled."""
    senders = Senders()
    monkeypatch.setattr(pairing, "SENDERS", senders)

    async def lead() -> None:
        control = Control(asyncio.get_running_loop())
        ours, theirs = hello("0", "elastic"), hello("f", "elastic")
        leading = asyncio.ensure_future(
            pairing.share_communicator(runtime(World()), ours, theirs, "elastic", control)
        )
        control.data_received(encode(Kind.PROOF, {"proofs": []}))
        while not senders._counts:
            await asyncio.sleep(0)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        await asyncio.sleep(0.01)
        assert senders._counts
        assert CALLS.n_kept == 1
        control.connection_lost(None)
        assert control.finishing is not None
        await control.finishing
        assert not senders._counts
        assert CALLS.n_kept == 0

    asyncio.run(lead())


def test_a_peer_with_its_ipc_namespace_and_another_of_pids_is_refused() -> None:
    local, peer = runtime(World()), hello("f", "elastic", host="boot-1-9")
    local.mode, local.host, local.segments = "elastic", "boot-1-2", frozenset({7})
    with pytest.raises(FatalCommClosedError, match="share an IPC namespace, but no PID namespace"):
        pairing.agree_on_mode(local, peer)
    local.segments = frozenset()
    assert pairing.agree_on_mode(local, peer) == "elastic"


def test_loopback_without_shared_memory_is_refused() -> None:
    # UCX's TCP finds no route within a host there, and MPICH would crash.
    local, peer = runtime(World()), hello("f", "elastic", host="boot-1-2")
    local.mode, local.host, local.devices = "elastic", "boot-1-2", frozenset({"lo"})
    local.segments = frozenset()
    with pytest.raises(FatalCommClosedError, match="UCX has no System V shared memory"):
        pairing.agree_on_mode(local, peer)
    local.segments = frozenset({7})
    assert pairing.agree_on_mode(local, peer) == "elastic"


def test_without_a_queue_no_dead_process_is_remembered() -> None:
    senders = Senders()
    senders.discard(senders.add(2**31 - 1))
    assert not senders._counts

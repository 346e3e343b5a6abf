"""How handshakes and listeners end: cancelled, late, or with the peer's reason. MPI is a stub."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dask
import pytest
from distributed.comm.core import FatalCommClosedError
from distributed.comm.tcp import set_tcp_timeout
from scenarios import in_event_loop

from commbench.errors import UnavailableError
from commbench.mpi import backend, pairing, pairs
from commbench.mpi.backend import MPIConnector, MPIListener
from commbench.mpi.control import Control
from commbench.mpi.handshake import Kind, RefusedError, encode


def handshake(control: Any, mode: str = "world") -> Any:
    """Return this end of a handshake."""
    world, none = SimpleNamespace(COMM_WORLD=None), frozenset[int]()
    local = SimpleNamespace(mpi=world, host="h", segments=none)
    peer: Any = SimpleNamespace(process="f", pid=1, rank=1, host="h")
    return pairing._Handshake(local, peer, peer, mode, control)  # type: ignore[arg-type]


@in_event_loop
async def test_a_connection_may_have_the_transport_of_uvloop() -> None:
    """It is no ``asyncio.Transport``, though it has all of its methods."""
    control = Control(asyncio.get_running_loop())
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        with socket.create_connection((host, port)) as sock:
            control.connection_made(SimpleNamespace(get_extra_info=lambda _: sock))  # type: ignore[arg-type]
            assert control.peer_address == f"{host}:{port}"


@in_event_loop
async def test_a_handshake_cancelled_as_the_answer_arrives_is_cancelled() -> None:
    control = Control(asyncio.get_running_loop())
    receiving = asyncio.ensure_future(handshake(control)._receive(Kind.PROOF))
    while control._reader is None:
        await asyncio.sleep(0)
    control.data_received(encode(Kind.PROOF, {}))
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving


@in_event_loop
async def test_a_cancelled_start_of_a_listener_closes_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "runtime", lambda _: None)
    listener = MPIListener("127.0.0.1:0", lambda _: asyncio.sleep(0))
    starting = asyncio.ensure_future(listener.start())
    while listener._bound is None:
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*listener._bound)
    with pytest.raises(ValueError, match="non-started"):
        listener.get_host_port()


@in_event_loop
async def test_a_listener_may_stop_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "runtime", lambda _: None)
    listener = MPIListener(":0", lambda _: asyncio.sleep(0))
    starting = asyncio.ensure_future(listener.start())
    while not listener._servers:
        await asyncio.sleep(0)
    listener.stop()
    await starting
    with pytest.raises(ValueError, match="non-started"):
        listener.get_host_port()


@pytest.mark.parametrize(
    ("timeout_s", "reason"), [(0.01, "the peer sent no secret within 0.01 s"), (60, "cancelled")]
)
@in_event_loop
async def test_a_failed_exchange_of_keys_has_a_reason_at_both_ends(
    timeout_s: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    control = SimpleNamespace(send=lambda kind, reason: sent.append((kind, reason)))
    monkeypatch.setattr(pairing, "agree_on_key", lambda *_: asyncio.sleep(60))
    monkeypatch.setattr(pairing, "STEP_TIMEOUT_S", timeout_s)
    making = asyncio.ensure_future(handshake(control)._make_pair(b"", 1, "", []))
    await asyncio.sleep(0)
    if reason == "cancelled":
        making.cancel()
    (error,) = await asyncio.gather(making, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError) or str(error) == reason
    assert sent == [(Kind.FAILED, reason)]


@pytest.mark.parametrize(("here", "near"), [((), ()), ((3,), (7,))])
@in_event_loop
async def test_segments_of_the_peer_count_where_ucx_uses_shared_memory(
    here: tuple[int, ...], near: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `UCX_TLS=tcp` it attaches none, and may not be allowed to."""
    this = handshake(Control(asyncio.get_running_loop()), "elastic")
    this._local.segments = frozenset(here)
    connect = mock.AsyncMock(side_effect=OSError("no"))
    monkeypatch.setattr(this, "_connect", connect)
    with pytest.raises(OSError, match="no"):
        await this._make_pair(b"", 1, "tag#0$connentry#202A48B197F363EC$", [7])
    assert connect.call_args.args[-1].segments == frozenset(near)


@pytest.mark.parametrize(
    ("error", "answer", "raises", "sends"),
    [
        (OSError("timed out"), (), OSError("timed out"), Kind.FAILED),
        (OSError("timed out"), [Kind.FAILED], OSError("the peer could not meet: no"), Kind.FAILED),
        (OSError("timed out"), [Kind.REFUSE], RefusedError("no"), Kind.FAILED),
        (FatalCommClosedError("no"), (), FatalCommClosedError("no"), Kind.REFUSE),
    ],
)
@in_event_loop
async def test_a_failed_connect_has_the_reason_of_the_end_that_failed_first(
    error: OSError,
    answer: Sequence[Kind],
    raises: OSError,
    sends: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer of another user can never connect; it says so while this end waits for it."""
    control, sent = Control(asyncio.get_running_loop()), []
    monkeypatch.setattr(control, "duplicate", lambda: 0)
    monkeypatch.setattr(control, "send", lambda kind, **_: sent.append(kind))
    monkeypatch.setattr(pairing, "PeerEnd", mock.Mock())

    def start_connect(*_: Any) -> Future[Any]:
        control._messages += [(kind, {"reason": "no"}) for kind in answer]
        call: Future[Any] = Future()
        call.set_result(error)
        return call

    monkeypatch.setattr(pairing, "start_connect", start_connect)
    with pytest.raises(type(raises), match=f"^{raises}$"):
        await handshake(control, "elastic")._connect("", 1, pairs.Pair(None, 0, b"", 1))
    control.connection_lost(None)
    assert control.finishing is not None
    await control.finishing
    assert sent == [sends]


@in_event_loop
async def test_a_time_out_of_tcp_that_is_too_short_is_refused() -> None:
    listener = MPIListener("127.0.0.1:0", lambda _: asyncio.sleep(0))
    for timeout in (5, "10s"):
        with dask.config.set({"distributed.comm.timeouts.tcp": timeout}):
            for attempt in (listener.start(), MPIConnector().connect("127.0.0.1:1")):
                with pytest.raises(UnavailableError, match=f"timeouts.tcp is {timeout}"):
                    await attempt


def test_the_least_time_out_of_tcp_is_that_of_dask() -> None:
    with socket.socket() as sock, dask.config.set({"distributed.comm.timeouts.tcp": "11s"}):
        backend._check_timeout()
        set_tcp_timeout(SimpleNamespace(closed=lambda: False, socket=sock))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 10


class Listener(MPIListener):
    """A listener without a port, and the comms that it serves."""

    def __init__(self) -> None:
        async def handle(_: Any) -> None:
            pass

        super().__init__("127.0.0.1:0", handle)
        self._servers = []
        self.served: list[Any] = []

    async def on_connection(self, comm: Any, handshake_overrides: Any = None) -> None:
        self.served.append(comm)


@pytest.mark.parametrize("n_turns", [0, 1])
@in_event_loop
async def test_a_listener_serves_nobody_after_its_end(
    n_turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends `n_turns` turns of the event loop after the last message of a handshake."""
    aborted = []
    comm = SimpleNamespace(abort=lambda: aborted.append("comm"))
    control: Any = SimpleNamespace(
        abort=lambda: aborted.append("control"), local_address="", peer_address=""
    )
    established = asyncio.get_running_loop().create_future()

    async def establish(*_: Any, **__: Any) -> Any:
        return await established

    monkeypatch.setattr(backend, "_establish", establish)
    listener = Listener()
    listener._on_control(control)
    await asyncio.sleep(0.01)
    established.set_result(comm)
    for _ in range(n_turns):
        await asyncio.sleep(0)
    listener.stop()
    await asyncio.gather(*listener._handlers)
    assert listener.served == []
    assert len(aborted) == 1

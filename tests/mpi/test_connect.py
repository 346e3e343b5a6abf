"""What a process keeps of connects and handshakes is bounded, and a reason is always sent."""

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from distributed.comm.core import FatalCommClosedError
from processes import until

from commbench.mpi import connect, handshake
from commbench.mpi.connect import MAX_CALLS, MAX_KEPT, MAX_LOST, MAX_PEERS, Calls
from commbench.mpi.control import Control
from commbench.mpi.handshake import Kind, ProtocolError, encode


def test_concurrent_calls_are_limited_until_one_ends() -> None:
    calls = Calls()
    for _ in range(MAX_CALLS):
        calls.begin()
    with pytest.raises(OSError, match="at once"):
        calls.begin()
    for end in (calls.end, calls.succeed, lambda: calls.end(OSError("timed out"))):
        end()
        calls.begin()
        with pytest.raises(OSError, match="at once"):
            calls.begin()


def test_communicators_of_a_process_are_limited() -> None:
    calls = Calls()
    for _ in range(MAX_PEERS - 1):
        calls.begin()
        calls.succeed()
    calls.begin()
    with pytest.raises(OSError, match="at once"):
        calls.begin()
    calls.succeed()
    with pytest.raises(FatalCommClosedError, match="start it anew"):
        calls.begin()


def test_threads_kept_after_failed_calls_and_slots_that_mpich_leaks_are_limited() -> None:
    calls = Calls()
    calls.count_kept(MAX_KEPT)
    with pytest.raises(OSError, match="at once"):
        calls.begin()
    calls.count_kept(-1)
    for _ in range(MAX_LOST):
        calls.begin()
        calls.end(OSError("MPI_ERR_PORT: establish_peer_conn failed"))
    assert calls.n_running == 0
    with pytest.raises(FatalCommClosedError, match="firewall"):
        calls.begin()


def test_a_thread_stays_where_ucx_may_still_send_from_its_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError("MPI_ERR_PORT: establish_peer_conn failed")

    n_tests = 0

    def test() -> None:
        nonlocal n_tests
        n_tests += 1

    monkeypatch.setattr(connect, "_connect", fail)
    monkeypatch.setattr(connect, "CALLS", calls := Calls())
    monkeypatch.setattr(connect, "LATE_S", 0.0)
    monkeypatch.setattr(connect, "_NEVER", ended := threading.Event())
    request = SimpleNamespace(Test=test, Cancel=lambda: None, Wait=lambda: None)
    local = SimpleNamespace(
        lock=contextlib.nullcontext(), mpi=SimpleNamespace(BYTE=None),
        self_comm=SimpleNamespace(Irecv=lambda *_: request),
    )  # fmt: skip
    end = SimpleNamespace(wait=lambda _: True, close=lambda: None)
    calls.begin()
    with pytest.raises(OSError, match="establish_peer_conn"):
        raise connect.start_connect(local, "", 0, frozenset(), end).result()  # type: ignore[arg-type]
    until(lambda: calls.n_kept == 0, "the thread waits for its peer")
    (thread,) = (each for each in threading.enumerate() if each.name.startswith("mpi-"))
    assert n_tests >= connect.N_LATE
    thread.join(0.1)
    assert thread.is_alive()
    ended.set()
    thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_peer_of_another_user_is_a_fatal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_drain_late_messages", lambda *_: None)
    monkeypatch.setattr(connect, "CALLS", calls := Calls())
    calls.begin()
    libc = ctypes.CDLL(None)
    segment = libc.shmget(0, 4096, 0o600)
    try:
        os.seteuid(65534)
        call = connect.start_connect(None, "", 0, frozenset({segment}), None)  # type: ignore[arg-type]
        error = call.result()
    finally:
        os.seteuid(0)
        libc.shmctl(segment, 0, None)
    assert isinstance(error, FatalCommClosedError)
    assert "as another user" in str(error)


def test_failure_to_start_a_thread_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(connect, "CALLS", calls := Calls())
    calls.begin()
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(asyncio.new_event_loop()) as loop:
        end = connect.PeerEnd(loop, theirs.detach())
    with pytest.raises(OSError, match="can't start new thread"):
        connect.start_connect(None, "", 0, frozenset(), end)  # type: ignore[arg-type]
    assert calls.n_running == 0


@pytest.mark.parametrize("kind", [Kind.READY, Kind.PROOF])
def test_unread_handshake_messages_are_bounded(kind: Kind) -> None:
    line = Control(None)  # type: ignore[arg-type]
    chunk = encode(kind, {"proof": "0" * 64}) * 100
    n_bytes = 0
    while line.error is None:
        line.data_received(chunk)
        n_bytes += len(chunk)
        assert n_bytes < 1_000_000
    assert isinstance(line.error, ProtocolError)


def test_reason_is_shortened_to_fit_a_message() -> None:
    for reason in ("\U0001f600" * 5000, "\0" * 5000, "x" * 5000):
        short = handshake.shortened(reason)
        assert len(encode(Kind.FAILED, {"reason": short})) < handshake.MAX_BODY
        assert len(short) == 500

"""What a process keeps of connects and handshakes is bounded, and a reason is always sent."""

from __future__ import annotations

import threading

import pytest
from distributed.comm.core import FatalCommClosedError

from commbench.mpi import connect, handshake
from commbench.mpi.connect import MAX_CALLS, MAX_KEPT, MAX_LOST, MAX_PEERS, Calls
from commbench.mpi.control import Control
from commbench.mpi.handshake import Kind, ProtocolError, encode


def test_calls_under_way_are_limited_for_the_time_being() -> None:
    """What ends makes room, whether it failed, made a communicator, or never began."""
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


def test_communicators_are_limited_for_good() -> None:
    """The reason says what to do; calls under way count, for each may make one."""
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


def test_lost_slots_are_limited_for_good() -> None:
    """The reason names what may stand in MPI's way, and the calls themselves are over."""
    calls = Calls()
    for _ in range(MAX_LOST):
        calls.begin()
        calls.end(OSError("MPI_ERR_PORT: establish_peer_conn failed"))
    assert calls.n_running == 0
    with pytest.raises(FatalCommClosedError, match="firewall"):
        calls.begin()


def test_threads_that_stay_are_limited() -> None:
    """They end when their peers have said that they send no more."""
    calls = Calls()
    calls.count_kept(MAX_KEPT)
    with pytest.raises(OSError, match="at once"):
        calls.begin()
    calls.count_kept(-1)
    calls.begin()


def test_no_thread_is_an_error_that_dask_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an OSError, and the call does not count as under way."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(connect, "CALLS", calls := Calls())
    calls.begin()
    with pytest.raises(OSError, match="can't start new thread"):
        connect.start_connect(None, "", 0, frozenset(), threading.Event())  # type: ignore[arg-type]
    assert calls.n_running == 0


@pytest.mark.parametrize("kind", [Kind.READY, Kind.PROOF])
def test_a_handshake_without_end_is_ended(kind: Kind) -> None:
    """However the messages are cut, what waits to be read has a bound."""
    line = Control(None)  # type: ignore[arg-type]
    chunk = encode(kind, {"proof": "0" * 64}) * 100
    n_bytes = 0
    while line.error is None:
        line.data_received(chunk)
        n_bytes += len(chunk)
        assert n_bytes < 1_000_000
    assert isinstance(line.error, ProtocolError)


def test_a_reason_fits_whatever_it_says() -> None:
    """Of a long one the begin is sent."""
    for reason in ("\U0001f600" * 5000, "\0" * 5000, "x" * 5000):
        short = handshake.shortened(reason)
        assert len(encode(Kind.FAILED, {"reason": short})) < handshake.MAX_BODY
        assert len(short) == 500

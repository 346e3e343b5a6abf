"""Ping-pongs over tcp that the test's process measures itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import make_launch, no_idle_cost

from commbench.backends.tcp import TcpBackend
from commbench.harness.measure import peer, pingpong, streams
from commbench.model import Case, Record
from commbench.workloads.base import Context
from commbench.workloads.pingpong import PingPong


@pytest.fixture(scope="session")
def shared_peers() -> Iterator[Callable[..., Any]]:
    """Return a stand-in for ``peer.started`` that starts one process per layer for all tests.

    To start one takes a second. Only the layer raw needs a new one for every connection.
    """
    started, running = peer.started, {}
    with contextlib.ExitStack() as stack:

        @contextlib.contextmanager
        def shared(backend: str, layer: str, *args: Any) -> Iterator[Any]:
            if layer == "raw":
                with started(backend, layer, *args) as process_and_address:
                    yield process_and_address
                return
            if layer not in running or running[layer][0].poll() is not None:
                running[layer] = stack.enter_context(started(backend, layer, *args))
            yield running[layer]

        yield shared


@pytest.fixture
def measure_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that measures a ping-pong with processes started for it alone."""
    for module in (pingpong, streams):
        monkeypatch.setattr(module, "measure_idle", no_idle_cost)
    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 0.1)

    def measure(
        kind: type[PingPong] = PingPong, *, backend: Any = None, records: Any = None,
        iterations: int = 20, warmups: int = 10, **params: Any,
    ) -> list[Record]:  # fmt: skip
        case = Case(workload="pingpong", backend="tcp", iterations=iterations, warmups=warmups)
        records = [] if records is None else records
        context = Context(n_workers=2, device="cpu", seed=7)
        workload = kind(kind.Params(**{"seconds_per_size": 60.0} | params), context)
        pingpong.measure_pair(
            make_launch(case), workload, backend or TcpBackend(), tmp_path, records.append
        )
        return records

    return measure


@pytest.fixture
def measure(
    measure_alone: Callable[..., Any], shared_peers: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:  # fmt: skip
    """Return the same function with peers that other tests use, too."""
    monkeypatch.setattr(pingpong.peer, "started", shared_peers)
    return measure_alone

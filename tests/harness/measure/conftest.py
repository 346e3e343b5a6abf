"""Measurements in the test's process: of a shared cluster, and of ping-pongs over tcp."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import make_launch, no_idle_cost

from commbench.backends.tcp import TcpBackend
from commbench.harness import transfer_log, wire
from commbench.harness.measure import cluster as measuring
from commbench.harness.measure import conditions, fetches, message_loop, peer, streams
from commbench.launchers.launcher import SCHEDULER, RunningCluster
from commbench.machine import environment
from commbench.model import Case
from commbench.model.observed import Record
from commbench.store.emitter import InMemory
from commbench.workloads.pingpong import PingPong
from commbench.workloads.workload import Context, Workload


@pytest.fixture(scope="module")
def measured(cluster: RunningCluster) -> Iterator[Callable[..., Any]]:
    """Return a function that returns the records of a launch on the shared cluster."""

    def measured(
        measure: Any, case: Case, workload: Workload, records: Any = None, index: int = 0
    ) -> Any:
        records = InMemory() if records is None else records
        launch = make_launch(case, index)
        try:
            measure(launch, workload, cluster.backend, cluster, records)
        finally:
            for plugin in (transfer_log.TransferLog, wire.WireMeter, fetches.Fetcher):
                with contextlib.suppress(ValueError):
                    cluster.client.unregister_worker_plugin(plugin.name)
        assert {(record.case_id, record.launch) for record in records} == {(case.id, index)}
        return records

    real = conditions.measure_idle
    with pytest.MonkeyPatch.context() as patch:
        for module in (measuring, fetches):
            patch.setattr(module, "measure_idle", lambda *given: real(*given, 0.1))
        patch.setattr(conditions, "_SETTLE_SECONDS", 0.0)
        yield measured


@pytest.fixture
def far(cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> RunningCluster:
    """Return the cluster with its scheduler and worker 1 on another host, as far as it knows."""
    address = cluster.addresses["1"]
    (pid,) = cluster.client.run(os.getpid, workers=[address]).values()
    scheduler = cluster.client.run_on_scheduler(os.getpid)
    pids = tuple(known for known in cluster.pids if known not in (pid, scheduler))
    monkeypatch.setattr(cluster, "pids", pids)
    for name in ("remote_members", "remote_processes"):
        monkeypatch.setattr(cluster, name, frozenset([address, SCHEDULER]))
    here, kernel_id = os.getpid(), environment.kernel_id
    # Once a test has observed code in this process, Dask sends functions with what they call.
    monkeypatch.setattr(
        environment, "kernel_id", lambda: "another kernel" if os.getpid() == here else kernel_id()
    )
    return cluster


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
                with started(backend, layer, *args) as alone:
                    yield alone
                return
            if layer not in running or running[layer].child.poll() is not None:
                running[layer] = stack.enter_context(started(backend, layer, *args))
            yield running[layer]

        yield shared


@pytest.fixture
def measure_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that measures a ping-pong with processes started for it alone."""
    for module in (message_loop, streams):
        monkeypatch.setattr(module, "measure_idle", no_idle_cost)
    monkeypatch.setattr("commbench.machine.process._NOTICE_SECONDS", 0.1)

    def measure(
        kind: type[PingPong] = PingPong, *, backend: Any = None, records: Any = None,
        iterations: int = 20, warmups: int = 10, **params: Any,
    ) -> list[Record]:  # fmt: skip
        case = Case(workload="pingpong", backend="tcp", iterations=iterations, warmups=warmups)
        records = InMemory() if records is None else records
        context = Context(n_workers=2, device="cpu", seed=7)
        workload = kind(kind.Params(**{"seconds_per_size": 60.0} | params), context)
        message_loop.measure_pair(
            make_launch(case), workload, backend or TcpBackend(), tmp_path, records
        )
        return records

    return measure


@pytest.fixture
def measure(
    measure_alone: Callable[..., Any], shared_peers: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:  # fmt: skip
    """Return the same function with peers that other tests use, too."""
    monkeypatch.setattr(message_loop.peer, "started", shared_peers)
    return measure_alone

"""The contract of launchers."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from commbench import backends
from commbench.conformance.assertions import assert_raises, loaded
from commbench.errors import UsageError
from commbench.harness.cases import cases_for, make_workload
from commbench.harness.measure.cluster import measure_cluster
from commbench.launchers import members
from commbench.launchers.launcher import RunningCluster
from commbench.model import ClusterSpec, Launch
from commbench.model.observed import Sample
from commbench.store.emitter import InMemory

_SPIN_SECONDS = 0.3
_END_SECONDS = 30.0
_WORKLOAD = "transpose-sum"
_PARAMS = {"size": 200, "chunk": 50}


def check_launcher(name: str, scratch: Path, backend: str = "tcp", /, **cluster: Any) -> None:
    """Test that the launcher `name` starts the requested cluster and describes it correctly.

    A cluster is started, and a small workload is measured and verified on it. The CPU time is
    compared with that of a task. Then the cluster is closed.

    Parameters
    ----------
    name
        The entry point.
    scratch
        A folder for the processes' logs.
    backend
        The backend of the cluster.
    **cluster
        Fields of ``ClusterSpec`` that the launcher requires.

    Raises
    ------
    AssertionError
        If the launcher violates its contract.
    CommbenchError
        If the cluster can't be started.
    """
    kind = loaded("launcher", name)
    spec, talk = ClusterSpec(launcher=name, **cluster), backends.parse(backend)
    (case,) = cases_for(_WORKLOAD, (backend,), _PARAMS, spec, iterations=2, warmups=1)
    for field, how in ClusterSpec.settings().items():
        if how.example is not None and field not in kind.supports:
            with assert_raises(UsageError, f"{field}, which {name} does not take,"):
                kind().validate(replace(spec, **{field: how.example}), talk)
    with kind().start(spec, talk.protocol, scratch) as running:
        _check_members(running, spec, talk.protocol, kind.n_processes(spec))
        _check_cpu_time(running)
        launch = Launch(case=case, index=0, block=0, position=0)
        records = InMemory()
        workload: Any = make_workload(case)
        measure_cluster(launch, workload, talk, running, records)
        pids, preexisting = {*running.pids} - {os.getpid()}, running.preexisting
    samples = [record for record in records if isinstance(record, Sample)]
    assert len(samples) == 3, f"of 3 iterations {len(samples)} have a sample"
    assert all(sample.verified for sample in samples), "a sample is not verified"
    if not preexisting:
        _await_end(pids)


def _check_members(
    running: RunningCluster, spec: ClusterSpec, protocol: str, n_processes: int
) -> None:
    names = list(running.names.values())
    assert len(names) == spec.n_workers, f"{spec.n_workers} workers were asked for: {names}"
    assert len(set(names)) == len(names), f"two workers have one name: {names}"
    strange = [where for where in running.names if not where.startswith(f"{protocol}://")]
    assert not strange, f"these addresses are not of {protocol}: {strange}"
    known = set(members.workers_by_address(running.client))
    assert known == set(running.names), f"the scheduler knows {known}, and names has other keys"
    threads = set(running.client.nthreads().values())
    assert threads == {spec.threads_per_worker}, f"workers have {threads} threads"
    # A scheduler may share the client's process.
    wanted = n_processes + 1 + int(running.client.run_on_scheduler(os.getpid) != os.getpid())
    assert running.n_processes == wanted, (
        f"pids and remote_processes have {running.n_processes} processes: scheduler, client and "
        f"workers are {wanted}"
    )
    assert set(running.foreign_pids) <= set(running.pids), "foreign_pids has more than pids"


def _check_cpu_time(running: RunningCluster) -> None:
    for address, name in running.names.items():
        before = running.cpu_seconds()
        used = running.client.submit(_spin, workers=[address], pure=False).result()
        counted = running.cpu_seconds() - before
        assert counted >= used, (
            f"worker {name} used {used:.3f} s of CPU time, and cpu_seconds() has {counted:.3f}"
        )


def _spin() -> float:
    began = time.thread_time()
    while (used := time.thread_time() - began) < _SPIN_SECONDS:
        pass
    return used


def _await_end(pids: set[int]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < deadline, f"processes {left} outlive the cluster"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # Zombies have ended.
    return stat.rpartition(") ")[2][0] not in "ZX"

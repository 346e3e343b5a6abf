"""All that Dask has for one iteration of many workers, generated from a seed."""

from __future__ import annotations

from pathlib import Path

import builders
import numpy as np

from commbench.harness import suite
from commbench.model import ClusterSpec, TaskRecord, TransferRecord, TransportUsed, WireBytes
from commbench.store.parts import Batch


def written(output: Path, n_workers: int, n_fetches: int) -> Path:
    """Write a run of one launch of one iteration, with every kind of record that Dask has for it.

    Every worker fetches `n_fetches` times, from each other one in turn, and has as many tasks;
    there are eight workers to a host. Returns the run's path.
    """
    (case,) = suite.cases_for("merge", ["tcp"], {}, ClusterSpec(n_workers=n_workers), launches=1)
    run = builders.written(output, [case], builders.launches(case, [1.0], n_samples=1))
    many = run.parts("one")
    common = {"case_id": case.id, "launch": 0}
    where, random = {**common, "iteration": 0}, np.random.default_rng(0)
    peers = min(n_fetches, n_workers - 1)
    for number in range(n_workers):
        worker, n = str(number), n_fetches
        host = f"node{number // 8}"
        where_at = f"tcp://10.0.{number // 2000}.{number // 8 % 250}:{40000 + number % 8}"
        start_s = np.sort(random.uniform(0, 100, n)) + builders.EPOCH
        nbytes = random.integers(1_000_000, 50_000_000, n)
        stop_s = (start_s + nbytes / random.uniform(1e9, 2e9, n)).tolist()
        names = [str((number + 1 + offset) % n_workers) for offset in range(peers)]
        sent = nbytes[:peers].tolist()
        for record in (
            Batch.from_columns(
                TransferRecord, **where, dst=worker, src=[names[i % peers] for i in range(n)],
                nbytes=nbytes.tolist(), start_s=start_s.tolist(), stop_s=stop_s, n_keys=1,
                channel="gather",
            ),
            Batch.from_columns(
                TaskRecord, **where, worker=worker, thread=1, name="add", action="compute",
                start_s=start_s.tolist(), stop_s=stop_s,
            ),
            Batch.from_columns(
                WireBytes, **where, src=worker, dst=names, nbytes=sent, n_messages=2
            ),
            Batch.from_columns(
                TransportUsed, **common, src=worker, dst=names, transport="tcp",
                evidence=[f"socket 10.0.0.1:{number} ↔ 10.0.1.1:{peer}" for peer in names],
                contradiction="",
            ),
            builders.log_count(case, worker, n_started=n, n_logged=n),
            builders.address(case, worker, where_at),
            builders.place(case, worker, host=host, host_id=host),
            *(
                builders.thread_time(case, worker, role, cpu_seconds=0.5)
                for role in ("loop", "tasks", "offload", "other")
            ),
            *(
                builders.activity(case, "execute", label, 0.2, worker=worker)
                for label in ("thread-cpu", "thread-noncpu", "executor")
            ),
            *(
                builders.activity(case, "gather-dep", label, 0.2, worker=worker)
                for label in ("deserialize", "network", "other")
            ),
        ):  # fmt: skip
            if isinstance(record, Batch):
                many.add(record)
            else:
                run.append(record)
    many.close()
    run.close()
    return run.path

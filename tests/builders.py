"""Records and cases with everything filled in that a test does not care about."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from commbench import model
from commbench.analysis.run import Run
from commbench.harness import runner
from commbench.model import Case, ClusterSpec, Launch, Manifest, Record, Region, Suite
from commbench.store import tables
from commbench.store.directory import RunStore
from commbench.store.emitter import InMemory
from commbench.store.parts import Batch, all_records
from commbench.store.records import BULK, FIELDS, TABLES

EPOCH = 1_700_000_000.0
"""When everything here happens: as many digits before the point as a real clock shows."""

LONG_NAMES = ("tcp", "ucx", "ucx:tcp+shm", "ucx:tcp+shm+nvlink+ib")


def case(
    backend: str = "tcp", workload: str = "merge", *, n_workers: int = 2, **given: Any
) -> Case:
    """Return a case."""
    cluster = given.pop("cluster", ClusterSpec(n_workers=n_workers))
    return Case(workload=workload, backend=backend, cluster=cluster, **given)


def sample(
    of: Case, seconds: float, *, launch: int = 0, iteration: int = 0, **given: Any
) -> Record:
    """Return a sample of a workload on a cluster."""
    fields = {
        "layer": "workload", "warmup": iteration < 0, "started_at_s": EPOCH + 100 * launch,
        "cpu_seconds": 2.0 * seconds, "payload_bytes": 800_000_000, "verified": True,
    }  # fmt: skip
    fields |= {"case_id": of.id, "launch": launch, "iteration": iteration, "seconds": seconds}
    return model.Sample(**(fields | given))


def message(of: Case, seconds: float, size: int, *, launch: int = 0, **given: Any) -> Record:
    """Return a sample of a ping-pong."""
    return sample(of, seconds, launch=launch, payload_bytes=size, **{"layer": "comm"} | given)


def transfer(
    of: Case, start_s: float, stop_s: float, nbytes: int = 8_000_000, *,
    src: str = "0", dst: str = "1", launch: int = 0, iteration: int = 0, channel: str = "gather",
) -> Record:  # fmt: skip
    """Return an entry of the log of `dst`; times count from ``EPOCH``."""
    return model.TransferRecord(
        case_id=of.id, launch=launch, iteration=iteration, src=src, dst=dst, nbytes=nbytes,
        start_s=EPOCH + start_s, stop_s=EPOCH + stop_s, n_keys=1, channel=channel,
    )  # fmt: skip


def wire(of: Case, nbytes: int, *, src: str = "0", dst: str = "1", **given: Any) -> Record:
    """Return what one worker wrote to another."""
    place = {"launch": 0, "iteration": 0, "n_messages": 2} | given
    return model.WireBytes(case_id=of.id, src=src, dst=dst, nbytes=nbytes, **place)


def log_count(of: Case, worker: str = "0", **given: int) -> Record:
    """Return the count of a worker's fetches, none if not said otherwise."""
    counts = dict.fromkeys(("n_started", "n_logged", "n_busy", "n_failed", "n_in_flight"), 0)
    fields = counts | {"launch": 0, "iteration": 0} | given
    return model.LogCount(case_id=of.id, worker=worker, **fields)


def task(of: Case, start_s: float, stop_s: float, worker: str = "0", **given: Any) -> Record:
    """Return a bar of the task stream; times count from ``EPOCH``."""
    fields = {"launch": 0, "iteration": 0, "thread": 1, "name": "add", "action": "compute"}
    return model.TaskRecord(
        case_id=of.id, worker=worker, start_s=EPOCH + start_s, stop_s=EPOCH + stop_s,
        **(fields | given),
    )  # fmt: skip


def transport(of: Case, name: str = "tcp/lo", *, contradiction: str = "", **given: Any) -> Record:
    """Return what carried the bytes."""
    fields = {"launch": 0, "src": "0", "dst": "1", "evidence": "made up"} | given
    return model.TransportUsed(case_id=of.id, transport=name, contradiction=contradiction, **fields)


def address(of: Case, worker: str = "0", where: str = "", *, launch: int = 0) -> Record:
    """Return where a worker listened: on this host, if not said otherwise."""
    where = where or f"tcp://127.0.0.1:{40_000 + int(worker)}"
    return model.WorkerAddress(case_id=of.id, launch=launch, worker=worker, address=where)


def place(of: Case, worker: str = "0", *, launch: int = 0, **given: Any) -> Record:
    """Return where a worker was: on the one NUMA node of a host, if not said otherwise."""
    fields = {
        "host": "node1", "host_id": "boot net", "pid": 4000 + int(worker), "cpus": "0-1",
        "numa_nodes": "0", "sockets": "0", "gpu": "", "gpu_uuid": "", "gpu_pci": "",
        "gpu_links": "", "nic": "lo",
    }  # fmt: skip
    return model.WorkerPlace(case_id=of.id, launch=launch, worker=worker, **(fields | given))


def network(of: Case, nbytes: int, *, interface: str = "lo", **given: Any) -> Record:
    """Return what the kernel counted."""
    fields = {"launch": 0, "iteration": 0, "host": "local"} | given
    return model.NetworkCounter(case_id=of.id, interface=interface, nbytes=nbytes, **fields)


def idle(of: Case, cpu_seconds: float = 0.1, *, seconds: float = 2.0, launch: int = 0) -> Record:
    """Return what an idle cluster burned."""
    return model.IdleCost(
        case_id=of.id, launch=launch, seconds=seconds, cpu_seconds=cpu_seconds, n_processes=4
    )


def load(of: Case, nbytes: int = 10**9, *, seconds: float = 1.0, launch: int = 0) -> Record:
    """Return what was streamed beside the layer comm."""
    return model.Load(case_id=of.id, launch=launch, layer="comm", nbytes=nbytes, seconds=seconds)


def core_use(
    of: Case, *, others: float = 0.0, stolen: float = 0.0, launch: int = 0, **given: Any
) -> Record:
    """Return what two cores did in ten seconds; `others` and `stolen` are shares of their time."""
    fields = {
        "host": "local", "n_cores": 2, "seconds": 10.0, "own_cpu_seconds": 12.0,
        "busy_cpu_seconds": 12.0 + 20.0 * others, "stolen_cpu_seconds": 20.0 * stolen,
    }  # fmt: skip
    return model.CoreUse(case_id=of.id, launch=launch, **(fields | given))


def spill(of: Case, nbytes: int = 1_000_000, *, worker: str = "0", **given: Any) -> Record:
    """Return what a worker wrote to disk."""
    fields = {"launch": 0, "iteration": 0, "n_values": 3} | given
    return model.Spill(case_id=of.id, worker=worker, nbytes=nbytes, **fields)


def setting(of: Case, name: str, value: str, *, launch: int = 0) -> Record:
    """Return a setting that was in effect."""
    return model.Setting(case_id=of.id, launch=launch, name=name, value=value)


def thread_time(of: Case, worker: str = "0", role: str = "tasks", **given: Any) -> Record:
    """Return the times of the threads of one role, all zero but the windows."""
    counts = dict.fromkeys(
        ("cpu_seconds", "wait_seconds", "n_turns", "idle_cpu_seconds", "idle_wait_seconds",
         "idle_n_turns"), 0,
    )  # fmt: skip
    fields = counts | {"launch": 0, "iteration": 0, "n_threads": 1, "seconds": 10.0}
    fields |= {"idle_seconds": 1.0} | given
    return model.ThreadTime(case_id=of.id, worker=worker, role=role, **fields)


def activity(of: Case, context: str, label: str, seconds: float, **given: Any) -> Record:
    """Return what a worker added to one of Dask's metrics."""
    place = {"launch": 0, "iteration": 0, "worker": "0"} | given
    return model.Activity(case_id=of.id, context=context, label=label, seconds=seconds, **place)


def failure(of: Case, message: str = "it broke", *, launch: int = 0) -> Record:
    """Return a launch that went wrong."""
    return model.Failure(case_id=of.id, launch=launch, stage="launch", message=message)


def end(of: Case, *, launch: int = 0, ok: bool = True) -> Record:
    """Return the end of a launch."""
    return model.LaunchEnd(
        case_id=of.id, launch=launch, block=launch, position=0, ok=ok, seconds=9.0
    )


def run(cases: Iterable[Case], **given: Any) -> Manifest:
    """Return a run of these cases."""
    fields = {
        "id": "20250101-000000-made-up", "environment": {}, "seed": 0,
        "started_at": "2025-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Manifest(suite=Suite(name="made-up", cases=tuple(cases)), **(fields | given))


def in_memory(cases: Iterable[Case], records: Iterable[Record] = (), **given: Any) -> Run:
    """Return a run of these records without files, which is faster than to write and to load it."""
    manifest = run(cases, **given)
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault(type(record).__name__, []).append(vars(record))
    return Run(Path("made-up"), manifest, **{
        name: _frame(kind, rows[kind], manifest.suite.cases) if kind in rows else _empty(kind)
        for name, kind in TABLES.items()
    })  # fmt: skip


@functools.cache
def _empty(kind: str) -> pd.DataFrame:
    return _frame(kind, [], ())


def _frame(kind: str, rows: list[dict[str, Any]], cases: Iterable[Case]) -> pd.DataFrame:
    frame = tables.frame_from_rows(rows, kind)
    for column in ("workload", "backend"):
        names = {case.id: getattr(case, column) for case in cases}
        frame[column] = frame["case_id"].map(names).astype("str")
    return frame


def written(
    output: Path, cases: Iterable[Case], records: Iterable[Record] = (), **given: Any
) -> RunStore:
    """Return the store of a run that ended, with these records on disk."""
    store = RunStore.create(output, run(cases, **given))
    store_all(store, records)
    store.finish()
    return store


def store_all(store: RunStore, records: Iterable[Record], name: str = "made-up") -> None:
    """Store records of all kinds, those in large numbers as closed parts."""
    many: dict[str, list[Record]] = {}
    for record in records:
        if (kind := type(record).__name__) in BULK:
            many.setdefault(kind, []).append(record)
        else:
            store.append(record)
    parts = store.parts(name)
    for kind, each in many.items():
        columns = {field: [getattr(one, field) for one in each] for field in FIELDS[kind]}
        parts.add(Batch(kind, columns))
    parts.close()


def measured(plan: Iterable[Launch], run: Path) -> list[Record]:
    """Run a plan and return its records of all kinds, those in parts first."""
    found = [record for record in runner.run_plan(plan, run) if record is not None]
    return [*all_records(run), *found]


def ended(records: Iterable[Record]) -> list[Record]:
    """Return `records` with a good end for every launch with samples that has no end."""
    records = list(records)
    told = {(r.case_id, r.launch) for r in records if isinstance(r, model.LaunchEnd)}
    begun = {(r.case_id, r.launch): None for r in records if isinstance(r, model.Sample)}
    ends = [
        model.LaunchEnd(
            case_id=case_id, launch=launch, block=launch, position=0, ok=True, seconds=9.0
        )
        for case_id, launch in begun
        if (case_id, launch) not in told
    ]
    return records + ends


def region(of: Case, name: str) -> Region:
    """Return the first region of the first launch."""
    return Region(
        case_id=of.id, launch=0, iteration=0, parent=-1, name=name, started_at_s=100.0, seconds=1.5
    )


def every_kind(of: Case) -> list[Record]:
    """Return one record of each kind."""
    return [
        sample(of, 1.5), region(of, "train"), transfer(of, 0.0, 0.5), wire(of, 7),
        log_count(of, n_started=1),
        task(of, 0.0, 0.25), transport(of), address(of), place(of), network(of, 9), idle(of),
        load(of), core_use(of), spill(of), setting(of, "a", "b"), thread_time(of),
        activity(of, "execute", "thread-cpu", 0.2), failure(of), end(of),
    ]  # fmt: skip


def launches(of: Case, medians: Iterable[float], n_samples: int = 3) -> list[Record]:
    """Return launches of these medians that went well, each with a slow warm-up."""
    records: list[Record] = []
    for launch, median in enumerate(medians):
        records.append(sample(of, 50 * median, launch=launch, iteration=-1))
        for iteration in range(n_samples):
            spread = 0.01 * (iteration - (n_samples - 1) / 2)
            records.append(sample(of, median * (1 + spread), launch=launch, iteration=iteration))
        records += [idle(of, launch=launch), end(of, launch=launch)]
    return records


def expanded(found: Iterable[Record | Batch]) -> list[Record]:
    """Return the records in `found`, of which some come many at a time, one by one."""
    records = InMemory()
    for each in found:
        records(each)
    return records

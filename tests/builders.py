"""Records and cases with everything filled in that a test does not care about."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commbench import model
from commbench.analysis.run import Run
from commbench.errors import CommbenchError
from commbench.harness import runner
from commbench.harness.launch import run_launch
from commbench.model import Case, ClusterSpec, Launch, Manifest, Suite, observed
from commbench.model.observed import Record, Region
from commbench.stats.comparison import Side
from commbench.store import tables
from commbench.store.directory import RunStore
from commbench.store.emitter import InMemory
from commbench.store.parts import Parts, closed, read, table
from commbench.store.records import BULK, FIELDS, KINDS, TABLES

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
    case: Case, seconds: float, *, launch: int = 0, iteration: int = 0, **given: Any
) -> Record:
    """Return a sample of a workload on a cluster."""
    fields = {
        "layer": "workload", "warmup": iteration < 0, "started_at_s": EPOCH + 100 * launch,
        "cpu_seconds": 2.0 * seconds, "payload_bytes": 800_000_000, "verified": True,
    }  # fmt: skip
    fields |= {"case_id": case.id, "launch": launch, "iteration": iteration, "seconds": seconds}
    return observed.Sample(**(fields | given))


def message(case: Case, seconds: float, size: int, *, launch: int = 0, **given: Any) -> Record:
    """Return a sample of a ping-pong."""
    return sample(case, seconds, launch=launch, payload_bytes=size, **{"layer": "comm"} | given)


def transfer(
    case: Case, start_s: float, stop_s: float, nbytes: int = 8_000_000, *,
    src: str = "0", dst: str = "1", launch: int = 0, iteration: int = 0, channel: str = "gather",
    **given: Any,
) -> Record:  # fmt: skip
    """Return an entry of the log of `dst`, or a batch; times count from ``EPOCH``."""
    return observed.TransferRecord(
        case_id=case.id, launch=launch, iteration=iteration, src=src, dst=dst, nbytes=nbytes,
        start_s=EPOCH + start_s, stop_s=EPOCH + stop_s, n_keys=1, channel=channel, **given,
    )  # fmt: skip


def round_trip(
    case: Case, seconds: float, *, src: str = "0", dst: str = "1", **given: Any
) -> Record:
    """Return the time of an empty request."""
    fields = {"launch": 0, "iteration": 0} | given
    return observed.RoundTrip(case_id=case.id, src=src, dst=dst, seconds=seconds, **fields)


def wire(case: Case, nbytes: int, *, src: str = "0", dst: str = "1", **given: Any) -> Record:
    """Return what one worker wrote to another."""
    fields = {"launch": 0, "iteration": 0, "n_messages": 2} | given
    return observed.WireBytes(case_id=case.id, src=src, dst=dst, nbytes=nbytes, **fields)


def log_count(case: Case, worker: str = "0", **given: int) -> Record:
    """Return the count of a worker's fetches, none if not said otherwise."""
    counts = dict.fromkeys(("n_started", "n_logged", "n_busy", "n_failed", "n_in_flight"), 0)
    fields = counts | {"launch": 0, "iteration": 0} | given
    return observed.LogCount(case_id=case.id, worker=worker, **fields)


def task(case: Case, start_s: float, stop_s: float, worker: str = "0", **given: Any) -> Record:
    """Return a bar of the task stream; times count from ``EPOCH``."""
    fields = {"launch": 0, "iteration": 0, "thread": 1, "name": "add", "action": "compute"}
    return observed.TaskRecord(
        case_id=case.id, worker=worker, start_s=EPOCH + start_s, stop_s=EPOCH + stop_s,
        **(fields | given),
    )  # fmt: skip


def graph(case: Case, number: int, received_s: float, code: str = "", **given: Any) -> Record:
    """Return a graph; times count from ``EPOCH``."""
    fields = {"launch": 0, "iteration": 0, "n_tasks": 1, "nbytes": 0, "send_seconds": 0.0} | given
    return observed.Graph(
        case_id=case.id, number=number, received_s=EPOCH + received_s, code=code, **fields
    )


def line_time(case: Case, seconds: float, code: str = "job.py:1 f()", **given: Any) -> Record:
    """Return the time of a line of tasks."""
    fields = {"launch": 0, "iteration": 0, "role": "task", "name": "add"} | given
    return observed.LineTime(case_id=case.id, seconds=seconds, code=code, **fields)


def transport(case: Case, name: str = "tcp/lo", *, contradiction: str = "", **given: Any) -> Record:
    """Return what carried the bytes."""
    fields = {"launch": 0, "src": "0", "dst": "1", "evidence": "made up"} | given
    return observed.TransportUsed(
        case_id=case.id, transport=name, contradiction=contradiction, **fields
    )


def address(case: Case, worker: str = "0", where: str = "", *, launch: int = 0) -> Record:
    """Return where a worker listened: on this host, if not said otherwise."""
    where = where or f"tcp://127.0.0.1:{40_000 + int(worker)}"
    return observed.WorkerAddress(case_id=case.id, launch=launch, worker=worker, address=where)


def place(case: Case, worker: str = "0", *, launch: int = 0, **given: Any) -> Record:
    """Return where a worker was: on the one NUMA node of a host, if not said otherwise."""
    fields = {
        "host": "node1", "host_id": "boot net", "pid": 4000 + int(worker), "cpus": "0-1",
        "numa_nodes": "0", "sockets": "0", "gpu": "", "gpu_uuid": "", "gpu_pci": "",
        "gpu_links": "", "nic": "lo",
    }  # fmt: skip
    return observed.WorkerPlace(case_id=case.id, launch=launch, worker=worker, **(fields | given))


def network(case: Case, nbytes: int, *, interface: str = "lo", **given: Any) -> Record:
    """Return what the kernel counted."""
    fields = {"launch": 0, "iteration": 0, "host": "local"} | given
    return observed.NetworkCounter(case_id=case.id, interface=interface, nbytes=nbytes, **fields)


def idle(case: Case, cpu_seconds: float = 0.1, *, seconds: float = 2.0, launch: int = 0) -> Record:
    """Return what an idle cluster burned."""
    return observed.IdleCost(
        case_id=case.id, launch=launch, seconds=seconds, cpu_seconds=cpu_seconds, n_processes=4
    )


def load(case: Case, nbytes: int = 10**9, *, seconds: float = 1.0, launch: int = 0) -> Record:
    """Return what was streamed during the layer comm."""
    fields = {"launch": launch, "layer": "comm", "nbytes": nbytes, "seconds": seconds}
    return observed.Load(case_id=case.id, **fields)


def core_use(
    case: Case, *, others: float = 0.0, stolen: float = 0.0, launch: int = 0, **given: Any
) -> Record:
    """Return what two cores did in ten seconds; `others` and `stolen` are shares of their time."""
    fields = {
        "host": "local", "n_cores": 2, "seconds": 10.0, "own_cpu_seconds": 12.0,
        "busy_cpu_seconds": 12.0 + 20.0 * others, "stolen_cpu_seconds": 20.0 * stolen,
    }  # fmt: skip
    return observed.CoreUse(case_id=case.id, launch=launch, **(fields | given))


def spill(case: Case, nbytes: int = 1_000_000, *, worker: str = "0", **given: Any) -> Record:
    """Return what a worker wrote to disk."""
    fields = {"launch": 0, "iteration": 0, "n_values": 3} | given
    return observed.Spill(case_id=case.id, worker=worker, nbytes=nbytes, **fields)


def setting(case: Case, name: str, value: str, *, launch: int = 0) -> Record:
    """Return a setting that was in effect."""
    return observed.Setting(case_id=case.id, launch=launch, name=name, value=value)


def thread_time(case: Case, worker: str = "0", role: str = "tasks", **given: Any) -> Record:
    """Return the times of the threads of one role, all zero but the windows."""
    counts = dict.fromkeys(
        ("cpu_seconds", "wait_seconds", "n_turns", "idle_cpu_seconds", "idle_wait_seconds",
         "idle_n_turns"), 0,
    )  # fmt: skip
    fields = counts | {"launch": 0, "iteration": 0, "n_threads": 1, "seconds": 10.0}
    fields |= {"idle_seconds": 1.0} | given
    return observed.ThreadTime(case_id=case.id, worker=worker, role=role, **fields)


def long_turn(case: Case, start: float, stop: float, worker: str = "0", **given: Any) -> Record:
    """Return a turn of a loop, in seconds after EPOCH."""
    fields = {"launch": 0, "iteration": 0} | given
    return observed.LongTurn(
        case_id=case.id, worker=worker, start_s=EPOCH + start, stop_s=EPOCH + stop, **fields
    )


def process_use(
    case: Case, start: float, n_cores: float, worker: str = "0", **given: Any
) -> Record:
    """Return what a process used in the half second from `start` on, in seconds after EPOCH."""
    fields = {"launch": 0, "iteration": 0, "memory_bytes": 10**9} | given
    return observed.ProcessUse(
        case_id=case.id, worker=worker, start_s=EPOCH + start, stop_s=EPOCH + start + 0.5,
        n_cores=n_cores, **fields,
    )  # fmt: skip


def activity(case: Case, context: str, label: str, seconds: float, **given: Any) -> Record:
    """Return what a worker added to one of Dask's metrics."""
    fields = {"launch": 0, "iteration": 0, "worker": "0", "seconds": seconds} | given
    return observed.Activity(case_id=case.id, context=context, label=label, **fields)


def failure(case: Case, message: str = "it broke", *, launch: int = 0) -> Record:
    """Return a launch that went wrong."""
    return observed.Failure(case_id=case.id, launch=launch, stage="launch", message=message)


def end(case: Case, *, launch: int = 0, ok: bool = True, seconds: float = 9.0) -> Record:
    """Return the end of a launch."""
    return observed.LaunchEnd(
        case_id=case.id, launch=launch, block=launch, position=0, ok=ok, seconds=seconds
    )


def finding(case: Case, **given: Any) -> model.Finding:
    """Return what a rule concludes."""
    texts = {"statement": "it is slow", "evidence": "", "remedy": "change it", "doubt": ""}
    return model.Finding(**(texts | {"case_id": case.id} | given))


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


def unfinished(
    output: Path, cases: Iterable[Case], records: Iterable[Record] = (), **given: Any
) -> RunStore:
    """Return the store of a run that is still going on, with these records on disk."""
    store = RunStore.create(output, run(cases, **given))
    store_all(store, records)
    store.close()
    return store


def written(
    output: Path, cases: Iterable[Case], records: Iterable[Record] = (), **given: Any
) -> RunStore:
    """Return the store of a run that ended, with these records on disk."""
    store = unfinished(output, cases, records, **given)
    store.finish()
    return store


def store_all(store: RunStore, records: Iterable[Record], name: str = "made-up") -> None:
    """Store records of all kinds, bulk records as closed parts."""
    for record in into_parts(records, store.parts(name)):
        store.append(record)


def into_parts(records: Iterable[Record], parts: Parts) -> list[Record]:
    """Write the bulk records to `parts`, close these, and return the other records."""
    bulk: dict[str, list[Record]] = {}
    others = []
    for record in records:
        kind = type(record).__name__
        (bulk.setdefault(kind, []) if kind in BULK else others).append(record)
    for kind, rows in bulk.items():
        parts.add(table(KINDS[kind], **{f: [getattr(r, f) for r in rows] for f in FIELDS[kind]}))
    parts.close()
    return others


def simulate_plan(plan: Iterable[Launch], run: Path) -> Iterator[Record]:
    """Yield what `runner.run_plan` yields for simulated backends, without a process per launch."""
    for launch in plan:
        emit, failures = InMemory(), []
        try:
            run_launch(launch, run, emit)
        except CommbenchError as error:
            failures = [failure(launch.case, str(error), launch=launch.index)]
        yield from into_parts(emit, Parts(run, f"{launch.case.id}-{launch.index}"))
        yield from failures
        yield observed.LaunchEnd(
            case_id=launch.case.id, launch=launch.index, block=launch.block,
            position=launch.position, ok=not failures, seconds=1.0,
        )  # fmt: skip


def all_records(run: Path) -> Iterator[Record]:
    """Yield the records in all closed parts of the run in `run`."""
    for kind in BULK:
        for path in closed(run, kind):
            for row in read(path, kind).to_pylist():
                yield KINDS[kind](**row)


def measured(plan: Iterable[Launch], run: Path) -> list[Record]:
    """Run a plan and return its records of all kinds, those in parts first."""
    records = [record for record in runner.run_plan(plan, run) if record is not None]
    return [*all_records(run), *records]


def ended(records: Iterable[Record]) -> list[Record]:
    """Return `records` with a good end for every launch with samples that has no end."""
    records = list(records)
    ended = {(r.case_id, r.launch) for r in records if isinstance(r, observed.LaunchEnd)}
    begun = {(r.case_id, r.launch): None for r in records if isinstance(r, observed.Sample)}
    return records + [
        observed.LaunchEnd(case_id=case_id, launch=n, block=n, position=0, ok=True, seconds=9.0)
        for case_id, n in begun if (case_id, n) not in ended
    ]  # fmt: skip


def region(case: Case, seconds: float, *, start: float = 0.0, **given: Any) -> Region:
    """Return a region named as its case, within no other; `start` counts from ``EPOCH``."""
    fields = {"launch": 0, "iteration": 0, "parent": -1, "name": case.workload} | given
    return Region(case_id=case.id, started_at_s=EPOCH + start, seconds=seconds, **fields)


def every_kind(case: Case) -> list[Record]:
    """Return one record of each kind."""
    return [
        sample(case, 1.5), region(case, 1.5), transfer(case, 0.0, 0.5), wire(case, 7),
        round_trip(case, 1e-4),
        log_count(case, n_started=1), task(case, 0.0, 0.25), transport(case), address(case),
        place(case), network(case, 9), idle(case), load(case), core_use(case), spill(case),
        setting(case, "a", "b"), thread_time(case), failure(case), end(case),
        activity(case, "execute", "thread-cpu", 0.2), long_turn(case, 0.0, 0.25),
        process_use(case, 0.0, 1.5), graph(case, 0, 0.5), line_time(case, 0.5),
    ]  # fmt: skip


def launches(
    cases: Case | Iterable[Case], medians: Iterable[float], n_samples: int = 3, **given: Any
) -> list[Record]:
    """Return launches of these medians that went well, each with a slow warm-up, of each case."""
    medians, records = list(medians), []
    each = [cases] if isinstance(cases, Case) else cases
    for case, (launch, median) in itertools.product(each, enumerate(medians)):
        records.append(sample(case, 50 * median, launch=launch, iteration=-1, **given))
        for iteration in range(n_samples):
            spread = 0.01 * (iteration - (n_samples - 1) / 2)
            seconds = median * (1 + spread)
            records.append(sample(case, seconds, launch=launch, iteration=iteration, **given))
        records += [idle(case, launch=launch), end(case, launch=launch)]
    return records


def launches_by_case(cases: Iterable[Case], medians: Iterable[Iterable[float]]) -> list[Record]:
    """Return the launches of each case, which has its own medians."""
    each = zip(cases, medians, strict=True)
    return [record for case, some in each for record in launches(case, some)]


def messages(
    case: Case, seconds: Mapping[tuple[str, int], float], factors: Iterable[float] = 6 * (1.0,),
    **given: Any,
) -> list[Record]:  # fmt: skip
    """Return a sample of each layer and size per launch, its time by its factor, and the ends."""
    return ended(
        message(case, factor * some, size, layer=layer, launch=launch, **given)
        for launch, factor in enumerate(factors)
        for (layer, size), some in seconds.items()
    )


def exchanges(
    case: Case, seconds: float | Callable[[str, str], float], nbytes: int = 8_000_000, **given: Any
) -> list[Record]:
    """Return a transfer of each pair of workers, whose time may depend on sender and receiver."""
    return [
        transfer(
            case, 0.0, seconds(src, dst) if callable(seconds) else seconds, nbytes,
            src=src, dst=dst, **given,
        )
        for src, dst in itertools.permutations(map(str, range(case.cluster.n_workers)), 2)
    ]  # fmt: skip


def disturbed(case: Case) -> list[Record]:
    """Return launches 6 and 7, which are slow because others used the cores half of the time."""
    return [
        record
        for launch in (6, 7)
        for record in (
            sample(case, 9.0, launch=launch), core_use(case, others=0.5, launch=launch),
            end(case, launch=launch),
        )
    ]  # fmt: skip


def rivals(
    medians: Mapping[str, Iterable[float]], workload: str = "merge", **given: Any
) -> tuple[list[Case], list[Record]]:
    """Return a case over each of these backends, and its launches with these medians."""
    cases = [case(backend, workload, **given) for backend in medians]
    return cases, launches_by_case(cases, medians.values())


def expanded(emitted: Iterable[Any]) -> list[Record]:
    """Return the records in `emitted`, one by one."""
    records = InMemory()
    for item in emitted:
        records(item)
    return records


def make_side(case: Case, layer: str, size: int, launches: Mapping[int, Any]) -> Side:
    """Return the side of a comparison with these samples, given by the block of their launch."""
    blocks = tuple(sorted(launches))
    medians = np.array([np.median(launches[block]) for block in blocks])
    return Side(case=case, layer=layer, payload_bytes=size, blocks=blocks, medians=medians)

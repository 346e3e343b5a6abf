"""Runs as large as a large cluster leaves them behind, generated from a seed."""

from collections.abc import Sequence
from pathlib import Path

import builders
import numpy as np
import pyarrow as pa

from commbench.harness.cases import cases_for
from commbench.model import USER_CODE, Case, ClusterSpec
from commbench.model.observed import Record, TaskRecord, TransferRecord
from commbench.store import parts

N_WORKERS = 1000
_N_BESIDE = 8
"""Workers on one host: half of them on each of two sockets."""


def generated(
    output: Path, n_records: int, n_workers: int = N_WORKERS, backends: Sequence[str] = ("tcp",)
) -> Path:
    """Write a run of two good launches with transfers between all workers, and return its path."""
    cases = cases_for(
        "merge", backends, {"shuffle": "tasks"}, ClusterSpec(n_workers=n_workers), launches=2
    )
    medians = [[1.0 + place, 1.1 + place] for place in range(len(cases))]
    few = builders.launches_by_case(cases, medians)
    few += [_place(case, launch, worker) for case in cases for launch in (0, 1)
            for worker in range(n_workers)]  # fmt: skip
    store = builders.written(output, cases, few, id=f"{n_records}-{n_workers}")
    random = np.random.default_rng(0)
    src = random.integers(0, n_workers, n_records)
    dst = (src + random.integers(1, n_workers, n_records)) % n_workers
    start = 1.8e9 + random.uniform(0, 1000, n_records)
    nbytes = random.integers(1_000_000, 50_000_000, n_records)

    def texts(places: np.ndarray, words: list[str]) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(places.astype(np.int32), words)

    names, none = [str(number) for number in range(n_workers)], np.zeros(n_records)
    columns = {
        "case_id": texts(np.arange(n_records) % len(cases), [case.id for case in cases]),
        "launch": random.integers(0, 2, n_records),
        "iteration": random.integers(0, 3, n_records),
        "src": texts(src, names),
        "dst": texts(dst, names),
        "nbytes": nbytes,
        "start_s": start,
        "stop_s": start + nbytes / random.uniform(1e8, 1e10, n_records),
        "n_keys": np.ones(n_records, dtype=np.int64),
        "channel": texts(none, ["gather"]),
        "queue_s": none,
        "handling_s": none,
        "shuffle": texts(none, [""]),
    }
    parts_of = store.parts("generated")
    parts_of.add(pa.table(columns, schema=parts.schema("TransferRecord")))
    parts_of.close()
    return store.path


def profiled(output: Path, n_tasks: int, n_workers: int = 8) -> Path:
    """Write a profile with a fetch for every fifth of its tasks, in four threads of each worker.

    Returns the run's path.
    """
    cluster = ClusterSpec(n_workers=n_workers, threads_per_worker=4, launcher=USER_CODE)
    case = Case(workload="job", backend="tcp", cluster=cluster, launches=1, iterations=1)
    seconds, n_names = n_tasks / 1e4, 30
    where = {"case_id": case.id, "launch": 0, "iteration": 0}
    store = builders.unfinished(
        output, [case],
        builders.ended([builders.sample(case, seconds, tool="your code", verified=False)]),
        id=f"profiled-{n_tasks}",
    )  # fmt: skip
    random = np.random.default_rng(0)

    def times(n: int) -> dict[str, list[float]]:
        start_s = builders.EPOCH + random.uniform(0, seconds, n)
        return {
            "start_s": start_s.tolist(),
            "stop_s": (start_s + random.exponential(0.002, n)).tolist(),
        }

    numbers, n_fetches = np.arange(n_tasks), n_tasks // 5
    src = random.integers(0, n_workers, n_fetches)
    dst = (src + random.integers(1, n_workers, n_fetches)) % n_workers
    parts_of = store.parts("generated")
    parts_of.add(
        parts.table(
            TaskRecord, **where, **times(n_tasks), action="compute",
            worker=(numbers % n_workers).astype(str).tolist(),
            thread=(140_000 + numbers % (4 * n_workers)).tolist(),
            name=[f"name-{number}" for number in (random.zipf(1.5, n_tasks) % n_names).tolist()],
            key=[f"('name-0123456789abcdef', {number}, 0)" for number in numbers.tolist()],
            nbytes=random.integers(0, 10_000_000, n_tasks).tolist(),
        )
    )  # fmt: skip
    parts_of.add(
        parts.table(
            TransferRecord, **where, **times(n_fetches), n_keys=1, channel="gather",
            src=src.astype(str).tolist(), dst=dst.astype(str).tolist(),
            nbytes=random.integers(1000, 10_000_000, n_fetches).tolist(),
        )
    )  # fmt: skip
    parts_of.close()
    store.finish()
    return store.path


def _place(case: Case, launch: int, worker: int) -> Record:
    host, beside = divmod(worker, _N_BESIDE)
    node = str(2 * beside // _N_BESIDE)
    return builders.place(
        case, str(worker), launch=launch, host=f"node{host}", host_id=f"boot{host} net",
        numa_nodes=node, sockets=node,
    )  # fmt: skip

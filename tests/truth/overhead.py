"""How much longer things take with commbench than without."""

import contextlib
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from distributed import Client, LocalCluster, futures_of, wait

import commbench
from commbench.harness import pinning, runner
from commbench.harness.cases import cases_for, make_suite, make_workload, plan
from commbench.harness.measure import plugins
from commbench.harness.measure.cluster import keep_tasks, until_forgotten
from commbench.launchers.local import LocalLauncher, nanny_environment
from commbench.model import ClusterSpec
from commbench.model.observed import Sample

BARE = Path(__file__).parents[1] / "bare"
N_ITERATIONS = 40
"""Those in which the scheduler's event loop is sampled."""
SAMPLE_S = 0.005


def message(size: int, count: int, rounds: int, logs: Path) -> float:
    """Return the median share that the harness adds to a message, of a pair per round."""
    ratios = []
    for number in range(rounds):
        pair = [
            lambda: _in_harness("tcp", size, count, logs), lambda: _by_hand("tcp", size, count),
        ]  # fmt: skip
        # The first of two runs meets another state of the machine than the second.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        medians = {which: statistics.median(pair[which]()) for which in order}
        ratios.append(medians[0] / medians[1])
    return statistics.median(ratios) - 1


def _in_harness(backend: str, size: int, count: int, logs: Path) -> list[float]:
    is_small = size <= 8192
    cases = cases_for(
        "pingpong", [backend], {"sizes": [size], "seconds_per_size": 60.0}, ClusterSpec(),
        launches=1, iterations=count if is_small else count * 10,
        warmups=count // 10 if is_small else count,
    )  # fmt: skip
    records = runner.run_plan(plan(make_suite("overhead", cases), 0), logs)
    return [r.seconds for r in records if isinstance(r, Sample) and not r.warmup]


def _by_hand(protocol: str, size: int, count: int) -> list[float]:
    command = [sys.executable, str(BARE / "pingpong.py"), protocol, str(size), str(count)]
    # With MALLOC_TRIM_THRESHOLD_, as nannies set it for workers, a message takes 20 % longer.
    environ = {**nanny_environment(), **os.environ}
    seconds: list[float] = json.loads(subprocess.check_output(command, timeout=120, env=environ))
    return seconds


def profile(backend: str, scratch: Path) -> float:
    """Return the share that the profile adds to the median merge, in one fresh cluster."""
    command = [sys.executable, str(BARE / "merge.py"), backend, str(scratch)]
    seconds = json.loads(subprocess.check_output(command, timeout=400))
    return statistics.median(seconds["with"]) / statistics.median(seconds["without"]) - 1


def _partition(number: int, rows: int) -> pd.DataFrame:
    return pd.DataFrame({"key": np.arange(rows) % 50_000, "value": float(number)})


def merge() -> Any:
    """Return a merge of two frames."""
    one = dd.from_map(_partition, range(4), rows=250_000)
    two = dd.from_map(_partition, range(1), rows=50_000)[["key"]].repartition(npartitions=4)
    return one.merge(two, on="key", shuffle_method="p2p").value.sum()


def array() -> Any:
    """Return a sum of an array and its transpose."""
    x = da.random.default_rng(0).random((6000, 6000), chunks=(1000, 1000))
    return (x + x.T).sum()


def tiny_tasks() -> Any:
    """Return a sum of ten thousand blocks."""
    return da.ones(10_000, chunks=1).sum(split_every=100)


def user_code(build: Callable[[], Any], pairs: int, folder: Path) -> tuple[float, float]:
    """Return the median shares that ``commbench.profile`` adds: of wall time, of CPU time."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        pids = [client.run_on_scheduler(os.getpid), *client.run(os.getpid).values()]
        _seconds(client, pids, build)
        ratios = []
        for number in range(pairs):
            measured = {}
            for profiled in (number % 2 == 0, number % 2 == 1):
                recorded = (
                    commbench.profile(client, output=folder / str(number))
                    if profiled
                    else contextlib.nullcontext()
                )
                with recorded:
                    measured[profiled] = _seconds(client, pids, build)
            ratios.append(np.divide(measured[True], measured[False]))
    wall, cpu = np.median(ratios, axis=0) - 1
    return float(wall), float(cpu)


def _seconds(client: Client, pids: list[int], build: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall and the CPU time of one computation."""
    graph = build()
    processes = [psutil.Process(pid) for pid in pids]
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    began = time.perf_counter()
    client.compute(graph).result()
    wall = time.perf_counter() - began
    return wall, sum(sum(process.cpu_times()[:2]) for process in processes) - before


class _Sampler:
    """Counts whose code the event loop of this process executes, each 5 ms of CPU time."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def stop(self) -> Counter[str]:
        signal.setitimer(signal.ITIMER_PROF, 0)
        counts, self.counts = self.counts, Counter()
        return counts

    def _sample(self, _signal: int, frame: Any) -> None:
        names = []
        while frame is not None:
            names.append(frame.f_globals.get("__name__", ""))
            frame = frame.f_back
        # The loop waits for events below commbench's function, as it would without; Dask's task
        # stream is recorded for commbench only. What else Dask does because of it is not seen.
        ours = ("commbench.harness.", "distributed.diagnostics.task_stream")
        is_ours = names[0] != "selectors" and any(name.startswith(ours) for name in names)
        self.counts["commbench" if is_ours else "others"] += 1


def _sample(dask_scheduler: Any, begin: bool) -> Counter[str] | None:
    """Start or stop counting in the scheduler, and return the counts."""
    if begin:
        dask_scheduler.sampler = _Sampler()
        dask_scheduler.sampler.start()
        return None
    counts: Counter[str] = dask_scheduler.sampler.stop()
    return counts


def scheduler(placement: str, scratch: Path) -> float:
    """Return commbench's share of the CPU time of the scheduler of 64 workers."""
    spec = ClusterSpec(n_workers=64, launcher_options={"processes": "4"})
    (case,) = cases_for("patterns", ["tcp"], {"steps": 5, "task_s": 0.05}, spec)
    work: Any = make_workload(case)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pins = [pinning.Pinning()] * (placement == "pinned")
    counts = Counter[str]()
    with LocalLauncher().start(spec, "tcp", scratch) as cluster:
        client = cluster.client
        work.prepare(client)
        with plugins.installed(cluster, *plugins.meters(cluster), *pins):
            client.run_on_scheduler(keep_tasks, None)
            client.run_on_scheduler(plugins.start)
            for number in range(N_ITERATIONS):
                graph = work.build()
                if pins:
                    client.run_on_scheduler(pinning.activate, True)
                client.run_on_scheduler(_sample, begin=True)
                result = work.compute(client, graph)
                wait(result)
                sampled = client.run_on_scheduler(_sample, begin=False)
                # The first one imports and connects.
                counts.update(sampled if number else {})
                if pins:
                    client.run_on_scheduler(pinning.activate, False)
                work.verify(client, result)
                keys = [future.key for future in futures_of(result)]
                del result
                until_forgotten(client, keys)
    if counts.total() < 1000:
        raise RuntimeError(f"{counts.total()} samples are too few")
    return counts["commbench"] / counts.total()

"""Computations as users write them, with a fault of a known amount in some of them.

Each is a workload ``jobs:NAME``; ``fault`` names what is done to it, ``amount`` how much of it: of
``none`` and ``gil`` the time of tasks in 50 ms, of ``gathered`` megabytes, of ``scheduler``
thousands of tasks, of ``parallelism`` tasks at once, of ``preparation`` seconds in which the client
computes, of ``unbalanced-p2p`` the share of the data that go to one partition, of ``skew`` the time
of one worker's tasks over that of others, or of one task in halves of a second, of ``one-sided``
the megabytes of a part of the data, all of which one worker has, of ``p2p-disk`` the megabytes that
its disk writes in a second, of ``page-faults`` the megabytes that a task uses and frees one by one,
of ``background-threads``, ``blocked-loop``, ``blocked-scheduler`` and ``memory-pauses`` the share
of the time, of ``scheduler-data`` the megabytes that tasks have as arguments or in the graph, of
``first-tasks`` the seconds for which the first task of a worker computes, of ``successive``,
``recomputed`` and ``read-again`` the number of computations.
"""

import asyncio
import functools
import math
import tempfile
import threading
import time
import types
from itertools import pairwise
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Status, get_worker, wait
from distributed.shuffle._disk import DiskShardsBuffer


def use_core(seconds: float) -> None:
    """Keep the GIL and a core."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _task(value, fault, amount, is_first=False):
    """Do the work of a task: sleep as long as a program would that computes elsewhere."""
    if fault == "first-tasks" and not getattr(get_worker(), "_has_loaded", False):
        get_worker()._has_loaded = True
        use_core(amount)
    if fault in ("gil", "background-threads"):
        use_core(0.05 * (amount if fault == "gil" else 1.0))
    else:
        for _ in range(int(amount) if fault == "page-faults" else 0):
            np.ones(125_000)
        seconds = {"parallelism": 0.5, "none": 0.05 * amount}.get(fault, 0.05)
        time.sleep(0.5 * amount if fault == "skew" and is_first else seconds)
    return value


def _block_task(block, fault, amount, block_id=None):
    return _task(block, fault, amount, is_first=not any(block_id))


def _ones(block_info):
    return np.ones(block_info[None]["chunk-shape"])


def _partition_task(part, fault, amount):
    return _task(part, fault, amount, is_first=part.index[0] == 0)


def _same(value):
    return value


def _few_rows(_number):
    return pd.DataFrame({"key": [1]})


def _rows(number, n):
    return pd.DataFrame({"key": np.full(n, number)}, copy=False)


async def _block_loop(amount, period_s=0.5, dask_worker=None, dask_scheduler=None):
    """Block the event loop of a worker or the scheduler for a share of the time from now on."""

    async def blocking():
        while True:
            time.sleep(period_s * amount)
            await asyncio.sleep(period_s * (1 - amount))

    (dask_worker or dask_scheduler)._fault = asyncio.ensure_future(blocking())


async def _pause(amount, dask_worker):
    """Pause a worker for a share of the time from now on, as one whose memory is full."""

    async def pausing():
        while True:
            dask_worker.status = Status.paused
            await asyncio.sleep(0.5 * amount)
            dask_worker.status = Status.running
            await asyncio.sleep(0.5 * (1 - amount))

    dask_worker._fault = asyncio.ensure_future(pausing())


def _hold_gil(amount, dask_worker):
    """Keep the GIL for a share of the time from now on, in a thread that runs no task."""
    if not hasattr(dask_worker, "_holding"):
        dask_worker._holding = threading.Event()
        # As in an application, it outlives the tasks.
        threading.Thread(target=_hold, args=(amount, dask_worker._holding), daemon=True).start()
    dask_worker._holding.set()
    dask_worker._fault = types.SimpleNamespace(cancel=dask_worker._holding.clear)


def _hold(amount, holding):
    while holding.wait():
        until = time.perf_counter() + 0.1 * amount
        while time.perf_counter() < until:
            pass
        time.sleep(0.1 * (1 - amount))


async def _stop(dask_worker=None, dask_scheduler=None):
    (dask_worker or dask_scheduler)._fault.cancel()
    if dask_worker:
        dask_worker.status = Status.running


def _slow_disk(amount):
    """Make the disk of P2P shuffles slow from now on."""
    write = DiskShardsBuffer._write_frames

    def slowly(self, frames, name):
        frames = [*frames]
        time.sleep(sum(memoryview(frame).nbytes for frame in frames) / (1e6 * amount))
        write(self, frames, name)

    if write.__name__ != "slowly":
        DiskShardsBuffer._write_frames = slowly


async def _disconnect(dask_worker):
    dask_worker.rpc.collect()


async def _unload(dask_worker):
    dask_worker._has_loaded = False


def _with_fault(client, fault, amount, compute):
    first = list(client.nthreads())[:1]
    if fault == "blocked-loop":
        client.run(_block_loop, amount, workers=first)
    if fault == "blocked-scheduler":
        client.run_on_scheduler(_block_loop, amount, period_s=1.5)
    if fault == "memory-pauses":
        client.run(_pause, amount)
    if fault == "background-threads":
        client.run(_hold_gil, amount)
    if fault == "connections":
        client.run(_disconnect)
    if fault == "first-tasks":
        client.run(_unload)
    if fault == "p2p-disk":
        client.run(_slow_disk, amount)
    try:
        if fault == "preparation":
            use_core(amount)
        return compute()
    finally:
        if fault in ("background-threads", "blocked-loop", "memory-pauses"):
            client.run(_stop, workers=first if fault == "blocked-loop" else None)
        if fault == "blocked-scheduler":
            client.run_on_scheduler(_stop)


def _use_one_sided(client, parts):
    """Use parts of the data on all workers in turns, when one worker has all of them."""
    workers = list(client.nthreads())
    parts = client.compute(parts, workers=workers[:1])
    wait(parts)
    uses = [
        client.submit(len, part, workers=[workers[k % len(workers)]], pure=False)
        for k, part in enumerate(parts)
    ]
    wait(uses)


def _in_turns(amount, part):
    """Compute one part after another, as a loop of a script does."""
    for k in range(int(amount)):
        part(k).compute()


def _again(amount, n, compute):
    """Compute `n` parts as often as `amount` says, a fraction of which is one of the parts."""
    for k in range(math.ceil(amount)):
        compute(k, int(n * min(1.0, amount - k)))


def _lengths_again(amount, parts):
    def compute(_k, n):
        dask.compute(*[dask.delayed(len)(part) for part in parts[:n]])

    _again(amount, len(parts), compute)


@functools.cache
def _csv_files(n=8, rows=50_000):
    """Return a folder, which this process removes when it ends, with files of eight columns."""
    folder = tempfile.TemporaryDirectory()
    dice = np.random.default_rng(0)
    for k in range(n):
        table = pd.DataFrame(dice.random((rows, 8)), columns=[*"abcdefgh"])
        table.to_csv(Path(folder.name) / f"{k}.csv")
    return folder


def array(client, fault="none", amount=1.0, n=1200, chunk=300):
    """Add an array to its transpose, block by block; or pass its blocks on."""
    if fault == "small-messages":
        chunk = 30
    if fault == "connections":
        n, chunk = 4, 2
    if fault == "parallelism":
        chunk = (-1, int(n / amount))
    if fault == "gathered":
        n = int((amount * 125_000) ** 0.5)
        chunk = n // 4
    x = da.random.default_rng(0).random((n, n), chunks=chunk)
    if fault == "successive":
        x = x.persist()
        wait(x)
    if fault == "scheduler":
        result = da.zeros(int(1000 * amount), chunks=1).map_blocks(_same)
    elif fault in ("small-messages", "connections"):
        result = x + x.T
    else:
        y = x.map_blocks(_block_task, fault, amount, dtype=float)
        result = y if fault == "parallelism" else y + y.T

    def compute():
        if fault == "one-sided":
            chunks = ((int(amount * 125),) * 16, (1000,))
            ones = da.map_blocks(_ones, chunks=chunks, dtype=float)
            return _use_one_sided(client, ones.to_delayed().ravel().tolist())
        if fault == "successive":
            return _in_turns(amount, lambda k: x[k].sum())
        if fault == "recomputed":
            return _again(amount, n, lambda k, rows: (k * y + y.T)[:rows].sum().compute())
        if fault == "scheduler-data":
            ones = [np.ones(int(amount * 125_000 / 20)) for _ in range(20)]
            return wait(client.compute([dask.delayed(lambda a=a: len(a))() for a in ones])) and None
        total = result.persist()
        wait(total)
        return total.compute() if fault == "gathered" else None

    return _with_fault(client, fault, amount, compute)


def blocks(client, fault="none", amount=1.0, before=(500, 500), after=(250, 1000)):
    """Rechunk an array by P2P."""
    x = da.random.default_rng(0).random((1000, 1000), chunks=before).persist()
    wait(x)
    moved = x.rechunk(after, method="p2p")
    return _with_fault(client, fault, amount, lambda: wait(moved.persist()) and None)


def rows(client, fault="none", amount=1.0):
    """Rechunk an array from rows to blocks."""
    return blocks(client, fault, amount, (100, 1000), (500, 500))


def columns(client, fault="none", amount=1.0):
    """Rechunk an array from columns to rows."""
    return blocks(client, fault, amount, (1000, 125), (125, 1000))


def frame(client, fault="none", amount=1.0, rows=200_000, parts=8, joined=False, indexed=False):
    """Shuffle, join or index a frame by a key; unbalanced, most rows have one key."""
    if fault == "gathered":
        rows = int(amount * 1e6 / 24)
    if fault == "unbalanced-p2p":
        rows = 3_000_000
    if fault == "connections":
        rows, parts = 100, 2
    if fault == "parallelism":
        parts = int(amount)
    if fault == "read-again":
        ddf = dd.read_csv(f"{_csv_files().name}/*.csv")
        return _in_turns(amount, lambda k: ddf["abcdefgh"[k]].sum())
    dice = np.random.default_rng(0)
    keys = dice.integers(0, 1000, rows)
    if fault == "unbalanced-p2p":
        keys[: int(rows * amount)] = 7
    table = pd.DataFrame({"key": keys, "value": dice.random(rows), "more": dice.random(rows)})
    if fault == "scheduler":
        ddf = dd.from_map(_few_rows, range(int(1000 * amount)))
    elif fault == "one-sided":
        ddf = dd.from_map(_rows, range(16), n=int(amount * 1e6 / 8))
    else:
        ddf = dd.from_pandas(table, npartitions=parts)
    if fault in ("unbalanced-p2p", "connections", "successive"):
        ddf = ddf.persist()
        wait(ddf)
    elif fault not in ("scheduler", "one-sided"):
        ddf = ddf.map_partitions(_partition_task, fault, amount, meta=table[:0])
    method = "tasks" if fault == "connections" else "p2p"
    with dask.config.set({"dataframe.shuffle.method": method}):
        if joined:
            others = dd.from_pandas(pd.DataFrame({"key": range(1000)}), npartitions=2)
            result = ddf.merge(others, on="key", broadcast=False)
        elif indexed:
            result = ddf.set_index("key", divisions=[*range(0, 1001, 1000 // parts)])
        else:
            result = ddf if fault in ("scheduler", "parallelism") else ddf.shuffle("key")

    def compute():
        if fault == "one-sided":
            return _use_one_sided(client, ddf.to_delayed())
        if fault == "successive":
            return _in_turns(amount, lambda k: ddf[ddf.key == k].value.sum())
        if fault == "recomputed":
            return _lengths_again(amount, ddf.to_delayed())
        if fault == "scheduler-data":
            one_part = int(amount * 1e6 / 8 / 20)
            frames = [pd.DataFrame({"value": np.ones(one_part)}) for _ in range(20)]
            return wait(client.map(len, frames, pure=False)) and None
        with dask.config.set({"dataframe.shuffle.method": method}):
            moved = result.persist()
        wait(moved)
        return moved.compute().iloc[:0] if fault == "gathered" else None

    return _with_fault(client, fault, amount, compute)


def stencil(client, fault="none", amount=1.0, n=600, chunk=30):
    """Add to each number of an array its neighbours, those of other blocks as well."""
    x = da.random.default_rng(0).random((n, n), chunks=chunk).persist()
    wait(x)
    near = da.map_overlap(_plus_neighbours, x, depth=1, boundary=0.0, dtype=float)
    return _with_fault(client, fault, amount, lambda: wait(near.persist()) and None)


def _plus_neighbours(block):
    return block + np.roll(block, 1, 0) + np.roll(block, 1, 1)


def join(client, fault="none", amount=1.0):
    """Join a frame with another by a key."""
    return frame(client, fault, amount, joined=True)


def index(client, fault="none", amount=1.0):
    """Index a frame by a key, of which the divisions are known."""
    return frame(client, fault, amount, indexed=True)


def graph(client, fault="none", amount=1.0, tasks=40, megabytes=1.0):
    """Reduce the results of independent tasks in a tree."""
    workers = list(client.nthreads())
    if fault == "scheduler":
        tasks = int(1000 * amount)
    if fault == "small-messages":
        tasks = 800
    if fault == "gathered":
        megabytes = amount / tasks
    if fault == "connections":
        tasks = 2
    if fault == "parallelism":
        tasks = int(amount)

    def make(k):
        if fault == "scheduler":
            return k
        if fault in ("small-messages", "connections"):
            return np.ones(100)
        if fault == "skew":
            time.sleep(0.05 * (amount if k % len(workers) == 0 else 1))
            return np.ones(1000)
        return _task(np.ones(int(megabytes * 125_000)), fault, amount)

    def compute():
        if fault == "one-sided":
            one_part = int(amount * 125_000)
            _use_one_sided(client, [dask.delayed(np.ones)(one_part) for _ in range(16)])
            return
        if fault == "successive":
            parts = [dask.delayed(_same)(k) for k in range(8)]
            _in_turns(amount, lambda k: dask.delayed(sum)([k, *parts]))
            return
        if fault == "recomputed":
            _lengths_again(amount, [dask.delayed(make)(k) for k in range(tasks)])
            return
        if fault == "scheduler-data":
            data = np.ones(int(amount * 125_000 / 20))
            wait([client.submit(len, data, pure=False) for _ in range(20)])
            return
        if fault == "skew":
            futures = [
                client.submit(make, k, workers=[workers[k % len(workers)]], pure=False)
                for k in range(tasks)
            ]
        else:
            futures = client.map(make, range(tasks), pure=False)
        if fault == "gathered":
            client.gather(futures)
        if fault in ("small-messages", "connections"):
            pairs = [
                client.submit(np.add, a, b, workers=[workers[k % len(workers)]], pure=False)
                for k, (a, b) in enumerate(pairwise(futures))
            ]
            futures = pairs
        wait(futures)

    return _with_fault(client, fault, amount, compute)

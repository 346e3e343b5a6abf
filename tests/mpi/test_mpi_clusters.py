"""Clusters over ``mpi://`` and their faults; ``python cluster_scenarios.py NAME`` runs one."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from distributed import Client, LocalCluster, Nanny, Scheduler, Worker, get_worker, wait
from distributed.comm import get_address_host
from peers import addresses

# Dask gives a worker 5 s to end, and a busy machine may not.
Nanny.close = functools.partialmethod(Nanny.close, timeout=60)


def until(condition: Callable[[], Any], what: str, within_s: float = 240) -> None:
    """Wait for something that another process brings about."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.05)


def cluster(**kwargs: Any) -> LocalCluster:
    """Start a small cluster over mpi."""
    defaults = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    return LocalCluster(protocol="mpi", silence_logs=logging.ERROR, **{**defaults, **kwargs})


def chunk(index: int, rows: int, column: str) -> pd.DataFrame:
    """Return one partition: `rows` keys that no other partition has, shuffled."""
    keys = np.arange(index * rows, (index + 1) * rows)
    return pd.DataFrame({"k": np.random.default_rng(index).permutation(keys), column: keys})


def merge(rows: int) -> tuple[Any, int]:
    """Return a merge to compute, and the number of rows it must have."""
    left = dd.from_map(chunk, range(8), rows=rows // 8, column="a")
    right = dd.from_map(chunk, range(8), rows=rows // 16, column="b")
    # A shuffle on a column that says nothing of where its row is.
    return left.merge(right, left_on="a", right_on="b"), rows // 2


def compute(client: Client) -> None:
    """Let the workers exchange data over mpi, and check the answers."""
    assert client.submit(lambda x: x + 1, 1).result() == 2
    assert client.scheduler.address.startswith("mpi://")
    x = da.random.default_rng(0).random((2000, 2000), chunks=500).persist()
    wait(x)
    assert abs((x + x.T).sum().compute() - 2 * x.sum().compute()) < 1e-6
    announced = set(client.run(lambda dask_worker: dask_worker.address).values())
    assert announced == set(client.scheduler_info()["workers"])
    assert all(address.startswith("mpi://") for address in announced)


def exercise(client: Client) -> None:
    """Do with `client` what users do, and check the answers."""
    compute(client)
    for method in ("tasks", "p2p"):
        with dask.config.set({"dataframe.shuffle.method": method}):
            joined, rows = merge(40_000)
            assert len(joined.compute()) == rows
    data = client.scatter(np.arange(1_000_000), broadcast=True)
    assert client.submit(lambda x: int(x.sum()), data).result() == 499999500000
    assert (client.gather(data) == np.arange(1_000_000)).all()
    workers = client.scheduler_info()["workers"]
    assert client.submit(lambda: get_worker().address, pure=False).result() in workers


def processes_with_nannies() -> None:
    """A LocalCluster of processes does everything, restarts, retires, and leaves nothing."""
    children: list[psutil.Process] = []
    with cluster() as running, Client(running) as client:
        exercise(client)
        client.restart()
        assert client.submit(lambda x: x + 1, 1).result() == 2
        client.retire_workers(list(client.scheduler_info()["workers"])[:1])
        until(lambda: client.submit(lambda: 1, pure=False).result() == 1, "work after a retirement")
        children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert all("resource_tracker" in " ".join(p.cmdline()) for p in alive), alive


def threads() -> None:
    """A LocalCluster whose workers share the scheduler's process does everything."""
    with cluster(processes=False) as running, Client(running) as client:
        exercise(client)


def adaptive() -> None:
    """A cluster that adapts grows under load and shrinks after it."""
    with cluster(n_workers=0) as running, Client(running) as client:
        running.adapt(minimum=0, maximum=2, interval="200ms", wait_count=2)
        futures = client.map(lambda x: time.sleep(0.05) or x, range(60), pure=False)
        assert client.gather(futures) == list(range(60))
        del futures
        until(lambda: not client.scheduler_info()["workers"], "no workers after the load")


def kill_worker_in_merge() -> None:
    """A worker killed during a merge costs only its own tasks: the result is right."""
    with cluster() as running, Client(running) as client:
        for method in ("tasks", "p2p"):
            client.wait_for_workers(2, timeout=240)
            address, victim = next(iter(client.run(os.getpid).items()))
            with dask.config.set({"dataframe.shuffle.method": method}):
                joined, rows = merge(1_000_000)
                result = client.compute(joined.b.count())
                time.sleep(0.7)
                os.kill(victim, signal.SIGKILL)
                assert result.result(timeout=240) == rows
            # A merge that ends before the kill does not wait until the scheduler has noticed it.
            until(
                lambda gone=address: gone not in client.scheduler_info()["workers"],
                "the scheduler notices the kill",
            )


def workers_join_and_leave() -> None:
    """50 workers come and go during a computation, which is right."""
    with cluster(n_workers=2) as running, Client(running) as client:
        done = threading.Event()
        sums: list[float] = []

        def add() -> None:
            x = da.ones((3000, 3000), chunks=300)
            while not done.is_set():
                sums.append(float((x + x.T).sum().compute(scheduler=client)))

        thread = threading.Thread(target=add)
        thread.start()
        joined = 0
        while joined < 50:
            running.scale(7)
            client.wait_for_workers(7, timeout=240)
            joined += 5
            running.scale(2)
            until(lambda: len(client.scheduler_info()["workers"]) <= 2, "two workers")
        done.set()
        thread.join(240)
        assert not thread.is_alive()
        assert sums
        assert set(sums) == {18e6}


def from_the_shell() -> None:
    """``dask scheduler`` and ``dask worker`` work, and end when the scheduler is killed."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "scheduler.json")
        started: list[subprocess.Popen[bytes]] = []

        def dask_command(*arguments: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                stderr=subprocess.DEVNULL, cwd=scratch,
            )  # fmt: skip
            started.append(process)
            return process

        try:
            scheduler = dask_command(
                "scheduler", "--protocol", "mpi", "--port", "0", "--dashboard-address", ":0",
                "--scheduler-file", str(file),
            )  # fmt: skip
            # It is there before it is written.
            until(lambda: file.exists() and "\n}" in file.read_text(), "the scheduler's file")
            address = json.loads(file.read_text())["address"]
            assert address.startswith("mpi://")
            workers = [
                dask_command("worker", address, "--nthreads", "1", "--death-timeout", "240"),
                dask_command("worker", address, "--nthreads", "1", "--no-nanny"),
            ]
            with Client(address) as client:
                client.wait_for_workers(2, timeout=240)
                compute(client)
                scheduler.kill()
                for worker in workers:
                    worker.wait(240)
                future = client.submit(lambda: 1)
                try:
                    future.result(timeout=1)
                except Exception:
                    pass
                else:
                    raise AssertionError("a dead scheduler answered")
        finally:
            for process in started:
                process.kill()
                process.wait()


def asynchronous_client() -> None:
    """A client in the scheduler's own event loop, as in a notebook, works."""

    async def main() -> None:
        async with (
            LocalCluster(
                protocol="mpi", n_workers=1, threads_per_worker=1, dashboard_address=":0",
                asynchronous=True, silence_logs=logging.ERROR,
            ) as running,
            Client(running, asynchronous=True) as client,
        ):  # fmt: skip
            assert await client.submit(lambda x: x + 1, 1) == 2

    asyncio.run(main())


def interface_of_a_worker() -> None:
    """A worker without a nanny announces the interface that faces its scheduler, as over tcp."""

    async def host_of(protocol: str, host: str) -> str:
        async with (
            Scheduler(host=host, protocol=protocol, port=0, dashboard_address=":0") as scheduler,
            Worker(scheduler.address, nthreads=1) as worker,
        ):
            return str(get_address_host(worker.address))

    for host in sorted(addresses()):
        assert asyncio.run(host_of("mpi", host)) == asyncio.run(host_of("tcp", host)) == host


SCENARIOS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        processes_with_nannies,
        threads,
        adaptive,
        kill_worker_in_merge,
        workers_join_and_leave,
        from_the_shell,
        asynchronous_client,
        interface_of_a_worker,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()

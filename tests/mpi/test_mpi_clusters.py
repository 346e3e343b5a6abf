"""Dask clusters over ``mpi://`` and their faults."""

import asyncio
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client, LocalCluster, Nanny, Scheduler, Worker, get_worker, wait
from distributed.comm import get_address_host
from peers import addresses
from processes import until
from scenarios import or_slow, scenario

# Dask gives a worker 5 s to end, and a busy machine may not. One that asks its nanny, which has
# stopped to listen, whether it may end, waits for all of the time.
Nanny.close = functools.partialmethod(Nanny.close, timeout=15)


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


def n_made(dask_scheduler: Scheduler) -> int:
    """Return how many partitions have been made."""
    kinds = [kind for name, kind in dask_scheduler.task_prefixes.items() if name == "chunk"]
    return sum(kind.states["memory"] + kind.states["released"] for kind in kinds)


def compute(client: Client) -> None:
    """Let the workers exchange data over mpi, and check the answers."""
    assert client.submit(lambda x: x + 1, 1).result() == 2
    assert client.scheduler.address.startswith("mpi://")
    x = da.random.default_rng(0).random((2000, 2000), chunks=500).persist()
    wait(x)
    assert abs((x + x.T).sum().compute() - 2 * x.sum().compute()) < 1e-6
    announced = set(client.run(lambda dask_worker: dask_worker.address).values())
    assert announced == set(client.nthreads())
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
    workers = client.nthreads()
    assert client.submit(lambda: get_worker().address, pure=False).result() in workers


@pytest.mark.slow
@scenario(150)
def test_processes_with_nannies_restart_retire_and_leave_nothing() -> None:
    children: list[psutil.Process] = []
    with cluster() as running, Client(running) as client:
        exercise(client)
        client.restart()
        assert client.submit(lambda x: x + 1, 1).result() == 2
        client.retire_workers(list(client.nthreads())[:1])
        assert client.submit(lambda: 1, pure=False).result(timeout=240) == 1
        children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert all("resource_tracker" in " ".join(p.cmdline()) for p in alive), alive


@pytest.mark.slow
@scenario(90)
def test_workers_in_the_process_of_the_scheduler() -> None:
    with cluster(processes=False) as running, Client(running) as client:
        exercise(client)


@pytest.mark.slow
@scenario(120)
def test_adaptive_cluster_grows_and_shrinks() -> None:
    with cluster(n_workers=0) as running, Client(running) as client:
        running.adapt(minimum=0, maximum=2, interval="200ms", wait_count=2)
        futures = client.map(lambda x: time.sleep(0.05) or x, range(60), pure=False)
        assert client.gather(futures) == list(range(60))
        del futures
        until(lambda: not client.nthreads(), "no workers after the load")


@pytest.mark.parametrize("method", or_slow("p2p", "tasks"))
@scenario(240)
def test_merge_is_right_though_a_worker_is_killed(method: str) -> None:
    with cluster() as running, Client(running) as client:
        victim = next(iter(client.run(os.getpid).values()))
        with dask.config.set({"dataframe.shuffle.method": method}):
            joined, rows = merge(1_000_000)
            result = client.compute(joined.b.count())
            until(lambda: client.run_on_scheduler(n_made) >= 8, "half of the partitions")
            assert not result.done()
            os.kill(victim, signal.SIGKILL)
            assert result.result(timeout=240) == rows


@pytest.mark.slow
@scenario(800)
def test_results_are_right_while_50_workers_join_and_leave() -> None:
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
            until(lambda: len(client.nthreads()) <= 2, "two workers")
        done.set()
        thread.join(240)
        assert not thread.is_alive()
        assert sums
        assert set(sums) == {18e6}


@pytest.mark.slow
@scenario(150)
def test_processes_from_the_shell_end_when_the_scheduler_is_killed(tmp_path: str) -> None:
    file = Path(tmp_path, "scheduler.json")
    started: list[subprocess.Popen[bytes]] = []

    def dask_command(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments]
        # They look for the dead scheduler for as long as a connection may take.
        environ = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
        popen = functools.partial(subprocess.Popen, stderr=subprocess.DEVNULL, cwd=tmp_path)
        started.append(popen(command, env=environ))
        return started[-1]

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
            with pytest.raises(Exception):  # noqa: B017
                future.result(timeout=1)
    finally:
        for process in started:
            process.kill()
            process.wait()


@scenario(60)
def test_client_in_the_event_loop_of_the_scheduler() -> None:
    async def main() -> None:
        async with (
            LocalCluster(
                protocol="mpi", n_workers=1, processes=False, dashboard_address=":0",
                asynchronous=True, silence_logs=logging.ERROR,
            ) as running,
            Client(running, asynchronous=True) as client,
        ):  # fmt: skip
            assert await client.submit(lambda x: x + 1, 1) == 2

    asyncio.run(main())


@scenario(120)
def test_worker_announces_the_interface_that_faces_its_scheduler() -> None:
    async def announced(host: str) -> str:
        async with (
            Scheduler(host=host, protocol="mpi", port=0, dashboard_address=":0") as scheduler,
            Worker(scheduler.address, nthreads=1) as worker,
        ):
            return str(get_address_host(worker.address))

    for host in sorted(addresses()):
        assert asyncio.run(announced(host)) == host

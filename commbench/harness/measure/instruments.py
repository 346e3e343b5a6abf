"""What commbench sets up on a cluster to measure it, and takes away again where that lives on.

A cluster that ends with its launch keeps its instruments. One that is only visited gets all of it
back: by the launch itself at its end, and, where that was killed, by the scheduler, which sees its
client go.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from commbench.errors import LaunchError
from commbench.harness.measure import profile
from commbench.launchers.base import RunningCluster

_TASK_STREAM = "task-stream"
_FREE_SECONDS = 10.0


class _Cleaner(SchedulerPlugin):  # type: ignore[misc]
    """Knows what a client brought, and takes it away when that client is gone."""

    name = "commbench-cleaner"

    def __init__(self, client: str, worker_plugins: tuple[str, ...], scheduler: Any) -> None:
        self.client, self.worker_plugins = client, worker_plugins
        stream = scheduler.plugins.get(_TASK_STREAM)
        self.had_task_stream = stream is not None
        self.n_tasks_kept = stream.buffer.maxlen if stream is not None else None

    def remove_client(self, scheduler: Any, client: str) -> None:
        from tornado.ioloop import IOLoop

        if client == self.client:
            IOLoop.current().add_callback(take_away, scheduler)


class _Uncounted(WorkerPlugin):  # type: ignore[misc]
    """Ends the count of a worker's turns, where that goes on."""

    name = "commbench-uncounted"

    def teardown(self, worker: Any) -> None:
        del worker
        profile.stop()


@contextmanager
def installed(cluster: RunningCluster, *plugins: WorkerPlugin) -> Iterator[None]:
    """Have the worker `plugins` on `cluster`, and the cluster as it was afterwards if it lives on.

    Raises
    ------
    LaunchError
        Where another commbench is measuring it.
    """
    client = cluster.client
    if not cluster.outlives:
        for plugin in plugins:
            client.register_plugin(plugin)
        yield
        return
    plugins = (*plugins, _Uncounted())
    deadline = time.monotonic() + _FREE_SECONDS
    while not client.run_on_scheduler(_claim, client.id, tuple(each.name for each in plugins)):
        if time.monotonic() > deadline:
            raise LaunchError(
                "another commbench is measuring this cluster; wait until it has ended"
            )
        time.sleep(0.1)
    try:
        for plugin in plugins:
            client.register_plugin(plugin)
        # Connections from before would not be counted: they have told no names.
        client.run(_close_idle)
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            client.run_on_scheduler(take_away)
        raise
    client.run_on_scheduler(take_away)


def _claim(client: str, worker_plugins: tuple[str, ...], dask_scheduler: Any) -> bool:
    """Let a cleaner stand ready on the scheduler, unless another client's does."""
    if _Cleaner.name in dask_scheduler.plugins:
        return False
    dask_scheduler.add_plugin(_Cleaner(client, worker_plugins, dask_scheduler))
    return True


async def take_away(dask_scheduler: Any) -> None:
    """Take everything away that the client of the cleaner brought; runs on the scheduler."""
    cleaner = dask_scheduler.plugins.get(_Cleaner.name)
    if cleaner is None:
        return
    for name in cleaner.worker_plugins:
        if name in dask_scheduler.worker_plugins:
            await dask_scheduler.unregister_worker_plugin(None, name=name)
    profile.stop()
    stream = dask_scheduler.plugins.get(_TASK_STREAM)
    if cleaner.had_task_stream:
        stream.buffer = deque(stream.buffer, cleaner.n_tasks_kept)
    elif stream is not None:
        dask_scheduler.remove_plugin(name=_TASK_STREAM)
    # Last: until then no other may begin.
    if _Cleaner.name in dask_scheduler.plugins:
        dask_scheduler.remove_plugin(name=_Cleaner.name)


def _close_idle(dask_worker: Any) -> None:
    dask_worker.rpc.collect()

"""How a cluster is at a moment; its processes import this."""

import json
import os
from typing import Any

import dask
from distributed import Client
from distributed.comm import Comm
from distributed.comm.tcp import TCP


def snapshot(client: Client) -> dict[str, Any]:
    """Return all of a cluster that a guest must leave alone."""
    return {
        "scheduler": client.run_on_scheduler(scheduler_state),
        "workers": client.run(worker_state),
    }


def scheduler_state(dask_scheduler: Any) -> dict[str, Any]:
    """Return what the scheduler holds."""
    return {
        "keys": sorted(map(str, dask_scheduler.tasks)),
        "plugins": sorted(dask_scheduler.plugins),
        "task stream": _length(dask_scheduler.plugins.get("task-stream")),
        "worker plugins": sorted(dask_scheduler.worker_plugins),
        "extensions": sorted(dask_scheduler.extensions),
        "workers": sorted(dask_scheduler.workers),
        **_process_state(dask_scheduler),
    }


def _length(task_stream: Any) -> int | None:
    return None if task_stream is None else task_stream.buffer.maxlen


def worker_state(dask_worker: Any) -> dict[str, Any]:
    """Return what a worker holds."""
    log = dask_worker.transfer_incoming_log
    return {
        "keys": sorted(map(str, dask_worker.data)),
        "plugins": sorted(dask_worker.plugins),
        "log": (log.maxlen, [entry["who"] for entry in log]),
        "fetch": dask_worker.gather_dep.__qualname__,
        "own attributes": sorted(name for name in vars(dask_worker) if "gather" in name),
        **_process_state(dask_worker),
    }


def _process_state(server: Any) -> dict[str, Any]:
    # Without the scheduler's clock, which a worker corrects.
    return {
        "pid": os.getpid(),
        "configuration": json.dumps(dask.config.config, default=str, sort_keys=True),
        "variables": dict(os.environ),
        "comms": [Comm.handshake_info.__qualname__, TCP.write.__qualname__],
        "loop": sorted(vars(server.loop.asyncio_loop._selector).keys() & {"select"}),
    }

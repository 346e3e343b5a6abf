"""Where the processes of a launch are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from commbench.launchers.base import RunningCluster
from commbench.machine.topology import place_of
from commbench.model import Launch, WorkerPlace


def of_workers(launch: Launch, cluster: RunningCluster) -> Iterator[WorkerPlace]:
    """Yield what each worker of a cluster tells of its place."""
    found = cluster.client.run(_own, launch.case.cluster.device)
    for address, place in found.items():
        yield WorkerPlace(
            case_id=launch.case.id, launch=launch.index, worker=cluster.names[address], **place
        )


def of_processes(launch: Launch, pids: Mapping[str, int]) -> Iterator[WorkerPlace]:
    """Yield the places of processes on this host, whose names `pids` has."""
    for name, pid in pids.items():
        place = place_of(pid, device=launch.case.cluster.device)
        yield WorkerPlace(case_id=launch.case.id, launch=launch.index, worker=name, **place)


def _own(device: str, dask_worker: Any) -> dict[str, Any]:
    return place_of(os.getpid(), device=device, address=dask_worker.address)

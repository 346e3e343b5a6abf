"""What ``--placement`` says, and the racks in ``--racks``, read as strictly as a suite is.

A placement file has a table for each worker, in the order of their names; a key that is left out
leaves the worker as it is::

    [[worker]]
    cpus = "0-19,40-59"  # those that it may use
    gpu = 0              # by nvidia-smi's number
    nic = "mlx5_0:1"     # for ucx: UCX_NET_DEVICES

A file of racks names the hosts of each, by name, address or pattern::

    [racks]
    a = ["node0*"]
    b = ["10.0.1.*", "login1"]
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commbench.errors import UsageError
from commbench.harness.suite.cases import structure
from commbench.machine import cores, topology
from commbench.model import Placement, Suite


@dataclass(frozen=True, kw_only=True)
class _PlacementFile:
    worker: tuple[Placement, ...]


@dataclass(frozen=True, kw_only=True)
class _RackFile:
    racks: dict[str, tuple[str, ...]]


def place(
    choice: str, n_workers: int, device: str, folder: Path = Path(), workers_per_gpu: int = 1
) -> tuple[Placement, ...]:
    """Return what ``none``, ``auto`` or a file, relative to `folder`, binds the workers to.

    Raises
    ------
    UsageError
        Where the file can't be understood or has too few workers, or the host too few GPUs.
    """
    if choice == "none":
        return ()
    if choice == "auto":
        host = topology.this_host()
        host = replace(host, gpus=topology.visible(host.gpus, os.environ))
        return topology.auto(host, n_workers, device, workers_per_gpu)
    path = folder / choice
    file: _PlacementFile = structure(
        _content(path, "auto, none or a placement file"), _PlacementFile, str(path)
    )
    for number, worker in enumerate(file.worker):
        try:
            cores.parse(worker.cpus)
        except UsageError as error:
            raise UsageError(f"{path}: worker[{number}].cpus: {error}") from error
    if len(file.worker) < n_workers:
        raise UsageError(
            f"{path} places {len(file.worker)} workers, and the cluster has {n_workers}; add a "
            "[[worker]] table for each, or take fewer --workers"
        )
    return file.worker[:n_workers]


def check(suite: Suite) -> None:
    """Refuse cases whose workers are bound to what this host doesn't have.

    Raises
    ------
    UsageError
        With the worker, what it should be bound to, and what there is.
    """
    placements = {case.cluster.placement for case in suite.cases if case.cluster.placement}
    if placements:
        host = topology.this_host()
        for placement in placements:
            topology.check(placement, host)


def read_racks(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the hosts of each rack in a file.

    Raises
    ------
    UsageError
        Where it can't be understood.
    """
    file: _RackFile = structure(_content(path, "a file of racks"), _RackFile, str(path))
    return file.racks


def _content(path: Path, wanted: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"can't read {path}: {error}; give {wanted}") from error

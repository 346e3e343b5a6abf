"""Whether every worker has the GPU and the memory that it should have, asked of the workers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from commbench.errors import LaunchError
from commbench.launchers.base import RunningCluster
from commbench.machine import gpu
from commbench.model import GPU_MEMORY, ClusterSpec, Launch, Setting
from commbench.store.emitter import Emit

_CUPYS = "rmm_cupy_allocator"


def check(launch: Launch, cluster: RunningCluster, emit: Emit) -> None:
    """Compare what the workers of `cluster` have with what is asked for, and emit it.

    Raises
    ------
    LaunchError
        Where a worker has no GPU, more workers share one than may, or RMM is not as asked for.
    """
    spec = launch.case.cluster
    if spec.device != "gpu":
        return
    told = {cluster.names[where]: row for where, row in cluster.client.run(_told).items()}
    owners = defaultdict(list)
    for name, row in told.items():
        if "error" in row:
            raise LaunchError(f"worker {name} has no GPU to work on: {row['error']}")
        owners[row["uuid"]].append(name)
    for uuid, names in owners.items():
        if len(names) > spec.workers_per_gpu:
            row = told[names[0]]
            raise LaunchError(
                f"workers {', '.join(names)} work on one GPU ({row['name']}, {uuid}, first of "
                f"CUDA_VISIBLE_DEVICES={row['visible']}), and {spec.workers_per_gpu} per GPU are "
                "asked for: start them with a GPU each (a queue: one in each job), or say "
                "--workers-per-gpu"
            )
    for name, row in told.items():
        if wrong := _unlike(spec, row):
            raise LaunchError(f"worker {name}: {wrong}")
    tell(launch, *told.values(), emit=emit)


def tell(launch: Launch, *told: dict[str, Any], emit: Emit) -> None:
    """Emit where the memory of these processes comes from."""
    for value in sorted({f"RMM {row['rmm']}; CuPy by {row['cupy']}" for row in told}):
        emit(Setting(case_id=launch.case.id, launch=launch.index, name=GPU_MEMORY, value=value))


def _told() -> dict[str, Any]:
    try:
        return gpu.told()
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
        return {"error": f"{type(error).__name__}: {error}"}


def _unlike(spec: ClusterSpec, row: dict[str, Any]) -> str:
    """Return in what RMM is not as asked for; nothing where it is."""
    wanted = [
        *["CudaAsync"] * spec.rmm_async,
        *["Managed"] * spec.rmm_managed,
        *["Pool"] * bool(spec.rmm_pool and not spec.rmm_async),
    ]
    if lacking := [kind for kind in wanted if kind not in row["rmm"]]:
        return f"RMM was asked for ({spec.rmm}), and its resource is {row['rmm']}, not {lacking[0]}"
    if spec.rmm and row["cupy"] != _CUPYS:
        return f"CuPy should allocate by RMM ({spec.rmm}), and does by {row['cupy']}"
    return ""

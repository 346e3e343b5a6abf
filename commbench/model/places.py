"""Where workers are to be, and where they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What one worker is bound to; what says nothing is left as it is.

    ``cpus`` are a list as the kernel writes it (``"0-19,40-59"``), ``gpu`` is the number that
    nvidia-smi gives, and ``nic`` what ``UCX_NET_DEVICES`` takes (``"mlx5_0:1"``, ``"eth0"``).
    """

    cpus: str = ""
    gpu: int | None = None
    nic: str = ""

    def __str__(self) -> str:
        parts = (
            f"CPUs {self.cpus}" * bool(self.cpus),
            "" if self.gpu is None else f"GPU {self.gpu}",
            self.nic,
        )
        return ", ".join(filter(None, parts)) or "not bound"


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """Where a worker was, as its kernel and its driver tell; what they don't is empty.

    ``host_id`` is the same for processes that share a kernel and a network: a container or a
    namespace with a network of its own is a host of its own. ``cpus`` are those that the worker
    may use, ``numa_nodes`` and ``sockets`` those that these CPUs are of. The GPU is told where the
    workload's data live on it: ``gpu`` by nvidia-smi's number, and ``gpu_links`` has what joins
    it to the others (``"GPU1=NV1 GPU2=PIX"``). ``nic`` is what ``UCX_NET_DEVICES`` names, else the
    interface on which the worker listens.
    """

    table: ClassVar = "places"

    case_id: str
    launch: int
    worker: str
    host: str
    host_id: str
    pid: int
    cpus: str
    numa_nodes: str
    sockets: str
    gpu: str
    gpu_uuid: str
    gpu_pci: str
    gpu_links: str
    nic: str

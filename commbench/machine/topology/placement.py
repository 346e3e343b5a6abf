"""Which CPUs, GPU and NIC each worker should be bound to.

As a rule for any host, this is the function with which the workers of a DGX-1 were once configured
by hand (*Experiments in High Performance Networking with UCX and DGX*, the Dask blog, 2019): a
worker gets a GPU, the CPUs near it, and the NIC that is nearest to it.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence

from commbench.errors import UsageError
from commbench.machine import cores
from commbench.machine.topology.hosts import Host, Nic
from commbench.machine.topology.links import UNKNOWN, rank
from commbench.model import Placement


def auto(
    host: Host, n_workers: int, device: str, workers_per_gpu: int = 1
) -> tuple[Placement, ...]:
    """Return what each of the workers on `host` should be bound to.

    With ``device="gpu"`` worker i gets the i-th GPU (of `workers_per_gpu` = k workers that share
    one, the i // k-th), the CPUs near it and the nearest of the RDMA devices; of several that are
    equally near the one that fewest workers have. With ``"cpu"``
    the workers take the NUMA nodes in blocks of equal size, and the RDMA device that is nearest to
    their node. CPUs that this process may not use are left out.

    Raises
    ------
    UsageError
        Where there are fewer GPUs than workers, or the kernel tells nothing of its CPUs.
    """
    used: Counter[str] = Counter()
    if device == "gpu":
        if n_workers > len(host.gpus) * workers_per_gpu:
            why = f" ({'; '.join(host.notes)})" if host.notes and not host.gpus else ""
            share = "a GPU of its own" if workers_per_gpu == 1 else f"1/{workers_per_gpu} of a GPU"
            raise UsageError(
                f"placement auto gives each of the {n_workers} workers {share}, and "
                f"{host.name} has {len(host.gpus)}{why}; take fewer workers, let them share GPUs "
                "(--workers-per-gpu), or take a placement file, which may name a GPU twice"
            )
        near: dict[int | None, str] = {node.number: node.cpus for node in host.nodes}
        return tuple(
            Placement(
                cpus=_usable(host, gpu.cpus or near.get(gpu.numa_node, "")),
                gpu=gpu.index,
                nic=_nearest(host, gpu.name, used),
            )
            for gpu in (host.gpus[number // workers_per_gpu] for number in range(n_workers))
        )
    nodes = [node for node in host.nodes if _usable(host, node.cpus)]
    if not nodes:
        raise UsageError(
            f"placement auto needs the NUMA nodes of {host.name}, and none is known; write a "
            "placement file"
        )
    chosen = [nodes[number * len(nodes) // n_workers] for number in range(n_workers)]
    return tuple(
        Placement(cpus=_usable(host, node.cpus), nic=_nearest(host, node.name, used))
        for node in chosen
    )


def check(placement: Sequence[Placement], host: Host) -> None:
    """Refuse a placement that names what `host`, this one, doesn't have.

    Raises
    ------
    UsageError
        With the worker, what it should be bound to, and what there is.
    """
    gpus = {gpu.index for gpu in host.gpus}
    nics = {name for nic in host.nics for name in (nic.ucx_name, *nic.interfaces)}
    nics |= {name for _, name in socket.if_nameindex()}
    for number, place in enumerate(placement):
        worker = f"placement of worker {number}: "
        wanted = cores.parse(place.cpus)
        if absent := wanted - cores.parse(_usable(host, place.cpus)):
            raise UsageError(
                f"{worker}CPU {cores.listed(absent)} is not there, or not for this process; "
                f"known: {cores.listed(host.allowed or ())}"
            )
        if place.gpu is not None and place.gpu not in gpus:
            known = cores.listed(gpus) or "; ".join(["none", *host.notes])
            raise UsageError(f"{worker}there is no GPU {place.gpu}; known: {known}")
        if place.nic and place.nic not in nics:
            known = ", ".join(sorted(nics)) or "none"
            raise UsageError(f"{worker}there is no NIC {place.nic!r}; known: {known}")


def _usable(host: Host, cpus: str) -> str:
    numbers = cores.parse(cpus)
    return cores.listed(numbers if host.allowed is None else numbers & host.allowed)


def _nearest(host: Host, name: str, used: Counter[str]) -> str:
    """Return what ``UCX_NET_DEVICES`` calls the nearest RDMA device; nothing without any."""

    def distance(nic: Nic) -> tuple[tuple[int, int], int]:
        return rank(host.link(name, nic.name) or UNKNOWN), used[nic.name]

    nics = [nic for nic in host.nics if nic.rdma]
    if not nics:
        return ""
    chosen = min(nics, key=distance)
    used[chosen.name] += 1
    return chosen.ucx_name

"""Locate workers, classify the links between them, and choose bindings.

docs/topology.md defines the classes of links.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commbench.errors import UsageError
from commbench.machine import cores
from commbench.machine.environment import kernel_id
from commbench.machine.topology.discovery import numa_nodes, sockets
from commbench.machine.topology.hosts import Gpu, Host, apart
from commbench.model import Placement
from commbench.model.observed import WorkerPlace

UNKNOWN = "unknown"
LINK_CLASSES = (
    "same GPU", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "same NUMA", "same socket",
    "cross-socket", "same host", "same rack", "network", UNKNOWN,
)  # fmt: skip
"""The classes from the nearest to the farthest; those of NVLinks have their number, as NV2."""


def worker_location(
    pid: int, *, device: str = "cpu", address: str = "", folder: str = "", nic_variable: str = "",
    root: Path = Path("/"),
) -> dict[str, Any]:  # fmt: skip
    """Return the location of the process `pid` of this host, as fields of a ``WorkerPlace``.

    Parameters
    ----------
    device
        ``"gpu"`` if its data are in GPU memory, that is, on the first GPU that it sees.
    address
        The address that it listens on, for example ``"tcp://10.0.0.1:4711"``.
    folder
        The folder to which it spills.
    nic_variable
        The variable with the network interfaces that it uses, if it is set.

    Returns
    -------
    dict
        All fields but those that identify the worker.
    """
    environ = _environ(pid)
    numbers: frozenset[int] = frozenset()
    with suppress(OSError):
        numbers = frozenset(os.sched_getaffinity(pid))
    nodes = [node for node in numa_nodes(root) if cores.parse(node.cpus) & numbers]
    host = Host(name="")
    if device == "gpu":
        # It can't be sent by value, and is not needed otherwise.
        from commbench.machine.topology.discovery import this_host

        host = this_host(root)
    pci = _cuda_device() if pid == os.getpid() else ""
    gpus = [gpu for gpu in host.gpus if gpu.pci == pci] if pci else visible(host.gpus, environ)
    gpu = next(iter(gpus), None)
    return {
        "host": platform.node(),
        "host_id": _host_id(pid),
        "pid": pid,
        "cpus": cores.format_list(numbers),
        "numa_nodes": cores.format_list(node.number for node in nodes),
        "sockets": sockets(numbers, root / "sys"),
        "gpu": "" if gpu is None else str(gpu.index),
        "gpu_uuid": "" if gpu is None else gpu.uuid,
        "gpu_pci": "" if gpu is None else gpu.pci,
        "gpu_links": "" if gpu is None else _links(gpu, host),
        "nic": environ.get(nic_variable, "").removesuffix(",lo") or _nic(address),
        "file_system": _file_system(folder),
    }


def visible(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs in ``CUDA_VISIBLE_DEVICES``, in its order; all if it is not set.

    Numbers are taken for nvidia-smi's. This is true if ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``, or
    all GPUs are alike.

    Examples
    --------
    >>> gpus = (Gpu(index=0, uuid="GPU-aa"), Gpu(index=1, uuid="GPU-bb"))
    >>> [gpu.index for gpu in visible(gpus, {"CUDA_VISIBLE_DEVICES": "1,GPU-a"})]
    [1, 0]
    >>> visible(gpus, {"CUDA_VISIBLE_DEVICES": ""})
    ()
    """
    if (text := environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return gpus
    named = []
    for word in map(str.strip, text.split(",")):
        is_uuid = word.startswith("GPU-")
        matching = (
            gpu for gpu in gpus if word == str(gpu.index) or (is_uuid and gpu.uuid.startswith(word))
        )
        if (gpu := next(matching, None)) is None:
            # CUDA, too, ignores all GPUs after one that does not exist.
            break
        named.append(gpu)
    return tuple(named)


def _cuda_device() -> str:
    """Return the PCI address of CuPy's device in this process; "" without CuPy."""
    if (cupy := sys.modules.get("cupy")) is not None:
        with suppress(Exception):
            runtime = cupy.cuda.runtime
            return str(runtime.deviceGetPCIBusId(runtime.getDevice())).lower()[-12:]
    return ""


def _links(gpu: Gpu, host: Host) -> str:
    links = {other.name: host.link(gpu.name, other.name) for other in host.gpus if other != gpu}
    return " ".join(f"{name}={link}" for name, link in links.items() if link)


def _environ(pid: int) -> Mapping[str, str]:
    if pid == os.getpid():
        return os.environ
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict(pair.partition("=")[::2] for pair in text.split("\0"))
    return {}


def _host_id(pid: int) -> str:
    """Return an id of the kernel and the network namespace of the process."""
    kernel = kernel_id()
    with suppress(OSError):
        return f"{kernel} {Path(f'/proc/{pid}/ns/net').readlink()}"
    return kernel


def _nic(address: str) -> str:
    import psutil

    with suppress(OSError, ValueError):
        where = urlsplit(address).hostname
        for name, addresses in psutil.net_if_addrs().items():
            if where and any(entry.address.partition("%")[0] == where for entry in addresses):
                return str(name)
    return ""


def _file_system(folder: str) -> str:
    """Return the type of the file system of a folder; "" if it is unknown."""
    import psutil

    if not folder:
        return ""
    inner = Path(folder).resolve()
    with suppress(OSError):
        kinds = {Path(m.mountpoint): str(m.fstype) for m in psutil.disk_partitions(all=True)}
        return next((kinds[path] for path in (inner, *inner.parents) if path in kinds), "")
    return ""


def link_class(one: WorkerPlace, other: WorkerPlace) -> str:
    """Return the class of the link between two workers; racks are not considered."""
    if one.host_id != other.host_id:
        return "network"
    if one.gpu and other.gpu:
        if one.gpu == other.gpu:
            # Jobs and containers with one GPU each all call it 0.
            is_same = one.gpu_uuid == other.gpu_uuid or not (one.gpu_uuid and other.gpu_uuid)
            return "same GPU" if is_same else "same host"
        links = dict(item.partition("=")[::2] for item in one.gpu_links.split())
        return links.get(f"GPU{other.gpu}", "") or "same host"
    try:
        nodes = [cores.parse(worker.numa_nodes) for worker in (one, other)]
        if any(len(numbers) != 1 for numbers in nodes):
            return "same host"
        return "same NUMA" if nodes[0] == nodes[1] else apart(one.sockets, other.sockets)
    except UsageError:
        # A results file may have any content.
        return "same host"


def find_rack(names: Iterable[str], racks: Mapping[str, Iterable[str]]) -> str:
    """Return the first rack that has one of the `names` of a host; "" if none has.

    Examples
    --------
    >>> find_rack(["node12", "10.0.1.12"], {"a": ["node0*"], "b": ["10.0.1.*"]})
    'b'
    """
    names = [name for name in names if name]
    for rack, patterns in racks.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns for name in names):
            return rack
    return ""


def rank(link: str) -> tuple[int, int]:
    """Return a key that sorts classes of links from the nearest to the farthest.

    Examples
    --------
    >>> sorted(["network", "SYS", "NV1", "PIX", "NV2"], key=rank)
    ['NV2', 'NV1', 'PIX', 'SYS', 'network']
    """
    bonded = re.fullmatch(r"NV([0-9]+)", link)
    name, known = "NV" if bonded else link, LINK_CLASSES
    return (known.index(name) if name in known else len(known)), -int(bonded[1] if bonded else 0)


def auto(
    host: Host, n_workers: int, device: str, workers_per_gpu: int = 1
) -> tuple[Placement, ...]:
    """Return a binding for each of the workers on `host`.

    With ``device="gpu"`` worker i gets the GPU i // `workers_per_gpu`, the CPUs near it and the
    nearest RDMA device, or, of several equally near ones, the one with the fewest workers. With
    ``"cpu"`` blocks of workers of equal size get the NUMA nodes in turn, and the RDMA device
    nearest to their node. CPUs that this process may not use are left out.

    Raises
    ------
    UsageError
        If there are too few GPUs, or the NUMA nodes are unknown.
    """
    used: Counter[str] = Counter()
    if device == "gpu":
        if n_workers > len(host.gpus) * workers_per_gpu:
            why = f" ({'; '.join(host.notes)})" if host.notes and not host.gpus else ""
            share = "one GPU" if workers_per_gpu == 1 else f"1/{workers_per_gpu} of a GPU"
            raise UsageError(
                f"placement auto gives each of the {n_workers} workers {share}, and "
                f"{host.name} has {len(host.gpus)}{why}; take fewer workers, let them share GPUs "
                "(--workers-per-gpu of commbench run), or take a placement file, which may name a "
                "GPU twice"
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


def separate_cpus(host: Host, n_workers: int, n_cpus: int) -> tuple[Placement, ...]:
    """Return a binding of each worker to `n_cpus` CPUs that no other worker has.

    The CPUs of a worker are on one NUMA node, unless there are too few nodes for that. Each is on a
    separate physical core; if there are too few, no two workers share one, unless they have to.
    If this process may use too few CPUs, a UsageError is raised.
    """
    nodes = [cores.parse(_usable(host, node.cpus)) for node in host.nodes]
    everything = sorted(host.allowed or {number for node in nodes for number in node})
    for groups in (nodes, [frozenset(everything)]):
        physical = [_by_core(host, group) for group in groups]
        for layout in (
            [[core[:1] for core in group] for group in physical],
            physical,
            [[[cpu] for core in group for cpu in core] for group in physical],
        ):
            sets = [cpus for parts in layout for cpus in _fill(parts, n_cpus)]
            if n_cpus > 0 and len(sets) >= n_workers:
                return tuple(Placement(cpus=cores.format_list(cpus)) for cpus in sets[:n_workers])
    raise UsageError(
        f"{n_workers} workers with {n_cpus} CPUs each need {n_workers * n_cpus}, and this process "
        f"may use {len(everything)} ({cores.format_list(everything)}); take fewer workers, or a "
        "smaller --cpus-per-worker"
    )


def _by_core(host: Host, numbers: Iterable[int]) -> list[list[int]]:
    """Return CPUs by their physical core; one that is unknown has a single CPU."""
    first = {number: min(core) for core in host.siblings for number in core}
    grouped = defaultdict(list)
    for number in sorted(numbers):
        grouped[first.get(number, number)].append(number)
    return [*grouped.values()]


def _fill(parts: Iterable[list[int]], n_cpus: int) -> Iterator[list[int]]:
    """Yield sets of `n_cpus` CPUs, no two of which are in the same part."""
    chosen: list[int] = []
    for part in parts:
        chosen = [*chosen, *part]
        if len(chosen) >= n_cpus:
            yield chosen[:n_cpus]
            chosen = []


def validate_placement(placement: Sequence[Placement], host: Host) -> None:
    """Raise a UsageError if `placement` names CPUs, GPUs or NICs that `host`, this one, lacks."""
    gpus = {gpu.index for gpu in host.gpus}
    nics = {name for nic in host.nics for name in (nic.ucx_name, *nic.interfaces)}
    nics |= {f"{nic.name}:{port}" for nic in host.nics for port in nic.ports}
    nics |= {name for _, name in socket.if_nameindex()}
    for number, wished in enumerate(placement):
        worker = f"placement of worker {number}: "
        wanted = cores.parse(wished.cpus)
        if absent := wanted - cores.parse(_usable(host, wished.cpus)):
            raise UsageError(
                f"{worker}CPU {cores.format_list(absent)} is not there, or not for this process; "
                f"known: {cores.format_list(host.allowed or ())}"
            )
        if wished.gpu is not None and wished.gpu not in gpus:
            known = cores.format_list(gpus) or "; ".join(["none", *host.notes])
            raise UsageError(f"{worker}there is no GPU {wished.gpu}; known: {known}")
        if absent_nics := [name for name in wished.nic.split(",") if name and name not in nics]:
            known = ", ".join(sorted(nics)) or "none"
            raise UsageError(f"{worker}there is no NIC {absent_nics[0]!r}; known: {known}")


def _usable(host: Host, cpus: str) -> str:
    numbers = cores.parse(cpus)
    return cores.format_list(numbers if host.allowed is None else numbers & host.allowed)


def _nearest(host: Host, name: str, used: Counter[str]) -> str:
    """Return the ``UCX_NET_DEVICES`` name of the nearest active RDMA device; "" without any."""
    nics = [nic for nic in host.nics if nic.rdma and nic.is_active]
    if not nics:
        return ""
    chosen = min(nics, key=lambda nic: (rank(host.link(name, nic.name) or UNKNOWN), used[nic.name]))
    used[chosen.name] += 1
    return chosen.ucx_name

"""Where a process is: host, CPUs, NUMA nodes, GPU and NIC, as its kernel and its driver tell."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commbench.machine import cores
from commbench.machine.topology.discovery import numa_nodes, sockets, this_host
from commbench.machine.topology.hosts import Gpu, Host


def place_of(
    pid: int, *, device: str = "cpu", address: str = "", root: Path = Path("/")
) -> dict[str, Any]:
    """Return where the process `pid` of this host is: the fields of a ``WorkerPlace``.

    Parameters
    ----------
    device
        ``"gpu"`` where its data live on a GPU: its own is the first one that it may see.
    address
        Where it listens, ``"tcp://10.0.0.1:4711"``.

    Returns
    -------
    dict
        All of the record's fields but those that say whose place it is.
    """
    environ = _environ(pid)
    numbers = _affinity(pid)
    nodes = [node for node in numa_nodes(root) if cores.parse(node.cpus) & numbers]
    host = this_host(root) if device == "gpu" else Host(name="")
    gpu = _own_gpu(host.gpus, environ, _cuda_device() if pid == os.getpid() else "")
    return {
        "host": platform.node(),
        "host_id": _host_id(pid),
        "pid": pid,
        "cpus": cores.listed(numbers),
        "numa_nodes": cores.listed(node.number for node in nodes),
        "sockets": sockets(numbers, root / "sys"),
        "gpu": "" if gpu is None else str(gpu.index),
        "gpu_uuid": "" if gpu is None else gpu.uuid,
        "gpu_pci": "" if gpu is None else gpu.pci,
        "gpu_links": "" if gpu is None else _links(gpu, host),
        "nic": _nic(address, environ),
    }


def visible(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; all where it isn't set.

    Numbers in it are taken for nvidia-smi's, which they are where ``CUDA_DEVICE_ORDER`` is
    ``PCI_BUS_ID`` or all GPUs are alike.

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
    found = []
    for word in map(str.strip, text.split(",")):
        is_uuid = word.startswith("GPU-")
        matching = (
            gpu for gpu in gpus if word == str(gpu.index) or (is_uuid and gpu.uuid.startswith(word))
        )
        if (gpu := next(matching, None)) is None:
            # As CUDA does: what follows the first that is not there doesn't count.
            break
        found.append(gpu)
    return tuple(found)


def _own_gpu(gpus: tuple[Gpu, ...], environ: Mapping[str, str], pci: str) -> Gpu | None:
    """Return the GPU that CUDA told of, else the first one that is visible."""
    if pci:
        return next((gpu for gpu in gpus if gpu.pci == pci), None)
    return next(iter(visible(gpus, environ)), None)


def _cuda_device() -> str:
    """Return the PCI address of the device that CuPy uses in this process; else nothing."""
    if (cupy := sys.modules.get("cupy")) is not None:
        with suppress(Exception):
            runtime = cupy.cuda.runtime
            return str(runtime.deviceGetPCIBusId(runtime.getDevice())).lower()[-12:]
    return ""


def _links(gpu: Gpu, host: Host) -> str:
    others = (other.name for other in host.gpus if other != gpu)
    found = ((name, host.link(gpu.name, name)) for name in others)
    return " ".join(f"{name}={link}" for name, link in found if link)


def _affinity(pid: int) -> frozenset[int]:
    with suppress(OSError):
        return frozenset(os.sched_getaffinity(pid))
    return frozenset()


def _environ(pid: int) -> Mapping[str, str]:
    if pid == os.getpid():
        return os.environ
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict(pair.partition("=")[::2] for pair in text.split("\0"))
    return {}


def _host_id(pid: int) -> str:
    """Return what is the same for all processes that share this one's kernel and network."""
    kernel = network = ""
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        network = str(Path(f"/proc/{pid}/ns/net").readlink())
    return f"{kernel or platform.node()} {network}".strip()


def _nic(address: str, environ: Mapping[str, str]) -> str:
    scheme, _, _ = address.partition("://")
    if scheme == "ucx" and environ.get("UCX_NET_DEVICES"):
        return environ["UCX_NET_DEVICES"]
    import psutil

    with suppress(OSError, ValueError):
        where = urlsplit(address).hostname
        for name, addresses in psutil.net_if_addrs().items():
            if where and any(found.address.partition("%")[0] == where for found in addresses):
                return str(name)
    return ""

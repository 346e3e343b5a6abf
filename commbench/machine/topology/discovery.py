"""Discover this host's topology from the kernel's ``/sys`` and from ``nvidia-smi``.

The link between two PCI devices follows from their paths in the tree of bridges, and is named as by
nvidia-smi. Only nvidia-smi knows NVLinks; its links take precedence.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import permutations, product, takewhile
from pathlib import Path

from commbench.errors import UsageError
from commbench.machine import cores, environment
from commbench.machine.environment import entries, integer, read
from commbench.machine.environment import numa_nodes as described_nodes
from commbench.machine.topology.hosts import Gpu, Host, Matrix, Nic, NumaNode, apart, parse

_PciPath = tuple[str, ...]
"""The names of a root, the bridges below it, and the device; unique within the host."""
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_TIMEOUT_S = 10.0


def this_host(root: Path = Path("/")) -> Host:
    """Return this host; what can't be read is left out and mentioned in its notes."""
    sys = root / "sys"
    nodes = numa_nodes(root)
    gpus, matrix, notes = _gpus(sys)
    nics = tuple(_nics(sys))
    devices: tuple[Gpu | Nic, ...] = (*gpus, *nics)
    links = _links(devices, nodes, sys)
    known = {device.name for device in devices}
    links |= {pair: link for pair, link in matrix.links.items() if {*pair} <= known}
    allowed = frozenset(os.sched_getaffinity(0))
    return Host(
        name=platform.node(),
        nodes=nodes,
        gpus=gpus,
        nics=nics,
        links=links,
        allowed=allowed,
        siblings=_siblings(allowed, sys),
        notes=tuple(notes),
    )


def numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have CPUs, with their sockets."""
    nodes = []
    for node in described_nodes(root / "sys"):
        with suppress(UsageError):
            if numbers := cores.parse(node["cpus"] or ""):
                nodes.append(
                    NumaNode(
                        number=node["node"],
                        cpus=cores.format_list(numbers),
                        sockets=sockets(numbers, root / "sys"),
                        memory_bytes=node["memory_bytes"],
                    )
                )
    return tuple(nodes)


def sockets(numbers: Iterable[int], sys: Path) -> str:
    """Return the sockets of these CPUs as a list; "" if one of them is unknown."""
    known = set()
    for number in numbers:
        path = sys / f"devices/system/cpu/cpu{number}/topology/physical_package_id"
        if (socket := integer(path)) is None:
            return ""
        known.add(socket)
    return cores.format_list(known)


def _siblings(numbers: Iterable[int], sys: Path) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each physical core that has one of `numbers`, where they are known."""
    known = set()
    for number in numbers:
        path = sys / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        with suppress(UsageError):
            known.add(cores.parse(read(path) or ""))
    return tuple(known - {frozenset()})


def _links(
    devices: tuple[Gpu | Nic, ...], nodes: tuple[NumaNode, ...], sys: Path
) -> dict[tuple[str, str], str]:
    """Return the known links by the names of two devices or NUMA nodes."""
    links: dict[tuple[str, str], str] = {}
    paths = {
        device.name: _pci_path(sys / "bus/pci/devices" / device.pci) if device.pci else ()
        for device in devices
    }
    for first, second in permutations(devices, 2):
        link = _pci_link(paths[first.name], paths[second.name], first.numa_node, second.numa_node)
        if link:
            links[first.name, second.name] = link
    for one, other in permutations(nodes, 2):
        links[one.name, other.name] = apart(one.sockets, other.sockets)
    for device, near in product(devices, nodes):
        if device.numa_node == near.number:
            for node in nodes:
                link = links.get((near.name, node.name), "same NUMA")
                links[device.name, node.name] = links[node.name, device.name] = link
    return links


def _pci_link(
    one: _PciPath, other: _PciPath, node: int | None = None, other_node: int | None = None
) -> str:
    """Return the link between two PCI devices on these NUMA nodes; "" if it is unknown.

    Examples
    --------
    >>> switch = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    >>> gpu = (*switch, "0000:02:00.0", "0000:03:00.0")
    >>> nic = (*switch, "0000:02:01.0", "0000:04:00.0")
    >>> _pci_link(gpu, nic), _pci_link(gpu, ("pci0000:00", "0000:00:03.0"))
    ('PIX', 'PHB')
    >>> _pci_link(gpu, ("pci0000:80", "0000:80:01.0"), 0, 1)
    'SYS'
    """
    if not one or not other:
        return ""
    pairs = zip(one, other, strict=False)
    n_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if n_common == 0:
        if node is None or other_node is None:
            return ""
        return "NODE" if node == other_node else "SYS"
    if n_common == 1:
        return "PHB"
    # Each device below a switch has a separate port of it.
    return "PIX" if max(len(one), len(other)) - n_common <= 2 else "PXB"


def _gpus(sys: Path) -> tuple[tuple[Gpu, ...], Matrix, list[str]]:
    executable = shutil.which("nvidia-smi")
    rows, error = environment.query_gpus()
    if executable is None or not rows:
        why = error or "the driver is there, but shows none"
        if executable is None:
            why = "nvidia-smi, which lists them, is not installed"
        return (), Matrix(), [f"no GPUs are known: {why}"]
    notes = [error] if error else []
    matrix = Matrix()
    text, error = environment.run_tool((executable, "topo", "-m"), _TIMEOUT_S)
    try:
        if error:
            raise UsageError(error)
        matrix = parse(text)
    except UsageError as problem:
        notes.append(f"NVLinks and the CPUs near the GPUs are not known: {problem}")
    gpus = []
    for row in rows:
        name, pci = f"GPU{row['index']}", row["pci"].lower()[-12:]
        node = integer(sys / "bus/pci/devices" / pci / "numa_node")
        gpus.append(
            Gpu(
                index=row["index"],
                cpus=matrix.cpus.get(name, ""),
                numa_node=matrix.numa_nodes.get(name) if node is None else node,
                model=row["name"],
                uuid=row["uuid"],
                pci=pci,
            )
        )
    return tuple(gpus), matrix, notes


def _nics(sys: Path) -> Iterator[Nic]:
    """Yield the RDMA devices, then the other network interfaces of hardware."""
    taken: set[str] = set()
    for path in entries(sys / "class/infiniband"):
        interfaces = tuple(entry.name for entry in entries(path / "device/net"))
        taken.update(interfaces)
        ports = entries(path / "ports")
        states = {port.name: read(port / "state") for port in ports}
        active = [name for name, state in states.items() if "ACTIVE" in (state or "")]
        yield replace(
            _nic(path), rdma=True, port=(active or ["1"])[0], ports=tuple(states),
            interfaces=interfaces, is_active=bool(active) or None in states.values() or not states,
        )  # fmt: skip
    for path in entries(sys / "class/net"):
        # Software interfaces (lo, bridges, virtual pairs) have no device.
        if path.name not in taken and (path / "device").exists():
            yield _nic(path)


def _nic(path: Path) -> Nic:
    # The last PCI device on the path is that of a virtual function.
    pci = next(filter(_FUNCTION.fullmatch, reversed(_pci_path(path / "device"))), "")
    return Nic(name=path.name, pci=pci, numa_node=integer(path / "device/numa_node"))


def _pci_path(device: Path) -> _PciPath:
    with suppress(OSError, RuntimeError):
        parts = device.resolve().parts
        return tuple(part for part in parts if _ROOT.fullmatch(part) or _FUNCTION.fullmatch(part))
    return ()

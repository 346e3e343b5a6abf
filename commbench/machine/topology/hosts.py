"""What a host consists of, as far as its communication is concerned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations, takewhile

from commbench.machine import cores

SELF = "X"
PciPath = tuple[str, ...]
"""A root, the bridges below it, and the device, by names that are its own within the host."""


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """A NUMA node: its ``cpus`` as the kernel lists them, and the sockets that they are in."""

    number: int
    cpus: str
    sockets: str = ""
    memory_bytes: int | None = None

    @property
    def name(self) -> str:
        """How it is called in a matrix of links."""
        return f"node{self.number}"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An NVIDIA GPU; ``cpus`` are those near it, and ``name`` is ``"GPU"`` and ``index``."""

    index: int
    cpus: str = ""
    numa_node: int | None = None
    model: str = ""
    uuid: str = ""
    pci: str = ""

    @property
    def name(self) -> str:
        """How it is called in a matrix of links."""
        return f"GPU{self.index}"


@dataclass(frozen=True, kw_only=True)
class Nic:
    """A network device.

    An RDMA device has a ``port``, the first one that is active, and maybe ``interfaces`` of the
    kernel's network.
    """

    name: str
    rdma: bool = False
    numa_node: int | None = None
    pci: str = ""
    port: str = ""
    interfaces: tuple[str, ...] = ()

    @property
    def ucx_name(self) -> str:
        """How ``UCX_NET_DEVICES`` calls it."""
        return f"{self.name}:{self.port}" if self.port else self.name


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host, and by the names of two of its devices the kind of link between them.

    ``allowed`` are the CPUs that this process may use; None where the host is not this one.
    ``notes`` say what is not known, and why.
    """

    name: str
    nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of all between which there are links: GPUs, NICs, and several NUMA nodes."""
        nodes = self.nodes if len(self.nodes) > 1 else ()
        devices: tuple[NumaNode | Gpu | Nic, ...] = (*nodes, *self.gpus, *self.nics)
        return tuple(device.name for device in devices)

    def link(self, one: str, other: str) -> str:
        """Return the class of the link between two devices; nothing where it is unknown."""
        return SELF if one == other else self.links.get((one, other), "")


def between_devices(
    devices: tuple[Gpu | Nic, ...], paths: Mapping[str, PciPath]
) -> dict[tuple[str, str], str]:
    """Return what joins each two of the devices whose `paths` are known, by their names."""
    nodes = {device.name: device.numa_node for device in devices}
    return {
        (one, other): found
        for one, other in permutations(paths, 2)
        if (found := pci_link(paths[one], paths[other], nodes[one], nodes[other]))
    }


def pci_link(
    one: PciPath, other: PciPath, node: int | None = None, other_node: int | None = None
) -> str:
    """Return what joins two PCI devices on these NUMA nodes; nothing where nobody can tell.

    Examples
    --------
    >>> switch = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    >>> gpu = (*switch, "0000:02:00.0", "0000:03:00.0")
    >>> nic = (*switch, "0000:02:01.0", "0000:04:00.0")
    >>> pci_link(gpu, nic), pci_link(gpu, ("pci0000:00", "0000:00:03.0"))
    ('PIX', 'PHB')
    >>> pci_link(gpu, ("pci0000:80", "0000:80:01.0"), 0, 1)
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
    # Below a switch each device has a port of the switch to itself.
    return "PIX" if max(len(one), len(other)) - n_common <= 2 else "PXB"


def between_nodes(nodes: tuple[NumaNode, ...]) -> dict[tuple[str, str], str]:
    """Return what joins each NUMA node to the others."""
    return {
        (one.name, other.name): apart(one.sockets, other.sockets)
        for one, other in permutations(nodes, 2)
    }


def to_nodes(
    devices: tuple[Gpu | Nic, ...], nodes: tuple[NumaNode, ...]
) -> dict[tuple[str, str], str]:
    """Return what joins each device to each NUMA node, where it is known which is its own."""
    own = {node.number: node for node in nodes}
    found = {}
    for device in devices:
        if (near := own.get(-1 if device.numa_node is None else device.numa_node)) is None:
            continue
        for node in nodes:
            same = node.number == near.number
            link = "same NUMA" if same else apart(near.sockets, node.sockets)
            found[device.name, node.name] = found[node.name, device.name] = link
    return found


def apart(one: str, other: str) -> str:
    """Return what joins two different NUMA nodes in these sockets.

    Examples
    --------
    >>> apart("0", "1"), apart("0", "0"), apart("", "")
    ('cross-socket', 'same socket', 'cross-socket')
    """
    return "same socket" if cores.parse(one) & cores.parse(other) else "cross-socket"

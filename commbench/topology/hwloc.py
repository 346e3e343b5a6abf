"""A host as hwloc describes it: the XML that ``lstopo --of xml`` writes, of hwloc 2.

Read are NUMA nodes, packages (sockets), the tree of PCI bridges, and the devices below it that are
NVIDIA GPUs or that the operating system calls network or OpenFabrics (RDMA) devices. hwloc knows
no NVLinks. The format: hwloc's manual, "Importing and exporting topologies from/to XML files".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError, fromstring

from commbench import cores
from commbench.errors import UsageError
from commbench.topology.hosts import (
    Gpu,
    Host,
    Nic,
    NumaNode,
    PciPath,
    between_devices,
    between_nodes,
    to_nodes,
)

_NETWORK, _RDMA = "2", "3"
"""Kinds of devices of the operating system."""
_NVIDIA = "[10de:"
_DISPLAYS = ("0300", "0302")
"""Classes of PCI devices: VGA and 3D controllers."""
_MAX_CPUS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class _Device:
    """A PCI device: its element, the bridges above it, and the CPUs of what it hangs on."""

    element: Element
    path: PciPath
    cpus: frozenset[int]


def parse(text: str) -> Host:
    """Return the host that an XML of hwloc's describes.

    Raises
    ------
    UsageError
        Where it is no such XML, or one of hwloc 1 or 3.

    Examples
    --------
    >>> host = parse('''<topology version="2.0"><object type="Machine" cpuset="0x0000000f">
    ...   <object type="Package" os_index="0" cpuset="0x0000000f">
    ...     <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="1024"/>
    ...   </object><info name="HostName" value="node7"/></object></topology>''')
    >>> host.name, host.nodes
    ('node7', (NumaNode(number=0, cpus='0-3', sockets='0', memory_bytes=1024),))
    """
    try:
        root = fromstring(text)  # noqa: S314 - expat bounds what entities may grow to
    except ParseError as error:
        raise UsageError(f"it is no XML: {error}") from error
    version = root.get("version", "1")
    if root.tag != "topology" or version.partition(".")[0] != "2":
        other = f"hwloc {version}" if root.tag == "topology" else f"<{root.tag[:40]}>"
        raise UsageError(
            f"it is XML of {other}; give what `lstopo --of xml --whole-io` of hwloc 2 writes, or "
            "`lstopo --of xml --export-xml-flags 1` of another version"
        )
    nodes = tuple(_nodes(root))
    try:
        found = sorted(_devices(root, (), frozenset()), key=lambda device: device.path[-1])
    except RecursionError:
        raise UsageError("its objects are nested too deeply") from None
    gpus, nics = tuple(_gpus(found, nodes)), tuple(_nics(found, nodes))
    devices: tuple[Gpu | Nic, ...] = (*gpus, *nics)
    paths = {device.path[-1]: device.path for device in found}
    links = between_devices(devices, {device.name: paths[device.pci] for device in devices})
    names = {info.get("name"): info.get("value", "") for info in root.iter("info")}
    notes = ["NVLinks are not known: hwloc doesn't tell of them"] if len(gpus) > 1 else []
    return Host(
        name=names.get("HostName") or "host",
        nodes=nodes,
        gpus=gpus,
        nics=nics,
        links=links | between_nodes(nodes) | to_nodes(devices, nodes),
        notes=tuple(notes),
    )


def _nodes(root: Element) -> Iterator[NumaNode]:
    packages = [
        (_number(element, "os_index"), _cpus(element)) for element in _objects(root, "Package")
    ]
    for element in sorted(_objects(root, "NUMANode"), key=lambda node: _number(node, "os_index")):
        if cpus := _cpus(element):
            yield NumaNode(
                number=_number(element, "os_index"),
                cpus=cores.listed(cpus),
                sockets=cores.listed(number for number, own in packages if own & cpus),
                memory_bytes=_number(element, "local_memory") if "local_memory" in element.attrib
                else None,
            )  # fmt: skip


def _devices(element: Element, path: PciPath, cpus: frozenset[int]) -> Iterator[_Device]:
    """Yield the PCI devices below `element`, which is at `path` and near `cpus`."""
    for child in element.findall("object"):
        kind = child.get("type")
        if kind == "PCIDev":
            yield _Device(element=child, path=(*path, child.get("pci_busid", "")), cpus=cpus)
        elif kind == "Bridge":
            # A host bridge is no PCI device, and has the range of the buses below it.
            name = child.get("pci_busid", child.get("bridge_pci", ""))
            yield from _devices(child, (*path, name), cpus)
        else:
            yield from _devices(child, path, _cpus(child) or cpus)


def _gpus(devices: list[_Device], nodes: tuple[NumaNode, ...]) -> Iterator[Gpu]:
    kinds = ((device, device.element.get("pci_type", "")) for device in devices)
    found = [
        device for device, kind in kinds if kind.startswith(_DISPLAYS) and _NVIDIA in kind.lower()
    ]
    # nvidia-smi counts them in the order of their addresses.
    for index, device in enumerate(found):
        names = {info.get("name"): info.get("value", "") for info in device.element.iter("info")}
        yield Gpu(
            index=index,
            cpus=cores.listed(device.cpus),
            numa_node=_node(device, nodes),
            model=names.get("GPUModel") or names.get("PCIDevice", ""),
            pci=device.path[-1],
        )


def _nics(devices: list[_Device], nodes: tuple[NumaNode, ...]) -> Iterator[Nic]:
    """Yield the RDMA devices, then the network interfaces that are no such device."""
    names = {
        device.path[-1]: [
            [found.get("name", "") for found in _objects(device.element, "OSDev")
             if found.get("osdev_type") == kind]
            for kind in (_RDMA, _NETWORK)
        ]
        for device in devices
    }  # fmt: skip
    for device in devices:
        rdma, interfaces = names[device.path[-1]]
        for name in rdma:
            yield Nic(
                name=name, rdma=True, port="1", interfaces=tuple(interfaces),
                pci=device.path[-1], numa_node=_node(device, nodes),
            )  # fmt: skip
    for device in devices:
        rdma, interfaces = names[device.path[-1]]
        for name in () if rdma else interfaces:
            yield Nic(name=name, pci=device.path[-1], numa_node=_node(device, nodes))


def _node(device: _Device, nodes: tuple[NumaNode, ...]) -> int | None:
    """Return the NUMA node that all CPUs near a device are on."""
    near = [node.number for node in nodes if cores.parse(node.cpus) & device.cpus]
    return near[0] if len(near) == 1 else None


def _objects(element: Element, kind: str) -> Iterator[Element]:
    return (found for found in element.iter("object") if found.get("type") == kind)


def _number(element: Element, name: str) -> int:
    text = element.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"{name}={text[:40]!r} of a {element.get('type')} is no number")
    return int(text)


def _cpus(element: Element) -> frozenset[int]:
    """Return the CPUs of an object: words of 32 bits in hexadecimal, the highest first."""
    text, mask = element.get("cpuset", ""), 0
    try:
        for word in text.split(",") if text else ():
            mask = mask << 32 | int(word or "0", 16)
    except ValueError:
        mask = -1
    if mask < 0 or mask.bit_length() > _MAX_CPUS:
        raise UsageError(f"cpuset={text[:40]!r} of a {element.get('type')} is no set of CPUs")
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)

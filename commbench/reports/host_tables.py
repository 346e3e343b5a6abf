"""A host as tables: its NUMA nodes, GPUs and NICs, and the links between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from commbench.machine.topology.hosts import Gpu, Host, Nic
from commbench.model import Placement
from commbench.model.units import format_bytes
from commbench.reports.sections import Table, plural

LINKS = {
    "NV": "NV#: # NVLinks bonded",
    "PIX": "PIX: at most one PCIe bridge",
    "PXB": "PXB: several, but no host bridge",
    "PHB": "PHB: a PCIe host bridge (the CPU)",
    "NODE": "NODE: between host bridges of a NUMA node",
    "SYS": "SYS: between NUMA nodes",
    "same NUMA": "own: the device's own NUMA node",
    "same socket": "socket: another in the same socket",
    "cross-socket": "cross: one in another socket",
}
"""The meanings of classes of links."""
SHORT = {"same NUMA": "own", "same socket": "socket", "cross-socket": "cross"}
"""Short names of classes of links, for narrow columns."""


def heading(host: Host) -> str:
    """Return a line with the numbers of NUMA nodes, GPUs and NICs."""
    counts = ((len(host.nodes), "NUMA node"), (len(host.gpus), "GPU"), (len(host.nics), "NIC"))
    return f"{host.name}: {', '.join(plural(n, name) for n, name in counts)}"


def tables(host: Host) -> Iterator[Table]:
    """Yield the tables that are not empty."""
    nodes = host.nodes
    if nodes:
        yield Table.from_columns(
            "NUMA nodes",
            {
                "node": [str(node.number) for node in nodes],
                "CPUs": [node.cpus for node in nodes],
                "memory": [
                    "—" if node.memory_bytes is None else format_bytes(node.memory_bytes)
                    for node in nodes
                ],
                "socket": [node.sockets or "—" for node in nodes],
                "GPUs": [_near(node.number, host.gpus) for node in nodes],
                "NICs": [_near(node.number, host.nics) for node in nodes],
            },
            text_columns={"CPUs", "GPUs", "NICs"},
        )
    if host.gpus:
        yield _without_empty_columns(
            "GPUs",
            {
                "GPU": [str(gpu.index) for gpu in host.gpus],
                "model": [gpu.model for gpu in host.gpus],
                "PCI": [gpu.pci for gpu in host.gpus],
                "node": [_node(gpu.numa_node) for gpu in host.gpus],
                "near CPUs": [gpu.cpus for gpu in host.gpus],
            },
        )
    if host.nics:
        yield _without_empty_columns(
            "NICs",
            {
                "NIC": [nic.name for nic in host.nics],
                "kind": ["RDMA" if nic.rdma else "Ethernet" for nic in host.nics],
                "interfaces": [", ".join(nic.interfaces) for nic in host.nics],
                "PCI": [nic.pci for nic in host.nics],
                "node": [_node(nic.numa_node) for nic in host.nics],
            },
        )
    if len(host.devices) > 1:
        yield _matrix(host)


def _without_empty_columns(title: str, columns: Mapping[str, Sequence[str]]) -> Table:
    """Return a table of the columns that have a value."""
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    return Table.from_columns(
        title,
        {name: [cell or "—" for cell in cells] for name, cells in kept.items()},
        text_columns={"model", "PCI", "near CPUs", "kind", "interfaces"},
    )


def _near(node: int, devices: Sequence[Gpu] | Sequence[Nic]) -> str:
    return ", ".join(each.name for each in devices if each.numa_node == node) or "—"


def _node(number: int | None) -> str:
    return "" if number is None else str(number)


def _matrix(host: Host) -> Table:
    devices = host.devices
    links = {one: [host.link(one, other) for other in devices] for one in devices}
    # NVLinks have their number at the end.
    kinds = {link.rstrip("0123456789") for row in links.values() for link in row}
    notes = [text for kind, text in LINKS.items() if kind in kinds]
    return Table(
        "Links",
        ("", *devices),
        tuple((one, *(SHORT.get(link, link) or "—" for link in row)) for one, row in links.items()),
        "; ".join(notes) + "." * bool(notes),
    )


def placement_file(placement: Sequence[Placement], host: Host) -> str:
    """Return a placement as the text of a file for ``--placement``."""
    lines = [f"# What the workers on {host.name!r} are bound to, by commbench topology."]
    for number, worker in enumerate(placement):
        lines += ["", f"[[worker]]  # {number}"]
        # Every JSON string is a valid TOML string.
        lines += [f"cpus = {json.dumps(worker.cpus)}"] * bool(worker.cpus)
        lines += [f"gpu = {worker.gpu}"] * (worker.gpu is not None)
        lines += [f"nic = {json.dumps(worker.nic)}"] * bool(worker.nic)
    return "\n".join(lines) + "\n"

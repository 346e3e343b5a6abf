"""A host as tables: its NUMA nodes, GPUs and NICs, and the links between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from commbench.machine.topology import Host
from commbench.model import Placement
from commbench.model.units import format_bytes
from commbench.reports.sections import Table

_LEGEND = {
    "NV": "NV#: # NVLinks bonded",
    "PIX": "PIX: at most one PCIe bridge",
    "PXB": "PXB: several, but no host bridge",
    "PHB": "PHB: a PCIe host bridge (the CPU)",
    "NODE": "NODE: between host bridges of a NUMA node",
    "SYS": "SYS: between NUMA nodes",
}
_SHORT = {"same NUMA": "own", "same socket": "socket", "cross-socket": "cross"}
_NODES = "own: the device's own NUMA node; cross: one in another socket"


def heading(host: Host) -> str:
    """Return one line that says how much there is."""
    counts = ((len(host.nodes), "NUMA node"), (len(host.gpus), "GPU"), (len(host.nics), "NIC"))
    said = [f"{n} {name}{'s' * (n != 1)}" for n, name in counts]
    return f"{host.name}: {', '.join(said)}"


def tables(host: Host) -> Iterator[Table]:
    """Yield the tables that there is something to say in."""
    if host.nodes:
        yield Table(
            "NUMA nodes",
            ("node", "CPUs", "memory", "socket", "GPUs", "NICs"),
            tuple(
                (
                    str(node.number),
                    node.cpus,
                    "—" if node.memory_bytes is None else format_bytes(node.memory_bytes),
                    node.sockets or "—",
                    _near(node.number, {gpu.name: gpu.numa_node for gpu in host.gpus}),
                    _near(node.number, {nic.name: nic.numa_node for nic in host.nics}),
                )
                for node in host.nodes
            ),
            text_columns=frozenset({"CPUs", "GPUs", "NICs"}),
        )
    if host.gpus:
        yield _told(
            "GPUs",
            ("GPU", "model", "PCI", "node", "near CPUs"),
            tuple(
                (str(gpu.index), gpu.model or "—", gpu.pci or "—", _node(gpu.numa_node),
                 gpu.cpus or "—")
                for gpu in host.gpus
            ),
            frozenset({"model", "PCI", "near CPUs"}),
        )  # fmt: skip
    if host.nics:
        yield _told(
            "NICs",
            ("NIC", "kind", "interfaces", "PCI", "node"),
            tuple(
                (nic.name, "RDMA" if nic.rdma else "Ethernet", ", ".join(nic.interfaces) or "—",
                 nic.pci or "—", _node(nic.numa_node))
                for nic in host.nics
            ),
            frozenset({"kind", "interfaces", "PCI"}),
        )  # fmt: skip
    if len(host.devices) > 1:
        yield _matrix(host)


def _told(
    title: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], prose: frozenset[str]
) -> Table:
    """Return a table without the columns in which nothing is known."""
    kept = [number for number in range(len(columns)) if any(row[number] != "—" for row in rows)]
    return Table(
        title,
        tuple(columns[number] for number in kept),
        tuple(tuple(row[number] for number in kept) for row in rows),
        text_columns=prose,
    )


def _matrix(host: Host) -> Table:
    links = {host.link(one, other) for one in host.devices for other in host.devices}
    kinds = {link.rstrip("0123456789") for link in links}
    notes = [text for kind, text in _LEGEND.items() if kind in kinds]
    notes += [_NODES] * bool(kinds & {*_SHORT})
    return Table(
        "Links",
        ("", *host.devices),
        tuple(
            (one, *(_cell(host.link(one, other)) for other in host.devices)) for one in host.devices
        ),
        "; ".join(notes) + "." * bool(notes),
    )


def _cell(link: str) -> str:
    return _SHORT.get(link, link) or "—"


def _near(node: int, nodes: dict[str, int | None]) -> str:
    return ", ".join(name for name, own in nodes.items() if own == node) or "—"


def _node(number: int | None) -> str:
    return "—" if number is None else str(number)


def placement_file(placement: Sequence[Placement], host: Host) -> str:
    """Return a placement as the text of a file for ``--placement``."""
    lines = [f"# What the workers on {host.name!r} are bound to, by commbench topology."]
    for number, place in enumerate(placement):
        lines += ["", f"[[worker]]  # {number}"]
        # A string of JSON is one of TOML, whatever is in it.
        lines += [f"cpus = {json.dumps(place.cpus)}"] * bool(place.cpus)
        lines += [f"gpu = {place.gpu}"] * (place.gpu is not None)
        lines += [f"nic = {json.dumps(place.nic)}"] * bool(place.nic)
    return "\n".join(lines) + "\n"

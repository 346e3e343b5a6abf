"""The devices and links of a host, and a parser for ``nvidia-smi topo -m``.

This command prints the links between GPUs and NICs, and the CPUs near a GPU. ``docs/topology.md``
defines the classes of links; older drivers say ``SOC`` for ``SYS``.

Columns are separated by tabs or, after a copy, by blanks. Newer drivers name NICs ``NIC0`` and have
a legend with their names, older ones have no column ``NUMA Affinity``, and the published matrix of
a DGX-1 has the CPU affinities in a block below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from commbench.errors import UsageError
from commbench.machine import cores

SELF = "X"


@dataclass(frozen=True, kw_only=True)
class NumaNode:
    """A NUMA node: its ``cpus`` in the kernel's list format, and their sockets."""

    number: int
    cpus: str
    sockets: str = ""
    memory_bytes: int | None = None

    @property
    def name(self) -> str:
        """The name in a matrix of links."""
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
        """The name in a matrix of links."""
        return f"GPU{self.index}"


@dataclass(frozen=True, kw_only=True)
class Nic:
    """A network device.

    An RDMA device has ``ports``, a ``port``, the first active one, and maybe ``interfaces``. It
    ``is_active`` if a port is, or if their states are unknown.
    """

    name: str
    rdma: bool = False
    is_active: bool = True
    numa_node: int | None = None
    pci: str = ""
    port: str = ""
    ports: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    @property
    def ucx_name(self) -> str:
        """The name for ``UCX_NET_DEVICES``."""
        return f"{self.name}:{self.port}" if self.port else self.name


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host, and the class of the link between each two of its devices, by their names.

    ``allowed`` are the CPUs that this process may use; None if this is another host. ``siblings``
    are the CPUs of each physical core; unknown ones are missing. ``notes`` say what is unknown, and
    why.
    """

    name: str
    nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    siblings: tuple[frozenset[int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names in `links`: of GPUs, NICs, and NUMA nodes if there are several."""
        nodes = self.nodes if len(self.nodes) > 1 else ()
        devices: tuple[NumaNode | Gpu | Nic, ...] = (*nodes, *self.gpus, *self.nics)
        return tuple(device.name for device in devices)

    def link(self, one: str, other: str) -> str:
        """Return the class of the link between two devices; "" if it is unknown."""
        return SELF if one == other else self.links.get((one, other), "")


def apart(one: str, other: str) -> str:
    """Return the class of the link between two NUMA nodes in these sockets, which may be unknown.

    Examples
    --------
    >>> apart("0", "1"), apart("0", "0"), apart("", "0")
    ('cross-socket', 'same socket', 'same host')
    """
    if not (one and other):
        return "same host"
    return "same socket" if cores.parse(one) & cores.parse(other) else "cross-socket"


_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_AFFINITIES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_LINK = re.compile(r"X|NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_LEGEND = re.compile(r"(?m)^[ \t]*(NIC[0-9]{1,4}):[ \t]*(\S+)[ \t]*$")
_MAX_DEVICES = 512
_MAX_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The devices in order, their links in both directions, and their CPUs."""

    devices: tuple[str, ...] = ()
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cpus: Mapping[str, str] = field(default_factory=dict)
    numa_nodes: Mapping[str, int] = field(default_factory=dict)

    def host(self, name: str) -> Host:
        """Return a host with these devices and links."""
        gpus = {device: match for device in self.devices if (match := _GPU.fullmatch(device))}
        return Host(
            name=name,
            gpus=tuple(
                Gpu(
                    index=int(match[1]),
                    cpus=self.cpus.get(device, ""),
                    numa_node=self.numa_nodes.get(device),
                )
                for device, match in gpus.items()
            ),
            # nvidia-smi lists RDMA devices only; the published matrix has their interfaces' names.
            nics=tuple(
                Nic(name=device, rdma=True, port="" if re.match(r"ib\d", device) else "1")
                for device in self.devices
                if device not in gpus
            ),
            links=self.links,
        )


def parse(text: str) -> Matrix:
    """Return the matrix in the output of ``nvidia-smi topo -m``, ignoring other lines.

    Raises
    ------
    UsageError
        If there is no matrix, or a row does not match the header.

    Examples
    --------
    >>> matrix = parse('''
    ...         GPU0    mlx5_0  CPU Affinity    NUMA Affinity
    ... GPU0     X      PIX     0-19,40-59      0
    ... mlx5_0  PIX      X
    ... ''')
    >>> matrix.links["mlx5_0", "GPU0"], matrix.cpus["GPU0"], matrix.numa_nodes["GPU0"]
    ('PIX', '0-19,40-59', 0)
    """
    lines = _ESCAPE.sub("", text).splitlines()
    header, devices = _header(lines)
    named = dict(_LEGEND.findall("\n".join(lines)))
    links: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    nodes: dict[str, int] = {}
    seen = set()
    for row, cells, rest in _rows(lines[header + 1 :], devices):
        if row in seen:
            raise UsageError(f"the matrix has two rows {row}")
        seen.add(row)
        for column, link in zip(devices, cells, strict=True):
            _set(links, named.get(row, row), named.get(column, column), link)
        if rest and (near := _cpus(rest[0])):
            cpus[row] = near
        if len(rest) > 1 and re.fullmatch(r"[0-9]{1,4}", rest[1]):
            nodes[row] = int(rest[1])
    if missing := [device for device in devices if _GPU.fullmatch(device) and device not in seen]:
        raise UsageError(f"the matrix has no row for {', '.join(missing)}")
    cpus |= _affinity_block(lines, devices)
    return Matrix(
        devices=tuple(named.get(device, device) for device in devices),
        links=links,
        cpus=cpus,
        numa_nodes=nodes,
    )


def read_host(path: Path) -> Host:
    """Return the host in a file of the output of ``nvidia-smi topo -m``, or raise a UsageError."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"can't read {path}: {error}; give a file that holds the output of `nvidia-smi topo -m`"
        ) from error
    try:
        return parse(text).host(path.name)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _header(lines: list[str]) -> tuple[int, list[str]]:
    for number, line in enumerate(lines):
        names = _AFFINITIES.sub(" ", line).split()
        if names and _GPU.fullmatch(names[0]) and not any(map(_LINK.fullmatch, names)):
            if len(names) > _MAX_DEVICES or len(set(names)) < len(names):
                raise UsageError(f"the matrix names a device twice, or too many: {line.strip()!r}")
            return number, names
    first = next((line.strip() for line in lines if line.strip()), "nothing")
    raise UsageError(
        "no matrix of links is there, as `nvidia-smi topo -m` prints it: a header that begins with "
        f"GPU0, and a row for each device; found {first[:80]!r}"
    )


def _rows(lines: list[str], devices: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the device, the links and the remaining words of each row."""
    for line in lines:
        name, *words = line.split() or [""]
        if name not in devices:
            # The block of CPU affinities below the published matrix names the devices again.
            if _AFFINITIES.search(line) or line.strip().startswith("Legend"):
                return
            continue
        cells, rest = words[: len(devices)], words[len(devices) :]
        if len(cells) < len(devices) or not all(map(_LINK.fullmatch, cells)):
            raise UsageError(
                f"the row {line.strip()[:80]!r} should have {len(devices)} links, such as NV2, PIX "
                "or SYS, one for each device in the header"
            )
        yield name, cells, rest


def _set(links: dict[tuple[str, str], str], one: str, other: str, link: str) -> None:
    link = "SYS" if link == "SOC" else link
    if (one == other) != (link == SELF):
        raise UsageError(f"the matrix has {link} between {one} and {other}")
    if one == other:
        return
    if links.setdefault((other, one), link) != link:
        raise UsageError(
            f"the matrix contradicts itself: {links[other, one]} between {other} and {one}, "
            f"but {link} the other way"
        )
    links[one, other] = link


def _cpus(word: str) -> str:
    return "" if word == "N/A" else cores.format_list(cores.parse(word))


def _affinity_block(lines: list[str], devices: list[str]) -> dict[str, str]:
    """Return the CPUs of each GPU from a separate block of CPU affinities."""
    titles = [number for number, line in enumerate(lines) if line.strip() == "CPU Affinity"]
    cpus = {}
    for line in lines[titles[0] + 1 :] if titles else ():
        words = line.split()
        if len(words) == 2 and words[0] in devices and (near := _cpus(words[1])):
            cpus[words[0]] = near
    return cpus

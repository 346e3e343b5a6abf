"""The classes of links between two workers, from the nearest to the farthest.

====================  ========================================================================
class                 two workers
====================  ========================================================================
``same process``      are threads of one process
``same GPU``          have their data on one GPU
``NV#`` … ``SYS``     have their data on two GPUs of one host: what ``nvidia-smi topo -m`` has
                      between these (``commbench.machine.topology.matrix``)
``same NUMA``         may run on the CPUs of one and the same NUMA node only
``same socket``       on those of one node each, in the same socket
``cross-socket``      on those of one node each, in different sockets
``same host``         are on one host, where they may run on several NUMA nodes, or the kernel or
                      the driver doesn't tell
``same rack``         are on two hosts of a rack that the run's configuration names
``network``           are on two hosts
====================  ========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from commbench.errors import UsageError
from commbench.machine import cores
from commbench.machine.topology.hosts import apart
from commbench.model import WorkerPlace

UNKNOWN = "unknown"
_ORDER = (
    "same process", "same GPU", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "same NUMA",
    "same socket", "cross-socket", "same host", "same rack", "network", UNKNOWN,
)  # fmt: skip


def link_class(one: WorkerPlace, other: WorkerPlace) -> str:
    """Return the class of the link between two workers, from their places, which know no racks."""
    if one.host_id != other.host_id:
        return "network"
    if one.pid == other.pid:
        return "same process"
    if one.gpu and other.gpu:
        if one.gpu == other.gpu:
            return "same GPU"
        links = dict(item.partition("=")[::2] for item in one.gpu_links.split())
        return links.get(f"GPU{other.gpu}", "") or "same host"
    try:
        nodes = [cores.parse(place.numa_nodes) for place in (one, other)]
        if any(len(own) != 1 for own in nodes):
            return "same host"
        return "same NUMA" if nodes[0] == nodes[1] else apart(one.sockets, other.sockets)
    except UsageError:
        # A results file may come from anywhere.
        return "same host"


def rack_of(names: Iterable[str], racks: Mapping[str, Iterable[str]]) -> str:
    """Return the first rack that has one of the `names` of a host; nothing where none has.

    Examples
    --------
    >>> rack_of(["node12", "10.0.1.12"], {"a": ["node0*"], "b": ["10.0.1.*"]})
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
    name = "NV" if bonded else link
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER)), -int(bonded[1] if bonded else 0)

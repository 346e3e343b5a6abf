"""Hosts, their NUMA nodes, GPUs and NICs, and which kind of link joins two devices or workers.

A ``Host`` comes from the kernel's ``/sys`` and from ``nvidia-smi``, or from what ``nvidia-smi
topo -m`` has written somewhere else. ``place_of`` tells where a process is, ``link_class`` what
joins two of them, and ``auto`` what each worker should be bound to.
"""

from __future__ import annotations

from commbench.machine.topology.discovery import this_host
from commbench.machine.topology.hosts import Gpu, Host, Matrix, Nic, NumaNode, parse, read_host
from commbench.machine.topology.workers import (
    UNKNOWN,
    auto,
    link_class,
    place_of,
    rack_of,
    rank,
    validate_placement,
    visible,
)

__all__ = [
    "UNKNOWN",
    "Gpu",
    "Host",
    "Matrix",
    "Nic",
    "NumaNode",
    "auto",
    "link_class",
    "parse",
    "place_of",
    "rack_of",
    "rank",
    "read_host",
    "this_host",
    "validate_placement",
    "visible",
]

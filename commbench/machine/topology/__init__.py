"""Hosts, their NUMA nodes, GPUs and NICs, and which kind of link joins two devices or workers.

A ``Host`` comes from the kernel's ``/sys`` and from ``nvidia-smi``, or from the output of
``nvidia-smi topo -m`` on another machine. ``worker_location`` locates a process, ``link_class``
names the link between two of them, and ``auto`` chooses a binding for each worker.
"""

from __future__ import annotations

from commbench.machine.topology.discovery import this_host
from commbench.machine.topology.hosts import Gpu, Host, Matrix, Nic, NumaNode, parse, read_host
from commbench.machine.topology.workers import (
    LINK_CLASSES,
    UNKNOWN,
    auto,
    find_rack,
    link_class,
    rank,
    separate_cpus,
    validate_placement,
    visible,
    worker_location,
)

__all__ = [
    "LINK_CLASSES",
    "UNKNOWN",
    "Gpu",
    "Host",
    "Matrix",
    "Nic",
    "NumaNode",
    "auto",
    "find_rack",
    "link_class",
    "parse",
    "rank",
    "read_host",
    "separate_cpus",
    "this_host",
    "validate_placement",
    "visible",
    "worker_location",
]

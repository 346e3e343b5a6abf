"""Hosts, their NUMA nodes, GPUs and NICs, and which kind of link joins two devices or workers.

A ``Host`` comes from the kernel's ``/sys`` and from ``nvidia-smi``, or from the output of
``nvidia-smi topo -m`` on another machine. ``worker_location`` locates a process, ``link_class``
names the link between two of them, and ``auto`` chooses a binding for each worker.
"""

from commbench.machine.topology.discovery import this_host as this_host
from commbench.machine.topology.hosts import Gpu as Gpu
from commbench.machine.topology.hosts import Host as Host
from commbench.machine.topology.hosts import Matrix as Matrix
from commbench.machine.topology.hosts import Nic as Nic
from commbench.machine.topology.hosts import NumaNode as NumaNode
from commbench.machine.topology.hosts import parse as parse
from commbench.machine.topology.hosts import read_host as read_host
from commbench.machine.topology.workers import LINK_CLASSES as LINK_CLASSES
from commbench.machine.topology.workers import UNKNOWN as UNKNOWN
from commbench.machine.topology.workers import auto as auto
from commbench.machine.topology.workers import find_rack as find_rack
from commbench.machine.topology.workers import link_class as link_class
from commbench.machine.topology.workers import rank as rank
from commbench.machine.topology.workers import separate_cpus as separate_cpus
from commbench.machine.topology.workers import validate_placement as validate_placement
from commbench.machine.topology.workers import visible as visible
from commbench.machine.topology.workers import worker_location as worker_location

"""Hosts, their NUMA nodes, GPUs and NICs, and which kind of link joins two devices or workers.

A ``Host`` comes from the kernel's ``/sys`` and from ``nvidia-smi`` (``discovery``), or from the
output of ``nvidia-smi topo -m`` on another machine (``hosts``). ``workers`` locates a process,
names the link between two of them, and chooses a binding for each worker.
"""

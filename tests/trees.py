"""Hosts made up as trees of sysfs, and an nvidia-smi that says what a test wants."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest

DGX1 = Path(__file__).parent / "topology/dgx1.txt"
"""What ``nvidia-smi topo -m`` prints on a DGX-1, as published."""
ROWS = """\
0, Fake GPU, GPU-aaaa, 00000000:00:00.0, 81559, 570.86
1, Fake GPU, GPU-bbbb, 00000000:01:00.0, 81559, 570.86
"""
"""What nvidia-smi says of two GPUs."""
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-1\nGPU1\tNV2\t X \t0-1\n"
"""Two NVLinks join them."""


@dataclass(frozen=True)
class Card:
    """A PCI device below the given bridges, the root first; ``rdma`` and ``net`` are its names."""

    path: str
    node: int = -1
    rdma: str = ""
    net: str = ""
    state: str = "4: ACTIVE"

    @property
    def address(self) -> str:
        """The address of the device."""
        return self.path.rpartition("/")[2]


def two_sockets(root: Path, cards: Iterable[Card] = (), *, n_nodes: int = 2) -> Path:
    """Write the tree of a host with two sockets of four CPUs, 0-3 and 4-7, and return its root.

    With four nodes each socket has two.
    """
    sys = root / "sys"
    per_node = 8 // n_nodes
    for node in range(n_nodes):
        folder = sys / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node * per_node}-{(node + 1) * per_node - 1}\n")
        (folder / "meminfo").write_text(f"Node {node} MemTotal:  1024 kB\n")
    for cpu in range(8):
        folder = sys / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu // 4}\n")
    for folder in ("class/net", "class/infiniband", "bus/pci/devices"):
        (sys / folder).mkdir(parents=True)
    (sys / "devices/virtual/net/lo").mkdir(parents=True)
    (sys / "class/net/lo").symlink_to(sys / "devices/virtual/net/lo")
    for card in cards:
        device = sys / "devices" / card.path
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{card.node}\n")
        (sys / "bus/pci/devices" / card.address).symlink_to(device)
        for kind, name in (("infiniband", card.rdma), ("net", card.net)):
            if name:
                (device / kind / name).mkdir(parents=True)
                (device / kind / name / "device").symlink_to(device)
                (sys / "class" / kind / name).symlink_to(device / kind / name)
        if card.rdma:
            port = device / "infiniband" / card.rdma / "ports/1"
            port.mkdir(parents=True)
            (port / "state").write_text(f"{card.state}\n")
    return root


def nvidia_smi(
    folder: Path, patch: pytest.MonkeyPatch, rows: str = ROWS, matrix: str = MATRIX
) -> None:
    """Put an nvidia-smi first on the PATH that knows these GPUs and this matrix."""
    folder.mkdir(exist_ok=True)
    (folder / "gpus").write_text(rows)
    (folder / "matrix").write_text(matrix)
    script = f'case "$1" in topo) cat {folder}/matrix;; *) cat {folder}/gpus;; esac'
    processes.program(folder / "nvidia-smi", script)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

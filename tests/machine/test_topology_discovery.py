import os

import pytest
import trees
from trees import Card

from commbench.machine.topology.discovery import this_host

SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
GPU_ROWS = """\
0, NVIDIA A100, GPU-aaaa, 00000000:03:00.0, 40960, 570.86.15
1, NVIDIA A100, GPU-bbbb, 00000000:83:00.0, 40960, 570.86.15
"""
MATRIX = """\
        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV4     PIX     0-3             0
GPU1    NV4      X      SYS     4-7             1
mlx5_0  PIX     SYS      X
"""
CARDS = (
    Card(f"{SWITCH}/0000:02:00.0/0000:03:00.0", node=0),
    Card(f"{SWITCH}/0000:02:01.0/0000:04:00.0", node=0, rdma="mlx5_0", net="ib0"),
    Card("pci0000:00/0000:00:03.0/0000:05:00.0", node=0, net="eth0"),
    Card("pci0000:80/0000:80:01.0/0000:83:00.0", node=1),
    Card("pci0000:80/0000:80:02.0/0000:84:00.0", node=1, rdma="mlx5_1", state="1: DOWN"),
)


@pytest.fixture
def no_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a host with two sockets, a GPU and an RDMA device on either, and Ethernet."""
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, GPU_ROWS, MATRIX)
    return this_host(trees.two_sockets(tmp_path / "root", CARDS))


@pytest.mark.usefixtures("no_nvidia_smi")
def test_numa_nodes_are_read_with_cpus_sockets_and_memory(tmp_path):
    host = this_host(trees.two_sockets(tmp_path))
    assert [(node.number, node.cpus, node.sockets) for node in host.nodes] == [
        (0, "0-3", "0"), (1, "4-7", "1"),
    ]  # fmt: skip
    assert host.nodes[0].memory_bytes == 1 << 20
    assert (host.gpus, host.nics, host.devices) == ((), (), ("node0", "node1"))
    assert host.link("node0", "node1") == "cross-socket"
    assert host.notes == ("no GPUs are known: nvidia-smi, which lists them, is not installed",)


@pytest.mark.usefixtures("no_nvidia_smi")
def test_numa_nodes_of_one_socket_are_nearer_than_those_of_two(tmp_path):
    host = this_host(trees.two_sockets(tmp_path, n_nodes=4))
    assert [host.link("node0", f"node{n}") for n in range(4)] == [
        "X", "same socket", "cross-socket", "cross-socket",
    ]  # fmt: skip


@pytest.mark.usefixtures("no_nvidia_smi")
def test_an_empty_sysfs_is_an_empty_host(tmp_path):
    host = this_host(tmp_path)
    assert (host.nodes, host.nics, dict(host.links)) == ((), (), {})


@pytest.mark.usefixtures("no_nvidia_smi")
def test_the_cpus_of_a_core_and_the_ports_of_a_nic_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3, 7})
    sys = trees.two_sockets(tmp_path / "root", CARDS) / "sys"
    for cpu in range(6):
        core = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n"
        (sys / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").write_text(core)
    (sys / "class/infiniband/mlx5_0/ports/2").mkdir()
    host = this_host(tmp_path / "root")
    assert {*host.siblings} == {frozenset({0, 1}), frozenset({2, 3})}
    assert [nic.ports for nic in host.nics] == [("1", "2"), ("1",), ()]


def test_gpus_and_nics_have_pci_addresses_numa_nodes_and_interfaces(host):
    assert [(gpu.index, gpu.uuid, gpu.pci, gpu.numa_node, gpu.cpus) for gpu in host.gpus] == [
        (0, "GPU-aaaa", "0000:03:00.0", 0, "0-3"), (1, "GPU-bbbb", "0000:83:00.0", 1, "4-7"),
    ]  # fmt: skip
    assert [(nic.name, nic.ucx_name, nic.interfaces, nic.numa_node) for nic in host.nics] == [
        ("mlx5_0", "mlx5_0:1", ("ib0",), 0), ("mlx5_1", "mlx5_1:1", (), 1), ("eth0", "eth0", (), 0),
    ]  # fmt: skip
    assert host.notes == ()


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ("GPU0", "GPU1", "NV4"),
        ("GPU0", "mlx5_0", "PIX"),
        ("GPU1", "mlx5_0", "SYS"),
        # Not in the matrix of nvidia-smi, but in the tree of bridges.
        ("GPU0", "eth0", "PHB"),
        ("GPU1", "mlx5_1", "PHB"),
        ("mlx5_0", "mlx5_1", "SYS"),
        ("node0", "GPU0", "same NUMA"),
        ("GPU1", "node0", "cross-socket"),
        ("eth0", "eth0", "X"),
    ],
)
def test_the_link_between_two_devices_is_symmetric(one, other, link, host):
    assert (host.link(one, other), host.link(other, one)) == (link, link)


@pytest.mark.usefixtures("no_nvidia_smi")
@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:01.0/0000:04:00.0", "PIX"),
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:00.0/0000:03:00.1", "PIX"),
        (
            f"{SWITCH}/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0",
            f"{SWITCH}/0000:02:01.0/0000:06:00.0",
            "PXB",
        ),
        ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0", "PHB"),
        ("pci0000:00/0000:00:01.0", "pci0000:40/0000:40:02.0", "NODE"),
    ],
)
def test_pcie_links_follow_from_the_tree_of_bridges(one, other, link, tmp_path):
    cards = (Card(one, node=0, net="eth0"), Card(other, node=0, net="eth1"))
    assert this_host(trees.two_sockets(tmp_path, cards)).link("eth0", "eth1") == link


def test_the_complaint_of_a_failing_driver_is_noted(tmp_path, monkeypatch):
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, "", "")
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\necho driver mismatch >&2\nexit 9\n")
    (note,) = this_host(trees.two_sockets(tmp_path / "root")).notes
    assert note.startswith("no GPUs are known: nvidia-smi failed (exit status 9): driver mismatch")


def test_an_unreadable_matrix_is_noted_and_replaced_by_sysfs(tmp_path, monkeypatch):
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, GPU_ROWS, "not supported\n")
    host = this_host(trees.two_sockets(tmp_path / "root", CARDS))
    assert host.link("GPU0", "mlx5_0") == "PIX"
    assert host.link("GPU0", "GPU1") == "SYS"
    assert "found 'not supported'" in host.notes[0]

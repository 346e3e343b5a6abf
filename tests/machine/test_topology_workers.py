from dataclasses import replace

import pytest
import trees
from trees import DGX1, Card

from commbench.errors import UsageError
from commbench.machine.topology.discovery import this_host
from commbench.machine.topology.hosts import Gpu, Host, Nic, NumaNode, parse, read_host
from commbench.machine.topology.workers import auto, separate_cpus, validate_placement
from commbench.model import Placement

HALVES = ("0-19,40-59", "20-39,60-79")
HOST = Host(
    name="node1",
    gpus=(Gpu(index=0), Gpu(index=1)),
    nics=(Nic(name="mlx5_0", rdma=True, port="1", ports=("1", "2"), interfaces=("ib0",)),),
    allowed=frozenset({0, 1, 2, 3, 8}),
)


def test_the_placement_on_a_dgx_1_is_as_published():
    placed = auto(read_host(DGX1), 8, "gpu")
    assert [placement.gpu for placement in placed] == list(range(8))
    assert [placement.cpus for placement in placed] == [HALVES[i // 4] for i in range(8)]
    assert [placement.nic for placement in placed] == [
        "ib0", "ib0", "ib2", "ib2", "ib1", "ib1", "ib3", "ib3",
    ]  # fmt: skip


def test_equally_near_nics_are_shared_out():
    text = """
            GPU0    GPU1    GPU2    mlx5_0  mlx5_1
    GPU0     X      SYS     SYS     NODE    NODE
    GPU1    SYS      X      SYS     NODE    NODE
    GPU2    SYS     SYS      X      NODE    PIX
    """
    placed = auto(parse(text).host("node1"), 3, "gpu")
    assert [placement.nic for placement in placed] == ["mlx5_0:1", "mlx5_1:1", "mlx5_1:1"]


def test_neighbouring_cpu_workers_share_a_numa_node_and_its_nic(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    cards = [
        Card(f"pci0000:{root}/0000:{root}:01.0", node, rdma=f"mlx5_{node}")
        for node, root in enumerate(("00", "80"))
    ]
    host = replace(this_host(trees.two_sockets(tmp_path / "root", cards)), allowed=None)
    near, far = Placement(cpus="0-3", nic="mlx5_0:1"), Placement(cpus="4-7", nic="mlx5_1:1")
    assert auto(host, 4, "cpu") == (near, near, far, far)
    assert auto(host, 2, "cpu") == (near, far)
    assert auto(host, 1, "cpu") == (near,)
    assert auto(host, 3, "cpu") == (near, near, far)
    # No worker is on a node none of whose CPUs this process may use.
    assert auto(replace(host, allowed=frozenset({2, 3})), 2, "cpu") == (
        replace(near, cpus="2-3"), replace(near, cpus="2-3"),
    )  # fmt: skip


def test_devices_whose_ports_are_down_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    cards = [
        Card(f"pci0000:00/0000:00:0{n}.0", 0, rdma=f"mlx5_{n}", state=state)
        for n, state in enumerate(("1: DOWN", "4: ACTIVE"), 1)
    ]
    host = replace(this_host(trees.two_sockets(tmp_path / "root", cards)), allowed=None)
    assert [placement.nic for placement in auto(host, 2, "cpu")] == ["mlx5_2:1"] * 2
    down = replace(host, nics=tuple(replace(nic, is_active=False) for nic in host.nics))
    assert [placement.nic for placement in auto(down, 2, "cpu")] == [""] * 2


def test_more_workers_than_gpus_are_an_error():
    with pytest.raises(UsageError, match=r"each of the 3 workers.*node1 has 2;.*fewer workers"):
        auto(HOST, 3, "gpu")
    host = replace(HOST, gpus=(), notes=("no GPUs are known: nvidia-smi is not there",))
    with pytest.raises(UsageError, match=r"has 0 \(no GPUs are known"):
        auto(host, 1, "gpu")


def test_auto_refuses_a_host_without_numa_nodes():
    with pytest.raises(UsageError, match=r"NUMA nodes of node1.*write a placement file"):
        auto(HOST, 1, "cpu")


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement(cpus="2-5"), "worker 1: CPU 4-5 is not there.*known: 0-3,8"),
        (Placement(gpu=2), "worker 1: there is no GPU 2; known: 0-1"),
        (Placement(nic="mlx5_7:1"), "worker 1: there is no NIC 'mlx5_7:1'; known: .*mlx5_0:1"),
        (Placement(nic="mlx5_0"), "no NIC 'mlx5_0'; known: .*ib0, .*mlx5_0:1"),
        (Placement(nic="mlx5_0:1,mlx5_0:3"), "no NIC 'mlx5_0:3'; known: .*mlx5_0:1, mlx5_0:2"),
    ],
)
def test_absent_cpus_gpus_and_nics_are_refused(placement, message):
    with pytest.raises(UsageError, match=message):
        validate_placement((Placement(), placement), HOST)


def test_present_cpus_gpus_and_nics_are_accepted():
    nics = ("mlx5_0:1", "mlx5_0:2", "ib0", "lo", "mlx5_0:1,ib0")
    everything = [Placement(cpus="0,2-3,8", gpu=1, nic=nic) for nic in nics]
    validate_placement(everything, HOST)


def test_the_reason_for_no_gpus_is_in_the_error():
    host = replace(HOST, gpus=(), notes=("no GPUs are known: the driver shows none",))
    with pytest.raises(UsageError, match="no GPU 0; known: none; no GPUs are known: the driver"):
        validate_placement((Placement(gpu=0),), host)


CLOUD = ((0, 1), (2, 3), (4, 5), (6, 7))
"""The CPUs of the cores of a virtual machine; others have the second ones last."""


@pytest.mark.parametrize(
    ("siblings", "n_workers", "n_cpus", "expected"),
    [
        (CLOUD, 2, 1, ["0", "2"]),
        (CLOUD, 2, 2, ["0,2", "4,6"]),
        (CLOUD, 3, 2, ["0-1", "2-3", "4-5"]),
        (CLOUD, 2, 3, ["0-2", "4-6"]),
        (CLOUD, 5, 1, ["0", "1", "2", "3", "4"]),
        (((0, 4), (1, 5), (2, 6), (3, 7)), 3, 2, ["0,4", "1,5", "2,6"]),
    ],
)
def test_workers_share_no_core_while_another_is_free(siblings, n_workers, n_cpus, expected):
    nodes = (NumaNode(number=0, cpus="0-7"),)
    host = Host(name="node1", nodes=nodes, siblings=tuple(map(frozenset, siblings)))
    assert [placed.cpus for placed in separate_cpus(host, n_workers, n_cpus)] == expected

"""Workers get the CPUs, GPU and NIC that belong together, and nothing that is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trees
from click.testing import CliRunner
from trees import Card

from commbench.cli.main import main
from commbench.errors import UsageError
from commbench.harness import suite
from commbench.harness import suite as files
from commbench.machine.topology import (
    Gpu,
    Host,
    Nic,
    auto,
    parse,
    read_host,
    this_host,
    validate_placement,
)
from commbench.model import ClusterSpec, Placement

DGX1 = Path(__file__).parents[1] / "topology/dgx1.txt"
HALVES = ("0-19,40-59", "20-39,60-79")
HOST = Host(
    name="node1",
    gpus=(Gpu(index=0), Gpu(index=1)),
    nics=(Nic(name="mlx5_0", rdma=True, port="1", interfaces=("ib0",)),),
    allowed=frozenset({0, 1, 2, 3, 8}),
)


def test_a_dgx1_is_placed_as_published() -> None:
    """CPUs of all eight GPUs as the published function has them, and the NIC that is PIX."""
    placed = auto(read_host(DGX1), 8, "gpu")
    assert [place.gpu for place in placed] == list(range(8))
    assert [place.cpus for place in placed] == [HALVES[i // 4] for i in range(8)]
    assert [place.nic for place in placed] == [
        "ib0", "ib0", "ib2", "ib2", "ib1", "ib1", "ib3", "ib3",
    ]  # fmt: skip


def test_with_nvidias_names_of_the_nics_it_is_the_published_function() -> None:
    """That one gives GPU i the NIC i // 2, which is right for the order of NVIDIA's columns."""
    text = DGX1.read_text()
    for published, name in zip(("ib0", "ib1", "ib2", "ib3"), (0, 2, 1, 3), strict=True):
        text = text.replace(published, f"mlx5_{name}")
    placed = auto(parse(text).host("dgx1"), 8, "gpu")
    assert [place.nic for place in placed] == [f"mlx5_{i // 2}:1" for i in range(8)]


def test_equally_near_nics_are_shared_out() -> None:
    """Of two NICs that are as near as each other both get workers."""
    text = """
            GPU0    GPU1    GPU2    mlx5_0  mlx5_1
    GPU0     X      SYS     SYS     NODE    NODE
    GPU1    SYS      X      SYS     NODE    NODE
    GPU2    SYS     SYS      X      NODE    PIX
    """
    placed = auto(parse(text).host("node1"), 3, "gpu")
    assert [place.nic for place in placed] == ["mlx5_0:1", "mlx5_1:1", "mlx5_1:1"]


def test_cpu_workers_take_the_nodes_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours share a NUMA node and the RDMA device that hangs on it."""
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
    # Of a node none of whose CPUs this process may use, nobody is put on it.
    assert auto(replace(host, allowed=frozenset({2, 3})), 2, "cpu") == (
        replace(near, cpus="2-3"), replace(near, cpus="2-3"),
    )  # fmt: skip


def test_more_gpus_than_there_are_is_an_error() -> None:
    """The message has both numbers, and why there is none where there is none."""
    with pytest.raises(UsageError, match=r"each of the 3 workers.*node1 has 2;.*fewer workers"):
        auto(HOST, 3, "gpu")
    host = replace(HOST, gpus=(), notes=("no GPUs are known: nvidia-smi is not there",))
    with pytest.raises(UsageError, match=r"has 0 \(no GPUs are known"):
        auto(host, 1, "gpu")


def test_a_host_without_nodes_is_placed_by_hand() -> None:
    """Where the kernel shows no NUMA nodes, auto says what to do instead."""
    with pytest.raises(UsageError, match=r"NUMA nodes of node1.*write a placement file"):
        auto(HOST, 1, "cpu")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (Placement(cpus="2-5"), "worker 1: CPU 4-5 is not there.*known: 0-3,8"),
        (Placement(gpu=2), "worker 1: there is no GPU 2; known: 0-1"),
        (Placement(nic="mlx5_7:1"), "worker 1: there is no NIC 'mlx5_7:1'; known: .*mlx5_0:1"),
        (Placement(nic="mlx5_0"), "no NIC 'mlx5_0'; known: .*ib0, .*mlx5_0:1"),
    ],
)
def test_what_is_not_there_is_refused(place: Placement, says: str) -> None:
    """The message has the worker, what it should be bound to, and what there is."""
    with pytest.raises(UsageError, match=says):
        validate_placement((Placement(), place), HOST)


def test_what_is_there_is_accepted() -> None:
    """CPUs, GPUs twice, an RDMA device with its port, its interface, and this host's loopback."""
    everything = [Placement(cpus="0,2-3,8", gpu=1, nic=nic) for nic in ("mlx5_0:1", "ib0", "lo")]
    validate_placement(everything, HOST)


def test_a_host_without_gpus_says_why() -> None:
    """Who names a GPU where none is known learns the reason."""
    host = replace(HOST, gpus=(), notes=("no GPUs are known: the driver shows none",))
    with pytest.raises(UsageError, match="no GPU 0; known: none; no GPUs are known: the driver"):
        validate_placement((Placement(gpu=0),), host)


# --- files -----------------------------------------------------------------------------------

TWO = """
[[worker]]
cpus = "0"
gpu = 3
nic = "mlx5_0:1"
[[worker]]
cpus = "1"
"""


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Return a function that writes a file and returns its path."""

    def write(text: str, name: str = "placement.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_file_has_a_table_for_each_worker(written: Any) -> None:
    """In the order of their names; workers beyond those of the cluster don't count."""
    path = written(TWO)
    one, other = Placement(cpus="0", gpu=3, nic="mlx5_0:1"), Placement(cpus="1")
    assert files.choose_placement(str(path), 2, "cpu") == (one, other)
    assert files.choose_placement(str(path), 1, "cpu") == (one,)
    assert files.choose_placement("none", 2, "cpu") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[worker]]\ncores = '0'\n", r"unknown key 'cores'.*known: cpus, gpu, nic"),
        ("[[worker]]\ncpus = 0\n", "expected str, got 0"),
        ("[[worker]]\ngpu = '0'\n", "worker.*gpu"),
        ("[[worker]]\ncpus = '0-'\n", r"worker\[0\].cpus: '0-' is no list of CPUs"),
        ("[worker]\ncpus = '0'\n", "expected a list"),
        ("", "the key 'worker' is missing"),
        ("[[worker]\n", "can't read .*auto, none or a placement file"),
        (TWO, "places 2 workers, and the cluster has 3"),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, says: str, written: Any) -> None:
    """The message has the file, the key and what is known."""
    path = written(text)
    with pytest.raises(UsageError, match=says) as told:
        files.choose_placement(str(path), 3, "cpu")
    assert str(path) in str(told.value)


def test_a_misspelt_choice_says_what_is_known(tmp_path: Path) -> None:
    """What is neither auto nor none is a file, and that one is not there."""
    with pytest.raises(UsageError, match=r"can't read .*atuo.*give auto, none or a placement file"):
        files.choose_placement("atuo", 2, "cpu", tmp_path)


def test_racks_are_read_and_refused_like_a_suite(written: Any) -> None:
    """Lists of hosts by rack, and nothing else."""
    assert files.read_racks(written("[racks]\na = ['n1', 'n2*']\n")) == {"a": ("n1", "n2*")}
    for text, says in (("[racks]\na = 'n1'\n", "expected a list"), ("a = 1\n", "key 'a'")):
        with pytest.raises(UsageError, match=says):
            files.read_racks(written(text))


# --- cases -----------------------------------------------------------------------------------


def test_a_placed_case_is_another_case() -> None:
    """Its id differs from that of the same case without a placement, or with another one."""
    placements = [(), (Placement(cpus="0"),) * 2, (Placement(cpus="1"),) * 2]
    cases = [
        suite.cases_for("all-to-all", ["tcp"], {}, ClusterSpec(placement=placement))[0]
        for placement in placements
    ]
    assert len({case.id for case in cases}) == 3


@pytest.mark.parametrize(
    ("workload", "launcher", "says"),
    [
        ("pingpong", "local", "pingpong has no cluster to place.*all-to-all"),
        ("all-to-all", "mpirun", "the launcher mpirun takes no --placement; add --launcher local"),
    ],
)
def test_a_placement_that_nobody_would_heed_is_refused(
    workload: str, launcher: str, says: str
) -> None:
    """Rather than measured without it."""
    cluster = ClusterSpec(launcher=launcher, placement=(Placement(cpus="0"),) * 2)
    with pytest.raises(UsageError, match=says):
        suite.cases_for(workload, ["tcp"], {}, cluster)


def test_a_suite_names_its_placement(written: Any, tmp_path: Path) -> None:
    """A file beside the suite, for all cases or one of them; --placement wins over both."""
    written(TWO)
    path = written(
        "cluster = { placement = 'placement.toml' }\n"
        "[[case]]\nworkload = 'all-to-all'\n"
        "[[case]]\nworkload = 'merge'\ncluster = { placement = 'none' }\n",
        "suite.toml",
    )
    placed, free = suite.read_suite(path).cases
    assert [place.cpus for place in placed.cluster.placement] == ["0", "1"]
    assert free.cluster.placement == ()
    cases = suite.read_suite(path, {"placement": "none"}).cases
    assert [case.cluster.placement for case in cases] == [(), ()]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[worker]]\ncpus = '9999'\n[[worker]]\n", "CPU 9999 is not there"),
        ("[[worker]]\ngpu = 77\n[[worker]]\n", "there is no GPU 77"),
        ("[[worker]]\n", "places 1 workers, and the cluster has 2"),
    ],
)
def test_the_command_line_refuses_what_is_not_there(
    text: str, says: str, written: Any, tmp_path: Path
) -> None:
    """Before anything is measured or made, with exit status 2."""
    output = tmp_path / "results"
    words = ["run", "all-to-all", "--placement", str(written(text)), "--output", str(output)]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2
    assert says in " ".join(ended.output.split())
    assert not output.exists()


def test_auto_takes_the_gpus_that_are_left_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA_VISIBLE_DEVICES hides from this process is not given to a worker."""
    rows = "".join(f"{i}, A100, GPU-{i}, 00000000:0{i}:00.0, 1, 5\n" for i in range(3))
    trees.nvidia_smi(tmp_path / "bin", monkeypatch, rows, "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-0")
    assert [place.gpu for place in files.choose_placement("auto", 2, "gpu")] == [2, 0]
    with pytest.raises(UsageError, match="each of the 3 workers"):
        files.choose_placement("auto", 3, "gpu")


def test_auto_binds_to_the_cpus_of_this_machine() -> None:
    """On whatever machine the tests run, to CPUs that the process may use."""
    if not this_host().nodes:
        pytest.skip("the kernel shows no NUMA nodes")
    for place in files.choose_placement("auto", 2, "cpu"):
        validate_placement((place,), this_host())
        assert place.cpus
        assert place.gpu is None

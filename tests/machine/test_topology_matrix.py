from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import DGX1

from commbench.errors import UsageError
from commbench.machine.topology.hosts import Matrix, parse, read_host

NVLINKS = {
    1: {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)},
    2: {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)},
}
"""Pairs of GPUs of a DGX-1 with one NVLink, and with two."""

NEW = """\
\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPXB\t56-111,168-223\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""
OLD = """\
        GPU0    GPU1    mlx5_0  CPU Affinity
GPU0     X      SOC     PIX     0-9
GPU1    SOC      X      NODE    10-19
mlx5_0  PIX     NODE     X
"""


def test_the_gpu_links_of_a_dgx_1_are_as_published():
    matrix = parse(DGX1.read_text())
    for one, other in permutations(range(8), 2):
        pair = (min(one, other), max(one, other))
        expected = next((f"NV{n}" for n, pairs in NVLINKS.items() if pair in pairs), "SYS")
        assert matrix.links[f"GPU{one}", f"GPU{other}"] == expected


def test_the_output_of_a_new_driver_is_parsed():
    matrix = parse(NEW)
    assert matrix.devices == ("GPU0", "GPU1", "mlx5_0", "mlx5_bond_0")
    assert matrix.links["GPU0", "GPU1"] == "NV18"
    assert matrix.links["mlx5_bond_0", "GPU1"] == "PXB"
    assert matrix.cpus == {"GPU0": "0-55,112-167", "GPU1": "56-111,168-223"}
    assert matrix.numa_nodes == {"GPU0": 0, "GPU1": 1}


def test_the_output_of_an_old_driver_is_parsed():
    matrix = parse(OLD)
    assert matrix.links["GPU1", "GPU0"] == "SYS"
    assert matrix.links["mlx5_0", "GPU1"] == "NODE"
    assert matrix.cpus == {"GPU0": "0-9", "GPU1": "10-19"}
    assert matrix.numa_nodes == {}


def test_an_unknown_affinity_is_left_out():
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tN/A\tN/A\t\tN/A\n"
    assert parse(text) == Matrix(devices=("GPU0",), links={}, cpus={}, numa_nodes={})


def test_text_around_the_matrix_is_ignored():
    assert parse(f"node17:~$ nvidia-smi topo -m\n{NEW}\nnode17:~$ exit\n") == parse(NEW)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no matrix of links is there.*found 'nothing'"),
        ("No devices were found\n", "found 'No devices were found'"),
        ("  GPU0 GPU1\nGPU0 X NV1\n", "no row for GPU1"),
        ("  GPU0 GPU1\nGPU0 X\nGPU1 NV1 X\n", "'GPU0 X' should have 2 links"),
        ("  GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n", "'GPU0 X OK' should have 2 links"),
        ("  GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n", "contradicts itself"),
        ("  GPU0 GPU1\nGPU0 SYS NV1\nGPU1 NV1 X\n", "SYS between GPU0 and GPU0"),
        ("  GPU0 GPU1\nGPU0 X X\nGPU1 X X\n", "X between GPU0 and GPU1"),
        ("  GPU0 GPU1\nGPU0 X NV1\nGPU0 X NV1\nGPU1 NV1 X\n", "two rows GPU0"),
        ("  GPU0 GPU0\nGPU0 X NV1\n", "names a device twice"),
        ("  GPU0  CPU Affinity\nGPU0 X 9-0\n", "'9-0' is no list of CPUs"),
    ],
)
def test_an_invalid_matrix_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)


def test_an_unreadable_file_is_named(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00GPU0")
    (tmp_path / "other.txt").write_text("nothing of the kind\n")
    for name in ("absent.txt", "", "binary"):
        with pytest.raises(UsageError, match=r"can't read .*nvidia-smi topo -m"):
            read_host(tmp_path / name)
    with pytest.raises(UsageError, match=r"other\.txt: no matrix of links"):
        read_host(tmp_path / "other.txt")


@given(st.text(st.sampled_from("GPUNIC0123XSYV \t\n-,:/AffinityMLgend\x1b[m")))
def test_any_text_is_parsed_or_refused(text):
    try:
        matrix = parse(text)
    except UsageError:
        return
    assert matrix.devices


@st.composite
def matrices(draw):
    """Return devices, their links, and the text that a driver would print."""
    n_gpus = draw(st.integers(1, 9))
    nics = draw(st.lists(st.sampled_from([f"mlx5_{i}" for i in range(5)]), unique=True))
    devices = [*(f"GPU{i}" for i in range(n_gpus)), *nics]
    classes = st.sampled_from(["NV1", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS"])
    links: dict[tuple[str, str], str] = {}
    for one, other in product(devices, devices):
        if one < other:
            links[one, other] = links[other, one] = draw(classes)
    gap = draw(st.sampled_from(["\t", "    "]))
    rows = [gap.join(["", *devices, "CPU Affinity"])]
    for one in devices:
        cells = [links.get((one, other), " X ") for other in devices]
        rows.append(gap.join([one, *cells, *["0-3"] * one.startswith("GPU")]))
    return devices, links, "\n".join(rows)


@given(matrices())
def test_any_printed_matrix_is_parsed_to_its_links(printed):
    devices, links, text = printed
    matrix = parse(text)
    assert (list(matrix.devices), matrix.links) == (devices, links)
    assert matrix.cpus == {device: "0-3" for device in devices if device.startswith("GPU")}

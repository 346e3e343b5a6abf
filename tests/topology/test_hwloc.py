"""What hwloc's ``lstopo --of xml`` writes is understood as a host."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from commbench import environment
from commbench.cli import main
from commbench.errors import UsageError
from commbench.topology import auto, discovery, hwloc, read_host, this_host

DGX_A100 = Path(__file__).parent / "dgx-a100-half.xml"
"""Made up after the excerpts in NVIDIA's GPUDirect Storage guide: one socket, two GPUs."""
OPEN = '<topology version="2.0">'
BILLION = (
    '<!DOCTYPE t [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {new} "{f"&{old};" * 100}">' for old, new in itertools.pairwise("abcdef"))
    + f"]>{OPEN}&f;</topology>"
)


def test_gpus_and_nics_below_bridges_are_found() -> None:
    """Nodes, sockets, models, ports and links follow from the tree."""
    host = read_host(DGX_A100)
    assert host.name == "dgx-a100"
    assert [(node.number, node.cpus, node.sockets) for node in host.nodes] == [
        (0, "0-31", "0"), (1, "32-63", "1"),
    ]  # fmt: skip
    assert [(gpu.name, gpu.pci, gpu.numa_node, gpu.cpus) for gpu in host.gpus] == [
        ("GPU0", "0000:07:00.0", 0, "0-31"), ("GPU1", "0000:0f:00.0", 0, "0-31"),
    ]  # fmt: skip
    assert host.gpus[0].model == "NVIDIA A100-SXM4-80GB"
    assert [(nic.name, nic.ucx_name, nic.interfaces) for nic in host.nics] == [
        ("mlx5_0", "mlx5_0:1", ("ibp12s0",)), ("enp225s0", "enp225s0", ()),
    ]  # fmt: skip
    assert host.link("GPU0", "GPU1") == "PXB"
    assert host.link("GPU0", "mlx5_0") == "PXB"
    assert host.link("GPU0", "enp225s0") == "SYS"
    assert host.link("GPU1", "mlx5_0") == "PIX"
    assert (host.link("GPU0", "node0"), host.link("GPU0", "node1")) == (
        "same NUMA", "cross-socket",
    )  # fmt: skip
    assert [place.nic for place in auto(host, 2, "gpu")] == ["mlx5_0:1", "mlx5_0:1"]


def test_the_command_shows_it() -> None:
    """As it shows this machine, with what hwloc can't tell."""
    ended = CliRunner().invoke(main, ["topology", "--file", str(DGX_A100)], env={"COLUMNS": "80"})
    assert ended.exit_code == 0, ended.output
    assert ended.output.startswith("dgx-a100: 2 NUMA nodes, 2 GPUs, 2 NICs\n")
    assert "NVLinks are not known" in ended.output


def test_lstopo_and_the_kernel_agree_on_this_machine() -> None:
    """The same CPUs and sockets from both."""
    if (lstopo := shutil.which("lstopo-no-graphics")) is None:
        pytest.skip("hwloc's lstopo-no-graphics is not installed")
    text = subprocess.check_output([lstopo, "--of", "xml"], text=True)
    told, own = hwloc.parse(text), this_host()
    if not own.nodes:
        pytest.skip("the kernel tells of no NUMA nodes")
    assert [(node.cpus, node.sockets) for node in told.nodes] == [
        (node.cpus, node.sockets) for node in own.nodes
    ]


def test_where_the_kernel_tells_no_nodes_hwloc_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An lstopo on the PATH is asked, and one that fails is no harm."""
    lstopo = tmp_path / "lstopo-no-graphics"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(environment, "numa_nodes", lambda _sys: [])
    for script, n_nodes in ((f"cat {DGX_A100}", 2), ("echo broken", 0)):
        lstopo.write_text(f"#!/bin/sh\n{script}\n")
        lstopo.chmod(0o755)
        discovery._nodes_of_hwloc.cache_clear()
        assert len(discovery.numa_nodes(Path("/"))) == n_nodes
    discovery._nodes_of_hwloc.cache_clear()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<topology", "no XML"),
        ("<html/>", "XML of <html>"),
        ("<topology/>", "XML of hwloc 1;.*lstopo --of xml"),
        ('<topology version="3.0"/>', r"XML of hwloc 3\.0"),
        (BILLION, "no XML"),
        (OPEN + '<object type="NUMANode" os_index="x"/></topology>', "os_index='x'"),
        (OPEN + '<object type="NUMANode" cpuset="0xzz"/></topology>', "cpuset='0xzz'"),
        (f'{OPEN}<object type="Package" cpuset="0x1{",0" * 4000}"/></topology>',
         "no set of CPUs"),
    ],
)  # fmt: skip
def test_what_is_no_topology_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """With the file's name, what was found and what to give."""
    path = tmp_path / "node.xml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"node\.xml: .*{says}"):
        read_host(path)


def test_objects_nested_without_end_are_refused() -> None:
    """A message, no crash."""
    text = '<object type="Group">' * 50_000 + "</object>" * 50_000
    with pytest.raises(UsageError, match="nested too deeply"):
        hwloc.parse(f"{OPEN}{text}</topology>")


_WORDS = st.sampled_from(
    ["PCIDev", "Bridge", "OSDev", "NUMANode", "Package", "0x3", "0302 [10DE:20b2]", "0000:01:00.0",
     "2", "3", "", "-1", "mlx5_0", "0x1,", "९"]
)  # fmt: skip
_NAMES = st.sampled_from(
    ["type", "os_index", "cpuset", "pci_busid", "pci_type", "name", "osdev_type", "local_memory"]
)


@given(st.recursive(
    st.just(""),
    lambda inner: st.builds(
        lambda given, inside: "<object {}>{}</object>".format(
            " ".join(f'{name}="{word}"' for name, word in given.items()), "".join(inside)
        ),
        st.dictionaries(_NAMES, _WORDS), st.lists(inner, max_size=3),
    ),
))  # fmt: skip
def test_any_objects_are_understood_or_refused(objects: str) -> None:
    """Nothing but a UsageError comes of XML that hwloc would not write."""
    try:
        hwloc.parse(f"{OPEN}{objects}</topology>")
    except UsageError as error:
        assert str(error)  # noqa: PT017 - either is right

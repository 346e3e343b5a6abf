"""The links of a host are drawn, whatever it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.machine.topology import Gpu, Host, Nic, NumaNode, read_host
from commbench.reports.figures import host_figure, style

DGX1 = next(Path(__file__).parents[2].glob("*/dgx1.txt"))
LONE = Host(name="laptop", nodes=(NumaNode(number=0, cpus="0-3"),), nics=(Nic(name="eth0"),))
LARGE = Host(name="large", gpus=tuple(Gpu(index=i) for i in range(40)))


def texts(host: Host) -> list[str]:
    """Return the texts in the figure's matrix."""
    (ax,) = host_figure.draw(host).axes
    return [text.get_text() for text in ax.texts]


def test_every_link_of_a_dgx1_is_in_its_cell() -> None:
    """Row by row the classes of the matrix, with the device itself as X."""
    host = read_host(DGX1)
    assert texts(host) == [host.link(a, b) for a in host.devices for b in host.devices]
    figure = host_figure.draw(host)
    assert figure.get_suptitle() == "Links between the devices of dgx1.txt"
    assert "GPU4, GPU5, GPU6, GPU7 near CPUs 20-39,60-79" in " ".join(
        figure.get_supxlabel().split()
    )


def test_more_nvlinks_are_darker() -> None:
    """One can tell NV1 from NV2 from NV18 without reading."""
    darkness = [sum(host_figure._colour(f"NV{n}")) for n in (1, 2, 18)]
    assert darkness == sorted(darkness, reverse=True)
    assert len({*darkness}) == 3


def test_a_host_without_links_says_so() -> None:
    """One NUMA node and one NIC make no pair."""
    assert texts(LONE) == ["Fewer than two GPUs, NICs or NUMA nodes: there is no link to show."]


def test_a_large_host_is_colours_only() -> None:
    """Where cells are too small for words there are none."""
    assert texts(LARGE) == []


@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize("host", [LONE, LARGE, Host(name="nothing")], ids=lambda host: host.name)
def test_it_can_be_written(host: Host, form: str) -> None:
    """As lines and as pixels, without a warning."""
    assert len(style.encoded(host_figure.draw(host), form)) > 1000

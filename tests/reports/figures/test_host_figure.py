from pathlib import Path

import pytest

from commbench.machine.topology import Gpu, Host, Nic, NumaNode, read_host
from commbench.reports.figures import host_figure, style

DGX1 = next(Path(__file__).parents[2].glob("*/dgx1.txt"))
LONE = Host(name="laptop", nodes=(NumaNode(number=0, cpus="0-3"),), nics=(Nic(name="eth0"),))
LARGE = Host(name="large", gpus=tuple(Gpu(index=i) for i in range(40)))


def texts(host):
    """Return the texts in the figure's matrix."""
    (ax,) = host_figure.draw(host).axes
    return [text.get_text() for text in ax.texts]


def test_cells_are_the_links_of_a_dgx1():
    host = read_host(DGX1)
    assert texts(host) == [host.link(a, b) for a in host.devices for b in host.devices]
    figure = host_figure.draw(host)
    assert figure.get_suptitle() == "Links between the devices of dgx1.txt"
    assert "GPU4, GPU5, GPU6, GPU7 near CPUs 20-39,60-79" in " ".join(
        figure.get_supxlabel().split()
    )


def test_more_nvlinks_are_darker():
    darkness = [sum(host_figure._colour(f"NV{n}")) for n in (1, 2, 18)]
    assert darkness == sorted(darkness, reverse=True)
    assert len({*darkness}) == 3


def test_a_host_without_links():
    assert texts(LONE) == ["Fewer than two GPUs, NICs or NUMA nodes: there is no link to show."]


def test_a_large_host_has_no_text():
    assert texts(LARGE) == []


@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize("host", [LONE, LARGE, Host(name="nothing")], ids=lambda host: host.name)
def test_host_figures_are_encoded(host, form):
    assert len(style.encoded(host_figure.draw(host), form)) > 1000

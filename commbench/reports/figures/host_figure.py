"""A coloured matrix of the links between a host's NUMA nodes, GPUs and NICs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from commbench.machine.topology import Host, rank
from commbench.reports.figures import style
from commbench.reports.host_tables import LINKS, SHORT, link_kind

_COLOURS = {
    "X": "#E4E4E4", "NV": "#117733", "PIX": "#88CCEE", "PXB": "#6699CC", "PHB": "#AAAADD",
    "NODE": "#DDCC77", "SYS": "#CC6677", "same NUMA": "#B8E0A0", "same socket": "#EEDD99",
    "cross-socket": "#DD9988", "": "#FFFFFF",
}  # fmt: skip
_MOST_NVLINKS = 18
"""The NVLinks of current GPUs; NV18 has the darkest colour."""
_TEXT_UP_TO = 32
"""The maximum devices for which cells have room for the class of a link."""


@style.styled
def draw(host: Host) -> Figure:
    """Return a figure of the links of `host`, or one that says that it has no links."""
    devices = host.devices
    links = [[host.link(one, other) for other in devices] for one in devices]
    kinds = sorted({link_kind(link) for row in links for link in row} - {"X"}, key=rank)
    legend = [Patch(color=_COLOURS[kind], label=LINKS.get(kind, "not known")) for kind in kinds]
    side = min(7.2, 0.6 + 0.36 * len(devices))
    cpus = dict.fromkeys(gpu.cpus for gpu in host.gpus if gpu.cpus)
    near = (
        f"{', '.join(gpu.name for gpu in host.gpus if gpu.cpus == close)} near CPUs {close}"
        for close in cpus
    )
    nodes = (f"node{node.number} has CPUs {node.cpus}" for node in host.nodes)
    figure, (part,) = style.new_figure(
        [side + 0.3 * math.ceil(len(legend) / 3)],
        f"Links between the devices of {host.name}",
        "; ".join([*nodes, *near]) + ". Classes as nvidia-smi topo -m names them.",
    )
    ax = part.subplots()
    _matrix(ax, devices, links)
    if legend:
        part.legend(handles=legend, loc="outside lower left", ncols=3)
    return figure


def _matrix(ax: Axes, devices: Sequence[str], links: Sequence[Sequence[str]]) -> None:
    n = len(devices)
    if n < 2:
        ax.text(0.006, 0.5, "Fewer than two GPUs, NICs or NUMA nodes: there is no link to show.")
        ax.set_axis_off()
        return
    colours = np.array([[_colour(link) for link in row] for row in links])
    ax.pcolormesh(
        np.arange(n * n).reshape(n, n), cmap=ListedColormap(colours.reshape(-1, 3)),
        edgecolors="white", linewidth=1.2 if n <= _TEXT_UP_TO else 0,
    )  # fmt: skip
    for (i, j), link in np.ndenumerate(links) if n <= _TEXT_UP_TO else ():
        ax.text(
            j + 0.5, i + 0.5, SHORT.get(link, link), size=7, ha="center", va="center",
            color=style.contrast(colours[i, j]),
        )  # fmt: skip
    upright = max(map(len, devices)) > 5 or n > 16
    ax.set_xticks(np.arange(n) + 0.5, devices, rotation=90 if upright else 0)
    ax.set_yticks(np.arange(n) + 0.5, devices)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set(xlim=(0, n), ylim=(n, 0), aspect="equal", anchor="W")
    ax.spines[:].set(visible=False)


def _colour(link: str) -> tuple[float, float, float]:
    """Return the colour of a class of links: darker for more NVLinks."""
    red, green, blue = to_rgb(_COLOURS.get(link_kind(link), "white"))
    if not link.startswith("NV"):
        return red, green, blue
    share = 0.35 + 0.65 * min(1.0, math.log1p(int(link[2:])) / math.log1p(_MOST_NVLINKS))
    mixed = (1 - share * (1 - part) for part in (red, green, blue))
    return tuple(mixed)  # type: ignore[return-value]

"""The figure of what each layer adds."""

from __future__ import annotations

import dataclasses

import pytest
from made_up import EMPTY, misplaced, pingpong, run_of, texts, together, workload

from commbench import stats
from commbench.model import LAYERS
from commbench.model.units import format_seconds
from commbench.reports.figures import message_figures
from commbench.reports.figures.style import _KNOWN, _SPARE

SIZES = (1, 64 << 10, 8 << 20)


def run(*backends, names=LAYERS, **given):
    """Return a run with these backends and layers."""
    return together(
        *(pingpong(name, layers=names, **{"sizes": SIZES} | given) for name in backends)
    )


def bars(ax):
    """Return the bars of a panel by their gid: their left and right end."""
    return {
        patch.get_gid(): (patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches
    }


def test_bars_are_stacked_from_the_wire_up():
    """The parts of a bar begin where the one below ends, and end at the layer's time."""
    made = run("tcp", "ucx")
    table = stats.summaries(made).set_index(["backend", "layer", "payload_bytes"]).median_s
    figure = message_figures.plot_layers(made)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["1 B", "64 KiB", "8 MiB"]
    for ax, size in zip(figure.axes, SIZES, strict=True):
        unit = 1e3 if "(ms)" in ax.get_xlabel() else 1e6
        for backend in ("tcp", "ucx"):
            end = 0.0
            for layer in LAYERS:
                left, right = bars(ax)[f"{layer} {backend}"]
                assert left == pytest.approx(end)
                end = table[backend, layer, size] * unit
                assert right == pytest.approx(end)


def test_a_layer_that_is_faster_than_the_one_below_is_hatched():
    """The hatched part runs from the faster time to the slower one below it, and is seen."""
    case, records = pingpong("tcp", layers=("raw", "comm"), sizes=[1])
    faster = [
        dataclasses.replace(r, seconds=r.seconds / 10) if getattr(r, "layer", "") == "comm" else r
        for r in records
    ]
    made = run_of([case], faster)
    raw, comm = stats.summaries(made).set_index("layer").median_s[["raw", "comm"]]
    (ax,) = message_figures.plot_layers(made).axes
    left, right = bars(ax)["faster comm tcp"]
    assert right / left == pytest.approx(raw / comm)
    assert bars(ax)["comm tcp"][0] == pytest.approx(bars(ax)["comm tcp"][1])


def test_every_time_is_printed():
    """Beside each bar stands the time at each layer, and a dash where there is none."""
    made = together(
        pingpong("tcp", layers=LAYERS, sizes=[1]), pingpong("ucx", layers=LAYERS[:3], sizes=[1])
    )
    words = texts(message_figures.plot_layers(made))
    for seconds in stats.summaries(made).median_s:
        assert format_seconds(seconds) in words
    assert words.count("—") == 2


def test_many_sizes_give_four_panels():
    """Of a sweep the first and the last size are shown, and two between."""
    figure = message_figures.plot_layers(run("tcp", sizes=[2**n for n in range(23)], launches=2))
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert (len(titles), titles[0], titles[-1]) == (4, "1 B", "4 MiB")


@pytest.mark.parametrize(
    "made",
    [EMPTY, run("tcp", names=("comm",)), run("tcp", mode="bandwidth"), together(workload("tcp"))],
)
def test_without_two_layers_of_latency_there_is_no_figure(made):
    """One layer alone adds to nothing, and a stream's time is no sum."""
    assert message_figures.plot_layers(made) is None


@pytest.mark.parametrize("names", [LAYERS, ("coroutine", "comm")])
@pytest.mark.parametrize("backends", [("tcp",), ("tcp", "ucx", "ucx:shm", "ucx:tcp+shm+nvlink+ib")])
def test_all_words_can_be_read(backends, names):
    """No text leaves the figure or covers another, with one backend or many."""
    figure = message_figures.plot_layers(run(*backends, names=names))
    assert figure.get_figwidth() * 100 == 900
    assert misplaced(figure) == []


def test_a_layers_colour_is_no_backends():
    """Nobody takes a layer for a backend."""
    backends = {look.colour for look in (*_KNOWN.values(), *_SPARE)}
    assert not backends & {*message_figures.COLOURS.values(), message_figures.FASTER}
    assert tuple(message_figures.COLOURS) == LAYERS


def test_the_sweep_of_a_stream_does_not_speak_of_latency():
    """Title, axis, legend and caption of a window mode say what its time is."""
    figure = message_figures.plot_sizes(run("tcp", names=("comm",), mode="bandwidth"))
    assert figure.axes[0].get_ylabel() == "time per message (log scale)"
    words = " ".join(texts(figure)).replace("\n", " ")
    assert "mode bandwidth" in words
    assert "In windows of messages" in words
    assert "atency" not in words


def test_a_case_without_layers_is_named():
    """A backend that failed is missing from the bars but not from the words."""
    made = together(pingpong("tcp", layers=LAYERS), pingpong("ucx", layers=LAYERS, launches=0))
    caption = message_figures.plot_layers(made).get_supxlabel().replace("\n", " ")
    assert "Not shown: pingpong on ucx (no data)." in caption

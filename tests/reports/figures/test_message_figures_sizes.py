from __future__ import annotations

import numpy as np
import pytest
from made_up import pingpong, texts, together

from commbench import stats
from commbench.model.units import format_bandwidth, format_seconds
from commbench.reports.figures.message_figures import plot_sizes

POWERS = ["1 B", "4 B", "16 B", "64 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB",
          "1 MiB", "4 MiB"]  # fmt: skip


def _ticks(axis):
    return [label.get_text() for label in axis.get_majorticklabels()]


def _lines(axes):
    return {line.get_label(): line for line in axes.lines}


def test_sizes_are_labelled_in_binary_units():
    """From 1 B to 4 MiB every fourth power of two has its name, on both panels."""
    figure = plot_sizes(together(pingpong("tcp", sizes=(2**n for n in range(23)))))
    left, right = figure.axes
    assert _ticks(left.xaxis) == _ticks(right.xaxis) == POWERS


def test_few_sizes_are_labelled_as_they_are():
    """Where a user names three sizes, those are the ticks, and no other."""
    figure = plot_sizes(together(pingpong("tcp", sizes=[1, 1_000_000, 8 << 20])))
    assert _ticks(figure.axes[0].xaxis) == ["1 B", "1.00 MB", "8 MiB"]


def test_lines_are_the_medians_of_the_launches():
    """Latency is the summary's median, and bandwidth the size divided by it."""
    run = together(pingpong("tcp"), pingpong("ucx", latency_s=1e-4))
    left, right = plot_sizes(run).axes
    for backend, summary in stats.summaries(run).groupby("backend"):
        size, latency = _lines(left)[backend].get_data()
        np.testing.assert_allclose(size, summary.payload_bytes)
        np.testing.assert_allclose(latency, summary.median_s)
        _, bandwidth = _lines(right)[backend].get_data()
        np.testing.assert_allclose(bandwidth, summary.payload_bytes / summary.median_s)


def test_bands_are_the_intervals():
    """Around each line lies the interval of the median, on the latency and the bandwidth side."""
    run = together(pingpong("tcp"))
    summary = stats.summaries(run)
    for axes, low, high in (
        (0, summary.ci_low_s, summary.ci_high_s),
        (1, summary.payload_bytes / summary.ci_high_s, summary.payload_bytes / summary.ci_low_s),
    ):
        (band,) = plot_sizes(run).axes[axes].collections
        corners = {tuple(np.round(corner, 9)) for corner in band.get_paths()[0].vertices}
        expected = {
            tuple(np.round((size, value), 9))
            for size, *ends in zip(summary.payload_bytes, low, high, strict=True)
            for value in ends
        }
        assert expected <= corners


def test_the_caption_says_what_the_band_is():
    """Six launches give 97 %, two 50 %, and one none, which the caption says too."""
    for launches, words in ((6, "97 %"), (2, "50 %"), (1, "one launch allows no interval")):
        figure = plot_sizes(together(pingpong("tcp", launches=launches)))
        assert words in figure.get_supxlabel().replace("\n", " ")
    assert not any(axes.collections for axes in figure.axes)


def test_the_legend_names_latency_and_bandwidth_of_every_backend():
    """Beside each name stand the latency of the smallest and the bandwidth of the largest size."""
    run = together(pingpong("tcp"), pingpong("ucx"))
    summary = stats.summaries(run)
    words = texts(plot_sizes(run))
    for backend, rows in summary.groupby("backend"):
        latency = format_seconds(rows.median_s[rows.payload_bytes == 1].item())
        bandwidth = format_bandwidth(rows.throughput_Bps[rows.payload_bytes == 4 << 20].item())
        assert f"{backend}\n{latency} · {bandwidth}" in words
    assert "latency at 1 B ·\nbandwidth at 4 MiB" in words


def test_a_backend_that_stopped_early_has_a_dash_for_the_rest():
    """Where a backend has no largest message, the legend does not pass another off as it."""
    run = together(pingpong("tcp"), pingpong("ucx", sizes=[1, 4, 16, 64, 256]))
    (ucx,) = [words for words in texts(plot_sizes(run)) if words.startswith("ucx\n")]
    assert ucx.endswith("· —")


def test_layers_have_a_row_each_from_the_wire_up():
    """Raw comes first and the worker last, on axes that compare."""
    run = together(pingpong("tcp", layers=("comm", "worker", "raw")))
    axes = plot_sizes(run).axes
    titles = [left.get_title(loc="left") for left in axes[::2]]
    assert titles == ["layer raw", "layer comm", "layer worker"]
    assert len({left.get_ylim() for left in axes[::2]}) == 1
    assert len({right.get_ylim() for right in axes[1::2]}) == 1


def test_bandwidth_is_linear_from_zero_unless_backends_lie_far_apart():
    """Only peaks that differ more than twenty-fold put the bandwidth on a log axis."""
    near = plot_sizes(together(pingpong("tcp"), pingpong("ucx", bandwidth_Bps=2.4e9)))
    far = plot_sizes(together(pingpong("tcp"), pingpong("ucx", bandwidth_Bps=1e11)))
    assert near.axes[1].get_ylabel() == "bandwidth (linear scale)"
    assert near.axes[1].get_ylim()[0] == 0
    assert far.axes[1].get_ylabel() == "bandwidth (log scale)"


def test_latencies_within_one_decade_still_have_two_labelled_ticks():
    """A log axis with less than two labels can't be read, so it is widened."""
    figure = plot_sizes(together(pingpong("tcp", latency_s=3e-5, sizes=[1, 2, 4])))
    low, high = figure.axes[0].get_ylim()
    assert low < 1e-5 < 1e-4 < high


def test_one_size_puts_backends_side_by_side():
    """With a single size the marks don't hide each other, and no line is drawn."""
    run = together(*(pingpong(name, sizes=[1 << 20]) for name in ("tcp", "ucx", "mpi")))
    lines = _lines(plot_sizes(run).axes[0])
    assert len({line.get_xdata()[0] for line in lines.values()}) == 3
    np.testing.assert_allclose(lines["ucx"].get_xdata(), 1 << 20)


def test_sizes_far_apart_are_joined_by_dots_without_a_band():
    """Between 1 B and 8 MiB nothing was measured, so nothing solid is drawn there."""
    axes = plot_sizes(together(pingpong("tcp", sizes=[1, 8 << 20]))).axes[0]
    assert axes.lines[0].get_linestyle() == ":"
    bands = [segment[:, 0] for segment in axes.collections[0].get_segments()]
    assert all(left == right for left, right in bands)


def test_a_backend_without_samples_is_named_in_the_caption():
    """A ping-pong that failed is missing from the lines but not from the words."""
    run = together(pingpong("tcp"), pingpong("ucx", launches=0))
    caption = plot_sizes(run).get_supxlabel().replace("\n", " ")
    assert "Not shown: pingpong on ucx (no data)." in caption


@pytest.mark.parametrize("backend", ["tcp", "mpi", "somebody-elses"])
def test_lines_carry_the_backends_look(backend):
    """Colour and marker are the backend's own."""
    from commbench.reports.figures import style

    run = together(pingpong(backend))
    look = style.backend_styles(run)[backend]
    for axes in plot_sizes(run).axes:
        assert (axes.lines[0].get_color(), axes.lines[0].get_marker()) == look


def test_several_pairs_are_not_called_two_processes():
    """The title says that pairs ran at once, and the text that they count together."""
    figure = plot_sizes(together(pingpong("tcp", mode="multi-pair", pairs=3)))
    said = " ".join(texts(figure))
    assert "between pairs of processes at once, layer comm, mode multi-pair" in said
    assert "of all pairs together" in said
    assert "half the round trip" not in said

import dataclasses

import builders
import numpy as np
import pytest
from builders import in_memory
from drawing import EMPTY, caption, misplaced, pingpong, texts, together, workload

from commbench import stats
from commbench.model import LAYERS
from commbench.model.units import format_bandwidth, format_seconds
from commbench.reports.figures import style
from commbench.reports.figures.message_figures import plot_layers, plot_sizes

# --- sizes -------------------------------------------------------------------------------------

POWERS = ["1 B", "4 B", "16 B", "64 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB",
          "1 MiB", "4 MiB"]  # fmt: skip


def sweep(backend="tcp", **given):
    return plot_sizes(together(pingpong(backend, **given)))


def _ticks(axis):
    return [label.get_text() for label in axis.get_majorticklabels()]


def _lines(axes):
    return {line.get_label(): line for line in axes.lines}


@pytest.mark.parametrize(
    ("sizes", "labels"),
    [([2**n for n in range(23)], POWERS), ([1, 10**6, 8 << 20], ["1 B", "1.00 MB", "8 MiB"])],
)
def test_sizes_are_labelled_in_binary_units(sizes, labels):
    left, right = sweep(sizes=sizes).axes
    assert _ticks(left.xaxis) == _ticks(right.xaxis) == labels


def test_lines_are_medians_of_latency_and_bandwidth():
    run = together(pingpong("tcp"), pingpong("ucx", latency_s=1e-4))
    left, right = plot_sizes(run).axes
    for backend, summary in stats.summaries(run).groupby("backend"):
        size, latency = _lines(left)[backend].get_data()
        np.testing.assert_allclose(size, summary.payload_bytes)
        np.testing.assert_allclose(latency, summary.median_s)
        _, bandwidth = _lines(right)[backend].get_data()
        np.testing.assert_allclose(bandwidth, summary.payload_bytes / summary.median_s)


def test_bands_are_intervals_of_the_median():
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


def test_the_caption_names_the_level_of_the_band():
    for launches, words in ((6, "97 %"), (2, "50 %"), (1, "one launch allows no interval")):
        figure = sweep(launches=launches)
        assert words in caption(figure)
    assert not any(axes.collections for axes in figure.axes)


def test_the_legend_has_latency_and_bandwidth_of_every_backend():
    run = together(pingpong("tcp"), pingpong("ucx"))
    words = texts(plot_sizes(run))
    for backend, rows in stats.summaries(run).groupby("backend"):
        latency = format_seconds(rows.median_s[rows.payload_bytes == 1].item())
        bandwidth = format_bandwidth(rows.throughput_Bps[rows.payload_bytes == 4 << 20].item())
        assert f"{backend}\n{latency} · {bandwidth}" in words
    assert "latency at 1 B ·\nbandwidth at 4 MiB" in words


def test_the_legend_has_a_dash_for_a_size_that_a_backend_lacks():
    run = together(pingpong("tcp"), pingpong("ucx", sizes=[1, 4, 16, 64, 256]))
    (ucx,) = [words for words in texts(plot_sizes(run)) if words.startswith("ucx\n")]
    assert ucx.endswith("· —")


@pytest.mark.parametrize("layers", [("comm",), ("coroutine", "comm")])
def test_the_legend_of_many_long_names_is_in_the_figure(layers):
    names = [f"a_backend_with_many_settings_whose_number_is_{n}" for n in range(8)]
    figure = plot_sizes(together(*(pingpong(name, layers=layers) for name in names)))
    assert misplaced(figure) == []
    assert all(axes.get_position().height * figure.get_figheight() > 2 for axes in figure.axes)


def test_layers_have_comparable_panels_from_the_wire_up():
    axes = sweep(layers=("comm", "worker", "raw")).axes
    titles = [left.get_title(loc="left") for left in axes[::2]]
    assert titles == ["layer raw", "layer comm", "layer worker"]
    assert len({left.get_ylim() for left in axes[::2]}) == 1
    assert len({right.get_ylim() for right in axes[1::2]}) == 1


def test_bandwidth_is_logarithmic_only_where_backends_are_far_apart():
    near = plot_sizes(together(pingpong("tcp"), pingpong("ucx", bandwidth=2.4e9)))
    far = plot_sizes(together(pingpong("tcp"), pingpong("ucx", bandwidth=1e11)))
    assert near.axes[1].get_ylabel() == "bandwidth (linear scale)"
    assert near.axes[1].get_ylim()[0] == 0
    assert far.axes[1].get_ylabel() == "bandwidth (log scale)"


def test_latencies_within_a_decade_have_two_labelled_ticks():
    axes = sweep(latency_s=3e-5, sizes=[1, 2, 4]).axes[0]
    low, high = axes.get_ylim()
    assert low < 1e-5 < 1e-4 < high
    assert {"10 µs", "100 µs"} <= {*_ticks(axes.yaxis)}


def test_backends_with_one_size_are_side_by_side():
    run = together(*(pingpong(name, sizes=[1 << 20]) for name in ("tcp", "ucx", "mpi")))
    lines = _lines(plot_sizes(run).axes[0])
    assert len({line.get_xdata()[0] for line in lines.values()}) == 3
    np.testing.assert_allclose(lines["ucx"].get_xdata(), 1 << 20)


def test_distant_sizes_are_joined_by_dots_without_a_band():
    axes = sweep(sizes=[1, 8 << 20]).axes[0]
    assert axes.lines[0].get_linestyle() == ":"
    bands = [segment[:, 0] for segment in axes.collections[0].get_segments()]
    assert all(left == right for left, right in bands)


@pytest.mark.parametrize("backend", ["tcp", "mpi", "somebody-elses"])
def test_lines_have_the_colour_and_marker_of_their_backend(backend):
    run = together(pingpong(backend))
    look = style.backend_styles(run)[backend]
    for axes in plot_sizes(run).axes:
        assert (axes.lines[0].get_color(), axes.lines[0].get_marker()) == look


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        (
            {"mode": "multi-pair", "pairs": 3},
            ["pairs of processes at once, layer comm, mode multi-pair", "all pairs together"],
        ),
        ({"mode": "bandwidth"}, ["mode bandwidth", "In windows of messages"]),
        ({"mode": "loaded-latency"}, ["Under load: ", "half the round trip"]),
    ],
)
def test_words_of_each_mode(mode, shown):
    words = " ".join(" ".join(texts(sweep(sizes=SIZES, **mode))).split())
    assert all(text in words for text in shown)
    assert ("atency" in words) == (mode["mode"] == "loaded-latency")
    assert ("time per message (log scale)" in words) == (mode["mode"] != "loaded-latency")


@pytest.mark.parametrize("plot", [plot_sizes, plot_layers])
@pytest.mark.parametrize("layers", [LAYERS, ("raw", "comm")])
def test_the_caption_says_which_times_are_not_halved(plot, layers):
    words = caption(plot(layered("tcp", layers=layers)))
    assert ("memcpy: one copy. worker: a fetch, not halved." in words) == (layers == LAYERS)


@pytest.mark.parametrize("mode", ["bandwidth", "latency"])
def test_the_caption_names_the_tool_of_streams(mode):
    case, records = pingpong("ucx", layers=("raw",), sizes=SIZES, mode=mode)
    records = [
        dataclasses.replace(record, tool="ucx_perftest", verified=False)
        if hasattr(record, "tool") else record
        for record in records
    ]  # fmt: skip
    words = " ".join(caption(plot_sizes(in_memory([case], records))).split())
    assert ("raw of ucx is ucx_perftest: no message is" in words) == (mode == "bandwidth")


# --- layers ------------------------------------------------------------------------------------

SIZES = (1, 64 << 10, 8 << 20)


def layered(*backends, layers=LAYERS, **given):
    given = {"sizes": SIZES} | given
    return together(*(pingpong(name, layers=layers, **given) for name in backends))


def ends(axes):
    """Return the left and the right end of each bar by its gid."""
    return {
        bar.get_gid(): (bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches
    }  # fmt: skip


def test_bars_of_layers_are_stacked_from_the_wire_up():
    run = layered("tcp", "ucx")
    table = stats.summaries(run).set_index(["backend", "layer", "payload_bytes"]).median_s
    figure = plot_layers(run)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["1 B", "64 KiB", "8 MiB"]
    for axes, size in zip(figure.axes, SIZES, strict=True):
        unit = 1e3 if "(ms)" in axes.get_xlabel() else 1e6
        for backend in ("tcp", "ucx"):
            end = 0.0
            for layer in LAYERS:
                left, right = ends(axes)[f"{layer} {backend}"]
                assert left == pytest.approx(end)
                end = table[backend, layer, size] * unit
                assert right == pytest.approx(end)


def test_a_line_goes_to_the_time_of_a_layer_that_takes_longer_than_one_above():
    faster = {"raw": 1, "comm": 0.1}
    run = layered("tcp", layers=[*faster], sizes=[1], slow=lambda layer, _: faster[layer])
    raw, comm = stats.summaries(run).set_index("layer").median_s[["raw", "comm"]]
    (axes,) = plot_layers(run).axes
    (line,) = [line for line in axes.lines if line.get_gid() == "longer raw tcp"]
    end, time = line.get_xdata()
    assert time / end == pytest.approx(raw / comm)
    assert ends(axes)["raw tcp"] == pytest.approx((0, end))
    assert ends(axes)["comm tcp"] == pytest.approx((end, end))


def test_the_time_at_each_layer_is_printed():
    run = together(
        pingpong("tcp", layers=LAYERS, sizes=[1]), pingpong("ucx", layers=LAYERS[:3], sizes=[1])
    )
    words = texts(plot_layers(run))
    assert {format_seconds(seconds) for seconds in stats.summaries(run).median_s} <= {*words}
    assert words.count("—") == 2


@pytest.fixture
def bimodal():
    """Return a run whose upper layer takes five times as long in half of the launches."""

    def slow(layer, launch):
        return 5 if layer == "comm" and launch % 2 else 1

    return layered("tcp", layers=("raw", "comm"), sizes=[1], launches=8, slow=slow)


def test_modes_of_launches_are_shown_and_no_median_between_them(bimodal):
    (summary,) = stats.summaries(bimodal).query("layer == 'comm'").itertuples()
    both = [summary.low_mode_s, summary.high_mode_s]
    assert both[1] / both[0] == pytest.approx(5, rel=0.2)
    *_, latency, bandwidth = plot_sizes(bimodal).axes
    for axes, points in ((latency, both), (bandwidth, [1 / seconds for seconds in both])):
        median, *open_ = axes.lines
        assert not any(median.get_markevery())
        shown = [float(line.get_ydata()[0]) for line in open_ if line.get_fillstyle() == "none"]
        assert shown == pytest.approx(points)
    words = f"{format_seconds(both[1])}"
    assert any(f" or {words} · " in text for text in texts(plot_sizes(bimodal)))


@pytest.mark.parametrize("n_slow", [2, 10])
def test_modes_beside_the_interval_of_the_median_are_within_the_axes(n_slow):

    def slow(_, launch):
        return 50 if launch < n_slow else 1

    *_, latency, bandwidth = sweep(sizes=[1], launches=12, slow=slow).axes
    for axes in (latency, bandwidth):
        low, high = axes.get_ylim()
        modes = [line.get_ydata()[0] for line in axes.lines if line.get_fillstyle() == "none"]
        assert len(modes) == 2
        assert all(low <= mode <= high for mode in modes)


def test_the_bar_of_two_modes_has_a_pale_end(bimodal):
    (summary,) = stats.summaries(bimodal).query("layer == 'comm'").itertuples()
    (axes,) = plot_layers(bimodal).axes
    (pale,) = [bar for bar in axes.patches if bar.get_alpha()]
    ratio = pale.get_width() / pale.get_x()
    assert ratio == pytest.approx(summary.high_mode_s / summary.low_mode_s - 1)
    assert any(" or\n" in text.get_text() for text in axes.texts)
    assert not [line for line in axes.lines if "longer" in (line.get_gid() or "")]


def test_two_modes_of_a_lower_layer_are_not_those_of_the_highest():

    def slow(layer, launch):
        return 1 if layer == "comm" else 500 if launch % 2 else 100

    run = layered("tcp", layers=("raw", "comm"), sizes=[1], launches=8, slow=slow)
    (axes,) = plot_layers(run).axes
    assert not [bar for bar in axes.patches if bar.get_alpha()]
    assert [line.get_gid() for line in axes.lines if line.get_gid()] == ["longer raw tcp"]


def test_layers_of_many_sizes_have_four_panels():
    figure = plot_layers(layered("tcp", sizes=[2**n for n in range(23)], launches=2))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert (len(titles), titles[0], titles[-1]) == (4, "1 B", "4 MiB")


@pytest.mark.parametrize(
    "run",
    [
        EMPTY, layered("tcp", layers=("comm",)), layered("tcp", mode="bandwidth"),
        together(workload("tcp")),
    ],
)  # fmt: skip
def test_no_figure_without_two_layers_of_latency(run):
    assert plot_layers(run) is None


def test_a_launch_of_a_coarse_clock_may_have_no_time(recorded, recwarn):
    case = builders.case(workload="pingpong")
    records = [
        builders.sample(
            case, 1e-7 * launch, layer="comm", payload_bytes=1, launch=launch, iteration=n
        )
        for launch in range(6)
        for n in range(9)
    ]
    run = recorded([case], [*records, *(builders.end(case, launch=n) for n in range(6))])
    assert run.summaries["ci_low_s"].tolist() == [0.0]
    left, *_ = plot_sizes(run).axes
    assert left.get_lines()[0].get_ydata().tolist() == [2.5e-7]
    assert [str(each.message) for each in recwarn] == []

"""What holds for every figure."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest
from made_up import EMPTY, misplaced, pingpong, texts, together, workload

import commbench
from commbench.errors import UnknownNameError
from commbench.reports.figures import pair_figure, style, task_stream
from commbench.reports.figures.iteration_figures import (
    plot_communication,
    plot_profile,
    plot_times,
)
from commbench.reports.figures.message_figures import plot_sizes

WORKLOADS = (pair_figure.plot, plot_times, plot_communication, task_stream.plot, plot_profile)
LONG = "ucx:tcp+shm+nvlink+ib"
UNIT = re.compile(r"\((?:B/s|kB/s|MB/s|GB/s|s|ms|µs)\)")


@functools.cache
def made_up(name):
    """Return a run of the kind that `name` says."""
    five = ("tcp", "ucx", "ucx:shm", LONG, "mpi")
    match name:
        case "two backends, two workers":
            return together(*(workload(b, name=w) for w in ("merge", "svd") for b in five[:2]))
        case "five backends, eight workers, failures":
            parts = [
                workload(b, n_workers=8, launches=2, failing=i % 2, silent_pairs=[(0, 3)])
                for i, b in enumerate(five)
            ]
            return together(*parts, workload("fake", n_workers=8, launches=2, failing=2))
        case "many workers with long names":
            return together(
                *(workload(b, n_workers=40, launches=1, worker_name="host-07-{}") for b in five[:2])
            )
        case "sixteen workers":
            return together(*(workload(b, n_workers=16, launches=1) for b in five[:2]))
        case "one launch":
            return together(workload("tcp", launches=1))
        case "extreme ranges":
            return together(
                workload("tcp", seconds=3e-3, bandwidth_Bps=1e11),
                workload("a-backend-with-a-name-that-nobody-expected", seconds=4e3),
            )
        case "ping-pong of five backends":
            return together(*(pingpong(b, latency_s=2e-5 * i) for i, b in enumerate(five, 1)))
        case "ping-pong, three layers":
            layers = ("comm", "raw", "worker")
            return together(*(pingpong(b, layers=layers, launches=2) for b in five[:3]))
        case "ping-pong, one size":
            return together(*(pingpong(b, sizes=[8 << 20]) for b in five))
        case "ping-pong, one launch":
            return together(pingpong("tcp", launches=1, sizes=(2**n for n in range(31))))
        case "ping-pong, extreme ranges":
            return together(
                pingpong("tcp", latency_s=2e-3, bandwidth_Bps=1e6),
                pingpong("ucx:nvlink", latency_s=2e-6, bandwidth_Bps=4e10),
            )


@functools.cache
def drawn(plot, name):
    """Return the figure, drawn once for all tests that only look at it."""
    return plot(made_up(name))


RUNS = {
    "two backends, two workers": WORKLOADS,
    "five backends, eight workers, failures": WORKLOADS,
    "many workers with long names": WORKLOADS,
    "sixteen workers": WORKLOADS,
    "one launch": WORKLOADS,
    "extreme ranges": WORKLOADS,
    "ping-pong of five backends": (plot_sizes,),
    "ping-pong, three layers": (plot_sizes,),
    "ping-pong, one size": (plot_sizes,),
    "ping-pong, one launch": (plot_sizes,),
    "ping-pong, extreme ranges": (plot_sizes,),
}
EVERY = [
    pytest.param(plot, name, id=f"{plot.__module__.rpartition('.')[2]}.{plot.__name__}: {name}")
    for name, plots in RUNS.items()
    for plot in plots
]


@pytest.mark.parametrize(("plot", "name"), EVERY)
def test_no_text_leaves_the_figure_or_covers_another(plot, name):
    """Whatever the run, all words can be read at 900 px."""
    figure = drawn(plot, name)
    assert figure.get_figwidth() * 100 == 900
    assert misplaced(figure) == []


@pytest.mark.parametrize(("plot", "name"), EVERY)
def test_every_axis_says_what_it_is_and_begins_at_zero(plot, name):
    """Axes of quantities have a unit; linear ones begin at 0; logarithmic ones say so."""
    figure = drawn(plot, name)
    # The axis labels of small multiples stand at their edge only.
    labels = {axes.get_ylabel() for axes in figure.axes} | {
        axes.get_xlabel() for axes in figure.axes
    }
    for axes in figure.axes:
        for axis, limits, scale in (
            (axes.xaxis, axes.get_xlim(), axes.get_xscale()),
            (axes.yaxis, axes.get_ylim(), axes.get_yscale()),
        ):
            label = axis.get_label_text()
            if scale == "log":
                assert "log scale" in label
            elif UNIT.search(label) or "linear scale" in label:
                assert limits[0] == 0
            else:
                # Names of workers and backends are no quantities.
                assert label.startswith(("worker", "from worker", "to worker")) or label == ""
    assert any(UNIT.search(label) or "scale" in label for label in labels)


@pytest.mark.parametrize("plot", [*WORKLOADS, plot_sizes])
def test_a_run_without_data_has_no_figure(plot):
    """Where nothing was measured there is None, not an empty figure."""
    assert plot(EMPTY) is None


def test_a_figure_is_for_its_kind_of_workload_only():
    """A ping-pong has no workload figures, and a workload no ping-pong figure."""
    assert plot_sizes(made_up("one launch")) is None
    for plot in WORKLOADS:
        assert plot(made_up("ping-pong, one size")) is None


def test_a_run_in_which_everything_failed_has_no_figure():
    """Failures alone are a matter for the report's text."""
    run = together(workload("tcp", launches=2, failing=2))
    assert [plot(run) for plot in (*WORKLOADS, plot_sizes)] == [None] * (len(WORKLOADS) + 1)


@pytest.mark.parametrize(("plot", "name"), [EVERY[0], EVERY[7], EVERY[-1]])
def test_saving_twice_gives_the_same_svg(plot, name):
    """Hatches, clips and rasterized parts have the same names each time."""
    one, other = (style.encoded(plot(made_up(name)), "svg") for _ in range(2))
    assert one == other


@pytest.mark.parametrize("name", RUNS)
def test_the_number_of_launches_is_stated(name):
    """Every figure but the task stream, which is of one launch, says how many launches it sums."""
    for plot in RUNS[name]:
        words = " ".join(texts(drawn(plot, name)))
        stated = r"launch \d" if plot is task_stream.plot else r"\d launch(es)? each"
        assert re.search(stated, words)


def test_a_figure_is_drawn_by_its_name():
    """``commbench.figure`` draws what ``commbench list`` names, or nothing without data for it."""
    run = made_up("one launch")
    assert commbench.figure(run, "workload-time").get_suptitle().startswith("Time per iteration")
    assert commbench.figure(run, "message-size") is None


def test_the_name_of_no_figure_is_answered_with_those_that_there_are():
    """A misspelt name lists the known ones."""
    with pytest.raises(UnknownNameError, match="workload-time"):
        commbench.figure(EMPTY, "workload_time")


def test_pyplot_is_never_imported():
    """Figures leave no global state behind, and need no display."""
    program = """if True:
        import importlib, sys
        for name in ("iteration_figures", "message_figures", "pair_figure", "task_stream"):
            importlib.import_module(f"commbench.reports.figures.{name}")
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)

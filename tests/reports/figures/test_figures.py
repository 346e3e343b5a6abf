import functools
import re
from xml.dom import minidom

import builders
import pytest
from drawing import EMPTY, caption, check_axes, misplaced, pingpong, texts, together, workload

import commbench
from commbench.errors import UnknownNameError
from commbench.model import LAYERS, registry
from commbench.reports.figures import pair_figure, style, task_stream
from commbench.reports.figures.iteration_figures import (
    plot_communication,
    plot_profile,
    plot_times,
)
from commbench.reports.figures.message_figures import plot_layers, plot_sizes

WORKLOADS = (pair_figure.plot, plot_times, plot_communication, task_stream.plot, plot_profile)
LONG = "ucx:tcp+shm+nvlink+ib"


@functools.cache
def made_up_run(name):
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
                workload("tcp", seconds=3e-3, bandwidth=1e11),
                workload("a-backend-with-a-name-that-nobody-expected", seconds=4e3),
            )
        case "ping-pong of five backends":
            return together(*(pingpong(b, latency_s=2e-5 * i) for i, b in enumerate(five, 1)))
        case "ping-pong, three layers":
            layers = ("comm", "raw", "worker")
            return together(*(pingpong(b, layers=layers, launches=2) for b in five[:3]))
        case "ping-pong, all layers":
            return together(*(pingpong(b, layers=LAYERS, launches=2) for b in five[:4]))
        case "ping-pong, one size":
            return together(*(pingpong(b, sizes=[8 << 20]) for b in five))
        case "ping-pong, one launch":
            return together(pingpong("tcp", launches=1, sizes=(2**n for n in range(31))))
        case "ping-pong, extreme ranges":
            return together(
                pingpong("tcp", latency_s=2e-3, bandwidth=1e6),
                pingpong("ucx:nvlink", latency_s=2e-6, bandwidth=4e10),
            )


@functools.cache
def drawn(plot, name):
    """Return the figure, drawn once for all tests that only look at it."""
    return plot(made_up_run(name))


PINGPONGS = (plot_sizes,)
RUNS = {
    "two backends, two workers": WORKLOADS, "five backends, eight workers, failures": WORKLOADS,
    "many workers with long names": WORKLOADS, "extreme ranges": WORKLOADS,
    "ping-pong of five backends": PINGPONGS, "ping-pong, three layers": PINGPONGS,
    "ping-pong, all layers": (plot_layers,),
    "ping-pong, one size": PINGPONGS, "ping-pong, extreme ranges": PINGPONGS,
}  # fmt: skip
SLOW_RUNS = {
    "sixteen workers": WORKLOADS, "one launch": WORKLOADS, "ping-pong, one launch": PINGPONGS,
}  # fmt: skip
EVERY = [
    pytest.param(
        plot, name, id=f"{plot.__module__.rpartition('.')[2]}.{plot.__name__}: {name}",
        marks=[pytest.mark.slow] * (name in SLOW_RUNS),
    )
    for name, plots in (RUNS | SLOW_RUNS).items()
    for plot in plots
]  # fmt: skip


@pytest.mark.parametrize(("plot", "name"), EVERY)
def test_no_text_is_misplaced_and_the_launches_are_stated(plot, name):
    figure = drawn(plot, name)
    assert figure.get_figwidth() * 100 == 900
    assert misplaced(figure) == []
    stated = r"launch \d" if plot is task_stream.plot else r"\d launch(es)? each"
    assert re.search(stated, " ".join(texts(figure)))


@pytest.mark.parametrize(("plot", "name"), EVERY)
def test_axes_have_a_unit_or_a_log_scale_and_linear_ones_begin_at_zero(plot, name):
    check_axes(drawn(plot, name))


@pytest.mark.parametrize("plot", [*WORKLOADS, plot_sizes])
def test_no_figure_without_good_launches(plot):
    assert plot(EMPTY) is None
    assert plot(together(workload("tcp", launches=2, failing=2))) is None


def test_a_figure_is_for_its_kind_of_workload_only():
    assert plot_sizes(made_up_run("one launch")) is None
    for plot in WORKLOADS:
        assert plot(made_up_run("ping-pong, one size")) is None


@pytest.mark.parametrize(
    ("plot", "name"),
    [
        (pair_figure.plot, "two backends, two workers"),
        (plot_communication, "five backends, eight workers, failures"),
        (plot_sizes, "ping-pong, extreme ranges"),
    ],
)
def test_saving_twice_gives_the_same_svg_without_a_date(plot, name):
    one, other = (style.encoded(plot(made_up_run(name)), "svg") for _ in range(2))
    assert one == other
    assert b"<dc:date>" not in one


FAILED = workload("ucx", launches=1, failing=1)


@pytest.mark.parametrize(
    ("plot", "parts", "missing"),
    [
        *(
            (plot, [workload("tcp"), FAILED], "transpose-sum on ucx (1 of 1 launch failed)")
            for plot in (plot_communication, task_stream.plot)
        ),
        (
            plot_times, [workload("tcp"), workload("tcp", "svd", launches=1, failing=1)],
            "svd on tcp (1 of 1 launch failed)",
        ),
        (
            pair_figure.plot,
            [workload("tcp"), workload("tcp", "merge", silent_pairs=[(0, 1), (1, 0)])],
            "merge on tcp (no data)",
        ),
        (plot_sizes, [pingpong("tcp"), pingpong("ucx", launches=0)], "pingpong on ucx (no data)"),
        (
            plot_layers,
            [pingpong("tcp", layers=LAYERS), pingpong("ucx", layers=LAYERS, launches=0)],
            "pingpong on ucx (no data)",
        ),
    ],
)  # fmt: skip
def test_the_caption_names_cases_without_data(plot, parts, missing):
    assert f"Not shown: {missing}." in caption(plot(together(*parts)))


def test_names_with_any_letters_give_valid_figures_without_a_warning(recorded, recwarn):
    name = "step\x1b[1m\u202e 計算"
    case = builders.case("tcp", name)
    records = builders.launches(case, [1.0] * 6)
    records += [builders.transfer(case, 0, 0.5, launch=n) for n in range(6)]
    run = recorded([case], records)
    for plot in ("pair-bandwidth", "workload-time"):
        image = style.encoded(registry.load("plot", plot)(run), "svg")
        minidom.parseString(image)
    assert [str(each.message) for each in recwarn] == []


def test_a_figure_is_drawn_by_its_name():
    run = made_up_run("one launch")
    assert commbench.figure(run, "workload-time").get_suptitle().startswith("Time per iteration")
    assert commbench.figure(run, "message-size") is None
    with pytest.raises(UnknownNameError, match="workload-time"):
        commbench.figure(EMPTY, "workload_time")
    with pytest.raises(commbench.UsageError, match="figure takes a run"):
        commbench.figure("workload-time", EMPTY)

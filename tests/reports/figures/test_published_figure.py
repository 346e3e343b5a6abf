import dataclasses
import functools
import itertools
import random

import builders
import pytest
from drawing import check_axes, misplaced, pingpong, texts, together, workload

from commbench.model import ClusterSpec, published
from commbench.reports.figures import published_figure, style

MPI = ("tcp", "ucx:polling", "mpi")
SPEED = {"tcp": 1.0, "ucx:polling": 3.0, "mpi": 0.8}


def reproducing(run, figure, scale=0.01):
    suite = dataclasses.replace(run.suite, reproduces=figure, scale=scale)
    environment = {"cpu": {"model": "Some CPU", "usable_cores": 4}}
    changed = dataclasses.replace(run.manifest, suite=suite, environment=environment)
    return run.replace(changed)


def scaling(name, counts):
    for backend in MPI:
        for n_workers in counts:
            seconds = SPEED[backend] * random.Random(n_workers).uniform(1, 1.3)
            yield workload(backend, name, n_workers=n_workers, launches=3, seconds=seconds)


@functools.cache
def made_up_run(figure):
    match figure:
        case "rapids_blog.merge_dgx1":
            parts = [workload(b, "merge", n_workers=8, launches=2) for b in ("tcp", "ucx:tcp")]
        case "rapids_blog.message_1GB":
            parts = [
                pingpong(b, sizes=[10**7], layers=[layer], measured=layer)
                for layer in ("coroutine", "comm") for b in ("tcp", "ucx:tcp", "ucx:shm")
            ]  # fmt: skip
        case "ucx_dgx_blog.transpose":
            parts = [workload(b, n_workers=4, launches=2) for b in ("tcp", "ucx", "ucx:shm")]
        case "ucx_dgx_blog.svd":
            parts = [workload(b, "svd", n_workers=4, launches=2) for b in ("tcp", "ucx", "ucx:shm")]
        case "mpi4dask.pingpong":
            parts = [
                pingpong(b, layers=[layer], latency_s=2e-5 * SPEED[b], measured=layer)
                for layer in ("coroutine", "comm") for b in MPI
            ]  # fmt: skip
        case "mpi4dask.transpose_ri2":
            parts = [*scaling("transpose-sum", (2, 3, 4, 5, 6))]
        case "mpi4dask.merge_ri2":
            parts = [*scaling("merge", (2, 3))]
        case "mpi4dask.frontera":
            parts = [*scaling("transpose-sum", (1, 2, 4)), *scaling("merge", (1, 2, 4))]
    return reproducing(together(*parts), figure)


@functools.cache
def drawn(figure):
    """Return the figure, drawn once."""
    return published_figure.plot(made_up_run(figure))


@pytest.mark.parametrize("figure", published.names())
def test_texts_and_axes_of_a_published_figure(figure):
    assert misplaced(drawn(figure)) == []
    check_axes(drawn(figure))


@pytest.mark.parametrize("figure", published.names())
def test_source_and_machine_are_named(figure):
    words = " ".join(" ".join(texts(drawn(figure))).split())
    known = published.published_figure(figure)
    for expected in (
        known.source.title, str(known.source.year), known.hardware, "Some CPU, 4 cores",
        "here at 1 % of the size", "memory of CPUs", "published",
    ):  # fmt: skip
        assert expected in words


@pytest.mark.parametrize("figure", published.names())
def test_every_published_number_is_drawn(figure):
    words = texts(drawn(figure))
    values = published.published_figure(figure).values
    for value in values:
        assert any(value.text in text for text in words), value
    marks = [
        line for axes in drawn(figure).axes for line in axes.lines if line.get_gid() == "published"
    ]
    assert len(marks) >= len(values)


@pytest.mark.parametrize("figure", published.names())
def test_published_values_have_a_distinct_mark_and_absolute_ones_separate_axes(figure):
    for axes in drawn(figure).axes:
        kinds = {(line.get_gid() or "").split()[0] for line in axes.lines if line.get_gid()}
        for line in axes.lines:
            if (line.get_gid() or "").startswith("here"):
                assert line.get_marker() != "D" or line.get_markerfacecolor() != "white"
            if line.get_gid() == "published":
                assert (line.get_marker(), line.get_markerfacecolor()) == ("D", "white")
        if kinds == {"here", "published"}:
            assert "times better" in axes.get_ylabel()


def test_ratios_are_those_of_the_run():
    (line,) = (
        line for axes in drawn("mpi4dask.transpose_ri2").axes for line in axes.lines
        if line.get_gid() == "here" and axes.get_ylabel().startswith("time:")
    )  # fmt: skip
    assert [*line.get_xdata()] == [2, 3, 4, 5, 6]
    assert [*line.get_ydata()] == pytest.approx([3.0 / 0.8] * 5, rel=0.15)


def test_each_setting_has_its_own_ratios():
    cases, records = [], []
    for backend, n_threads in itertools.product(("ucx:polling", "mpi"), (1, 2)):
        size = ClusterSpec(threads_per_worker=n_threads)
        varied = {"cluster": size, "varied": ("backend", "threads")}
        cases.append(builders.case(backend, **varied))
        seconds = 3.0 * n_threads if backend == "ucx:polling" else 1.0
        records += builders.launches(cases[-1], [seconds] * 6)
    run = reproducing(builders.in_memory(cases, records), "mpi4dask.merge_ri2")
    figure = published_figure.plot(run)
    ratios = [
        line.get_ydata().tolist() for axes in figure.axes for line in axes.lines
        if line.get_gid() == "here" and axes.get_ylabel().startswith("time:")
    ]  # fmt: skip
    assert ratios == [pytest.approx([3.0]), pytest.approx([6.0])]
    assert {"merge, threads=1, here", "merge, threads=2, here"} <= {*texts(figure)}
    assert misplaced(figure) == []


def test_backends_keep_their_looks_where_workers_vary():
    cases = [
        builders.case(name, n_workers=n, varied=("backend", "workers"))
        for name in ("ucx:polling", "mpi") for n in (2, 4)
    ]  # fmt: skip
    records = builders.launches(cases, [1.0] * 6)
    figure = published_figure.plot(
        reproducing(builders.in_memory(cases, records), "mpi4dask.merge_ri2")
    )
    lines = [line for axes in figure.axes for line in axes.lines if line.get_gid() == "here"]
    assert {line.get_color() for line in lines} != {style.Style().colour}


def test_a_distant_ratio_makes_the_axis_logarithmic():
    parts = [workload(b, "merge", launches=2, seconds=s) for b, s in
             (("ucx:polling", 300.0), ("mpi", 1.0))]  # fmt: skip
    figure = published_figure.plot(reproducing(together(*parts), "mpi4dask.merge_ri2"))
    (axes,) = (axes for axes in figure.axes if axes.get_ylabel().startswith("time: times"))
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel().endswith("(log scale)")
    assert misplaced(figure) == []


def test_no_published_figure_without_measurements():
    assert published_figure.plot(together(workload("tcp", launches=1))) is None
    failed = together(workload("tcp", "merge", launches=2, failing=2))
    assert published_figure.plot(reproducing(failed, "mpi4dask.merge_ri2")) is None


def test_a_missing_half_of_a_ratio_is_named():
    run = together(workload("tcp", "merge", launches=2), workload("mpi", "merge", launches=2))
    figure = published_figure.plot(reproducing(run, "mpi4dask.merge_ri2"))
    words = texts(figure)
    assert sum("it takes mpi and ucx:polling" in text for text in words) == 3
    assert misplaced(figure) == []

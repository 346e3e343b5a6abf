"""A published figure is redrawn with both values, each recognisable as what it is."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from made_up import misplaced, pingpong, texts, together, workload

from commbench.analysis.run import Run
from commbench.model import published
from commbench.reports.figures import published_figure

MPI = ("tcp", "ucx:polling", "mpi")
SPEED = {"tcp": 1.0, "ucx:polling": 3.0, "mpi": 0.8}


def reproducing(run: Run, figure: str, scale: float = 0.01) -> Run:
    """Return `run` as one of a suite that reproduces `figure`."""
    suite = dataclasses.replace(run.suite, reproduces=figure, scale=scale)
    environment = {"cpu": {"model": "Some CPU", "usable_cores": 4}}
    changed = dataclasses.replace(run.manifest, suite=suite, environment=environment)
    return run.replace(changed)


def scaling(name: str, counts: tuple[int, ...]) -> Iterator[Any]:
    """Yield a workload over three backends on several numbers of workers."""
    for backend in MPI:
        for n_workers in counts:
            seconds = SPEED[backend] * random.Random(n_workers).uniform(1, 1.3)
            yield workload(backend, name, n_workers=n_workers, launches=3, seconds=seconds)


@functools.cache
def made_up(figure: str) -> Run:
    """Return a run such as the figure's suite leaves on a laptop."""
    match figure:
        case "rapids_blog.merge_dgx1":
            parts = [workload(b, "merge", n_workers=8, launches=2) for b in ("tcp", "ucx:tcp")]
        case "rapids_blog.message_1GB":
            parts = [
                pingpong(b, sizes=[10**7], layers=[layer], of=layer)
                for layer in ("coroutine", "comm") for b in ("tcp", "ucx:tcp", "ucx:shm")
            ]  # fmt: skip
        case "ucx_dgx_blog.transpose":
            parts = [workload(b, n_workers=4, launches=2) for b in ("tcp", "ucx", "ucx:shm")]
        case "ucx_dgx_blog.svd":
            parts = [workload(b, "svd", n_workers=4, launches=2) for b in ("tcp", "ucx", "ucx:shm")]
        case "mpi4dask.pingpong":
            parts = [
                pingpong(b, layers=[layer], latency_s=2e-5 * SPEED[b], of=layer)
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
def drawn(figure: str) -> Any:
    """Return the figure, drawn once."""
    return published_figure.plot(made_up(figure))


@pytest.mark.parametrize("figure", published.names())
def test_the_words_can_be_read(figure: str) -> None:
    """No text leaves the figure or covers another."""
    assert misplaced(drawn(figure)) == []


@pytest.mark.parametrize("figure", published.names())
def test_both_are_labelled_with_what_they_are(figure: str) -> None:
    """Source, hardware and year of the published, machine and scale of the run, are all there."""
    words = " ".join(" ".join(texts(drawn(figure))).split())
    known = published.published_figure(figure)
    for expected in (
        known.source.title, str(known.source.year), known.hardware, "Some CPU, 4 cores",
        "here at 1 % of the size", "memory of CPUs", "published",
    ):  # fmt: skip
        assert expected in words


@pytest.mark.parametrize("figure", published.names())
def test_every_published_number_is_drawn(figure: str) -> None:
    """Each published value has its mark and its number in the figure."""
    words = texts(drawn(figure))
    values = published.published_figure(figure).values
    for value in values:
        assert any(value.text in text for text in words), value
    marks = [
        line for axes in drawn(figure).axes for line in axes.lines if line.get_gid() == "published"
    ]
    assert len(marks) >= len(values)


@pytest.mark.parametrize("figure", published.names())
def test_no_line_joins_what_is_ours_with_what_is_published(figure: str) -> None:
    """The published have a mark that nothing of ours has, and absolute ones axes of their own."""
    for axes in drawn(figure).axes:
        kinds = {(line.get_gid() or "").split()[0] for line in axes.lines if line.get_gid()}
        for line in axes.lines:
            if (line.get_gid() or "").startswith("here"):
                assert line.get_marker() != "D" or line.get_markerfacecolor() != "white"
            if line.get_gid() == "published":
                assert (line.get_marker(), line.get_markerfacecolor()) == ("D", "white")
        if kinds == {"here", "published"}:
            assert "times better" in axes.get_ylabel()


def test_ratios_here_are_those_of_the_run() -> None:
    """Each dot is ucx:polling's time over that of mpi, at its number of workers."""
    (line,) = (
        line for axes in drawn("mpi4dask.transpose_ri2").axes for line in axes.lines
        if line.get_gid() == "here" and axes.get_ylabel().startswith("time:")
    )  # fmt: skip
    assert [*line.get_xdata()] == [2, 3, 4, 5, 6]
    assert [*line.get_ydata()] == pytest.approx([3.0 / 0.8] * 5, rel=0.15)


@pytest.mark.parametrize("figure", published.names())
def test_linear_axes_begin_at_zero(figure: str) -> None:
    """No axis of a quantity exaggerates by leaving out its begin."""
    for axes in drawn(figure).axes:
        for label, scale, limits in (
            (axes.get_xlabel(), axes.get_xscale(), axes.get_xlim()),
            (axes.get_ylabel(), axes.get_yscale(), axes.get_ylim()),
        ):
            if scale == "log":
                assert "log scale" in label
            elif label and label != "workers":
                assert limits[0] == 0


def test_a_ratio_that_is_far_off_leaves_the_published_ones_readable() -> None:
    """Where ours is a hundred times theirs the axis is logarithmic, and says so."""
    parts = [workload(b, "merge", launches=2, seconds=s) for b, s in
             (("ucx:polling", 300.0), ("mpi", 1.0))]  # fmt: skip
    figure = published_figure.plot(reproducing(together(*parts), "mpi4dask.merge_ri2"))
    assert figure is not None
    (axes,) = (axes for axes in figure.axes if axes.get_ylabel().startswith("time: times"))
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel().endswith("(log scale)")
    assert misplaced(figure) == []


def test_without_anything_measured_there_is_no_figure() -> None:
    """A run that reproduces nothing, or of which everything failed, has none."""
    assert published_figure.plot(together(workload("tcp", launches=1))) is None
    failed = together(workload("tcp", "merge", launches=2, failing=2))
    assert published_figure.plot(reproducing(failed, "mpi4dask.merge_ri2")) is None


def test_half_a_ratio_is_said_to_be_missing() -> None:
    """Without ucx:polling our own times are drawn, and the ratio is told to be unknown."""
    run = together(workload("tcp", "merge", launches=2), workload("mpi", "merge", launches=2))
    figure = published_figure.plot(reproducing(run, "mpi4dask.merge_ri2"))
    assert figure is not None
    words = texts(figure)
    assert sum("it takes mpi and ucx:polling" in text for text in words) == 3
    assert misplaced(figure) == []

from __future__ import annotations

import numpy as np
import pytest
from made_up import texts, together, workload

from commbench import stats
from commbench.model.units import format_seconds
from commbench.reports.figures import iteration_figures


def _dots(axes, backend):
    (found,) = [dots for dots in axes.collections if dots.get_gid() == f"launches {backend}"]
    return found.get_offsets()


def _asides(axes):
    """Return the words at the right of each line, by line."""
    lines = {}
    for note in axes.texts:
        lines.setdefault(note.xy[1], []).append(note.get_text())
    return lines


def test_every_launch_is_a_dot():
    """The dots are the launches' medians, in the axis's unit."""
    run = together(workload("tcp"), workload("ucx", seconds=3))
    (axes,) = iteration_figures.plot_times(run).axes
    for backend, medians in stats.launch_medians(run).groupby("backend"):
        np.testing.assert_allclose(sorted(_dots(axes, backend)[:, 0]), sorted(medians.median_s))


def test_the_jitter_is_the_same_every_time():
    """Two drawings put each dot in the same place, within its backend's line."""
    run = together(workload("tcp"))
    one, other = (_dots(iteration_figures.plot_times(run).axes[0], "tcp") for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert np.abs(one[:, 1]).max() < 0.32
    assert len(set(one[:, 1])) > 1


def test_median_and_interval_are_the_summarys():
    """The bar stands at the median, and the line spans its interval."""
    run = together(workload("tcp"))
    summary = stats.summaries(run).iloc[0]
    (axes,) = iteration_figures.plot_times(run).axes
    segments = [s for f in axes.collections if hasattr(f, "get_segments") for s in f.get_segments()]
    line, bar = segments
    np.testing.assert_allclose(line[:, 0], [summary.ci_low_s, summary.ci_high_s])
    np.testing.assert_allclose(bar[:, 0], summary.median_s)


def test_one_launch_has_no_interval():
    """A single launch is a dot and a bar, and the caption says why."""
    figure = iteration_figures.plot_times(together(workload("tcp", launches=1)))
    segments = [f for f in figure.axes[0].collections if hasattr(f, "get_segments")]
    assert len(segments) == 1
    assert "one launch allows no interval" in figure.get_supxlabel()


def test_median_ratio_and_cpu_time_are_printed():
    """At the right stand the median, its ratio to the first backend's, and the CPU time."""
    run = together(workload("tcp"), workload("ucx", seconds=3))
    first, second = stats.summaries(run).itertuples()
    lines = _asides(iteration_figures.plot_times(run).axes[0])
    assert lines[-0.75] == ["median", "ratio", "CPU time"]
    assert lines[0] == [format_seconds(first.median_s), "1.00", format_seconds(first.cpu_s)]
    ratio = f"{second.median_s / first.median_s:.2f}"
    assert lines[1] == [format_seconds(second.median_s), ratio, format_seconds(second.cpu_s)]


def test_failed_launches_are_counted_in_the_label():
    """A backend whose launches failed in part or all keeps its line and says so."""
    run = together(workload("tcp", failing=2), workload("ucx", launches=3, failing=3))
    (axes,) = iteration_figures.plot_times(run).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "tcp\n(2 of 6 launches failed)",
        "ucx\n(3 of 3 launches failed)",
    ]
    assert _asides(axes)[1] == ["—"]


def test_without_the_first_backend_there_is_no_ratio():
    """Where the first backend failed, nothing is divided by another one."""
    run = together(workload("tcp", launches=1, failing=1), workload("ucx"))
    assert _asides(iteration_figures.plot_times(run).axes[0])[1][1] == "—"


def test_huge_ratios_are_readable():
    """A ratio of thousands has no decimals."""
    run = together(workload("tcp", seconds=1e-3), workload("ucx", seconds=20))
    ratio = _asides(iteration_figures.plot_times(run).axes[0])[1][1]
    assert ratio.replace(",", "").isdigit()


@pytest.mark.parametrize(("seconds", "unit"), [(2, "s"), (0.02, "ms"), (2e-5, "µs")])
def test_the_axis_has_a_fitting_unit_and_begins_at_zero(seconds, unit):
    """Short workloads are drawn in milli- or microseconds, never in hundredths of a second."""
    (axes,) = iteration_figures.plot_times(together(workload("tcp", seconds=seconds))).axes
    assert axes.get_xlabel() == f"time per iteration ({unit})"
    assert axes.get_xlim()[0] == 0
    assert 1 < axes.get_xlim()[1] < 1000


def test_each_workload_has_a_panel_with_its_bytes():
    """Panels follow the suite's order, and parameters that differ are in their titles."""
    run = together(
        workload("tcp", "merge", shuffle="tasks"), workload("tcp", "merge", shuffle="p2p"),
        workload("tcp", "svd"),
    )  # fmt: skip
    titles = [axes.get_title(loc="left") for axes in iteration_figures.plot_times(run).axes]
    assert titles == ["merge (shuffle=tasks), 800 MB", "merge (shuffle=p2p), 800 MB", "svd, 800 MB"]


def test_a_workload_that_failed_everywhere_is_named():
    """It has no panel, but the caption tells."""
    run = together(workload("tcp"), workload("tcp", "svd", launches=1, failing=1))
    words = " ".join(texts(iteration_figures.plot_times(run))).replace("\n", " ")
    assert "Not shown: svd on tcp (1 of 1 launch failed)." in words

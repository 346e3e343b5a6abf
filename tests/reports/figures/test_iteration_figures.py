import re

import numpy as np
import pytest
from drawing import caption, texts, together, workload

from commbench import stats
from commbench.model.units import format_seconds
from commbench.reports.figures import iteration_figures
from commbench.reports.figures.iteration_figures import (
    LOOPS,
    PARTS,
    TASKS,
    plot_communication,
    plot_profile,
    plot_times,
)


def tick_labels(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def typical(run, table):
    (case,) = run.suite.cases
    return stats.iteration_rows(stats.typical_sample(run, case, table), table)


# --- communication -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plot", "table", "panel", "parts"),
    [
        (plot_communication, stats.worker_times, 0, PARTS),
        (plot_profile, stats.worker_profiles, 0, TASKS),
        (plot_profile, stats.worker_profiles, 1, LOOPS),
    ],
)
def test_bars_are_stacked_up_to_the_wall_time(plot, table, panel, parts):
    run = together(workload("tcp", n_workers=3))
    times = typical(run, table(run)).set_index("worker")
    figure = plot(run)
    axes = figure.axes[panel]
    names = [{"S": "scheduler", "C": "client"}.get(name, name) for name in tick_labels(axes)]
    assert names == ["0", "1", "2"] + ["client", "scheduler"] * (parts is LOOPS)
    top = np.zeros(len(names))
    for column in parts:
        bars = [bar for bar in axes.patches if bar.get_gid() == f"tcp {column}"]
        np.testing.assert_allclose([bar.get_y() for bar in bars], top)
        np.testing.assert_allclose([bar.get_height() for bar in bars], times.loc[names, column])
        top = top + [bar.get_height() for bar in bars]
    np.testing.assert_allclose(top, times.wall_s.max())
    assert {label for _, label in parts.values()} <= {*texts(figure)}


def test_backends_have_panels_with_one_time_axis_from_zero():
    run = together(workload("tcp"), workload("ucx", seconds=3))
    figure = plot_communication(run)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["tcp", "ucx"]
    (limits,) = {axes.get_ylim() for axes in figure.axes}
    assert limits[0] == 0
    assert limits[1] > stats.worker_times(run).wall_s.median()
    assert figure.axes[0].get_ylabel() == "time (s)"


def test_communication_titles_have_the_share_of_receiving():
    run = together(workload("tcp"))
    times = typical(run, stats.worker_times(run))
    share = (times.transfer_only_s + times.overlap_s).sum() / times.wall_s.sum()
    (title,) = [text for text in texts(plot_communication(run)) if "(median" in text]
    assert title.endswith(f"receiving {share * 100:.0f} %")
    summaries = run.summaries.assign(low_mode_s=1.0, high_mode_s=8.0)
    run.__dict__["summaries"] = summaries
    assert any("(median 1.00 or 8.00 s)" in text for text in texts(plot_communication(run)))


@pytest.mark.parametrize(("n_workers", "shown"), [(8, 8), (40, 20)])
def test_worker_labels_are_thinned_out(n_workers, shown):
    run = together(*(workload(name, n_workers=n_workers, launches=1) for name in ("tcp", "ucx")))
    axes = plot_communication(run).axes[0]
    assert len(axes.patches) == 4 * n_workers
    assert len(axes.get_xticks()) <= shown


def test_a_wait_for_a_core_within_a_task_is_not_called_computing():
    figure = plot_communication(together(workload("tcp")))
    assert not any("computing" in text for text in texts(figure))
    colours = {colour for colour, _ in PARTS.values()}
    assert colours & {TASKS["compute_s"][0], TASKS["queue_s"][0]} == set()
    assert PARTS["transfer_only_s"][0] == TASKS["data_s"][0]


# --- profile -----------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", [0, 1])
def test_many_bars_are_drawn_as_areas_of_the_same_height(panel, monkeypatch):
    run = together(workload("tcp", n_workers=5))
    bars = plot_profile(run).axes[panel].patches
    monkeypatch.setattr(iteration_figures, "BARS_UP_TO", 4)
    axes = plot_profile(run).axes[panel]
    assert not axes.patches
    for area in axes.collections:
        expected = [bar for bar in bars if bar.get_gid() == area.get_gid()]
        (path,) = area.get_paths()
        corners = {(round(x, 6), round(y, 9)) for x, y in path.vertices}
        for number, bar in enumerate(expected):
            for y in (bar.get_y(), bar.get_y() + bar.get_height()):
                assert (number - 0.5, round(y, 9)) in corners
                assert (number + 0.5, round(y, 9)) in corners
    assert len(axes.collections) == len((TASKS, LOOPS)[panel])


def test_scheduler_and_client_have_event_loops_only():
    run = together(workload("tcp", n_workers=11, launches=1))
    tasks, loops = plot_profile(run).axes
    workers = [str(number) for number in range(11)]
    assert tick_labels(tasks) == workers
    assert tick_labels(loops) == [*workers, "C", "S"]


# --- time --------------------------------------------------------------------------------------


def _dots(axes, backend):
    (dots,) = [dots for dots in axes.collections if dots.get_gid() == f"launches {backend}"]
    return dots.get_offsets()


def _asides(axes):
    """Return the words at the right of each line, by line."""
    lines = {}
    for note in axes.texts:
        if note.get_text():
            lines.setdefault(note.xy[1], []).append(note.get_text())
    return lines


def _segments(axes):
    lines = [lines for lines in axes.collections if hasattr(lines, "get_segments")]
    return [segment[:, 0] for each in lines for segment in each.get_segments()]


def test_dots_are_the_medians_of_launches():
    run = together(workload("tcp"), workload("ucx", seconds=3))
    (axes,) = plot_times(run).axes
    for backend, medians in stats.launch_medians(run).groupby("backend"):
        dots = _dots(axes, backend)
        np.testing.assert_allclose(sorted(dots[:, 0]), sorted(medians.median_s))
        assert len(set(dots[:, 1])) > 1
        np.testing.assert_array_equal(dots, _dots(plot_times(run).axes[0], backend))


def test_median_and_interval_are_those_of_the_summary():
    run = together(workload("tcp"))
    summary = stats.summaries(run).iloc[0]
    interval, median = _segments(plot_times(run).axes[0])
    np.testing.assert_allclose(interval, [summary.ci_low_s, summary.ci_high_s])
    np.testing.assert_allclose(median, summary.median_s)


def test_one_launch_has_no_interval():
    figure = plot_times(together(workload("tcp", launches=1)))
    assert len(_segments(figure.axes[0])) == 1
    assert "one launch allows no interval" in caption(figure)


def test_median_ratio_verdict_and_cpu_time_are_printed():
    run = together(workload("tcp"), workload("ucx", seconds=3))
    first, second = stats.summaries(run).itertuples()
    assert "of launches, not of the medians" in caption(plot_times(run))
    lines = _asides(plot_times(run).axes[0])
    assert lines[-0.75] == ["median", "ratio", "verdict", "CPU time"]
    verdict = run.comparisons[0].verdict
    assert lines[0] == [
        format_seconds(first.median_s), "1.00", "baseline", format_seconds(first.cpu_s)
    ]  # fmt: skip
    ratio = f"{run.comparisons[0].ratio:.2f}"
    assert lines[1] == [
        format_seconds(second.median_s), ratio, verdict, format_seconds(second.cpu_s)
    ]  # fmt: skip


def test_the_baseline_is_the_first_backend_with_a_good_launch():
    run = together(workload("ucx", launches=1, failing=1), workload("tcp"), workload("mpi"))
    lines = _asides(plot_times(run).axes[0])
    assert [lines[row][2] for row in (1, 2)] == ["baseline", run.comparisons[0].verdict]


@pytest.mark.parametrize(
    ("first", "ratio"),
    [
        ({"seconds": 1e-3}, "[0-9]{2},[0-9]{3}"),
        ({"seconds": 5e3}, "0.00[0-9]+"),
    ],
)
def test_a_ratio_is_of_thousands_or_thousandths(first, ratio):
    run = together(workload("tcp", **first), workload("ucx", seconds=20))
    assert re.fullmatch(ratio, _asides(plot_times(run).axes[0])[1][1])


def test_failed_launches_are_counted_in_the_label():
    run = together(workload("tcp", failing=2), workload("ucx", launches=3, failing=3))
    (axes,) = plot_times(run).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "tcp\n(2 of 6 launches failed)",
        "ucx\n(3 of 3 launches failed)",
    ]
    assert _asides(axes)[1] == ["—"]


def test_panels_are_named_by_workload_parameters_and_bytes():
    run = together(
        workload("tcp", "merge", shuffle="tasks"), workload("tcp", "merge", shuffle="p2p"),
        workload("tcp", "svd"),
    )  # fmt: skip
    titles = [axes.get_title(loc="left") for axes in plot_times(run).axes]
    assert titles == ["merge (shuffle=tasks), 800 MB", "merge (shuffle=p2p), 800 MB", "svd, 800 MB"]

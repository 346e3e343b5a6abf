from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from made_up import texts, together, workload

from commbench import stats
from commbench.reports.figures.iteration_figures import (
    PARTS,
    plot_communication,
    typical_iteration,
)


def _bars(axes):
    """Return the height of each part's bars, by colour."""
    bars = {}
    for bar in axes.patches:
        colour = tuple(np.round(bar.get_facecolor()[:3], 3))
        bars.setdefault(colour, []).append((bar.get_y(), bar.get_height()))
    return {colour: np.array(values) for colour, values in bars.items()}


def _colour(column):
    import matplotlib as mpl

    return tuple(np.round(mpl.colors.to_rgb(PARTS[column][0]), 3))


def _typical(run):
    median = stats.summaries(run).median_s.item()
    return typical_iteration(stats.worker_times(run), median)


def test_bars_are_the_parts_of_the_wall_time():
    """Each worker's four parts are stacked without a gap, up to the iteration's duration."""
    run = together(workload("tcp", n_workers=3))
    times = _typical(run).sort_values("worker")
    bars = _bars(plot_communication(run).axes[0])
    top = np.zeros(3)
    for column in PARTS:
        bottom, height = bars[_colour(column)].T
        np.testing.assert_allclose(height, times[column])
        np.testing.assert_allclose(bottom, top)
        top = bottom + height
    np.testing.assert_allclose(top, times.wall_s)


def test_workers_stand_in_the_order_of_their_numbers():
    """Worker 2 stands before worker 10."""
    run = together(workload("tcp", n_workers=11, launches=1))
    (axes,) = plot_communication(run).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [str(n) for n in range(11)]
    times = _typical(run).set_index("worker").compute_only_s
    heights = _bars(axes)[_colour("compute_only_s")][:, 1]
    np.testing.assert_allclose(heights, [times[str(n)] for n in range(11)])


def test_the_iteration_is_a_real_one_near_the_median():
    """Of all iterations the one whose duration is nearest to the median is drawn, whole."""
    times = pd.DataFrame(
        [
            {"launch": launch, "iteration": iteration, "worker": worker, "wall_s": wall}
            for (launch, iteration), wall in {(0, 0): 1.0, (0, 1): 2.1, (1, 0): 9.0}.items()
            for worker in ("0", "1")
        ]
    )
    chosen = typical_iteration(times, 2.5)
    assert chosen[["launch", "iteration"]].drop_duplicates().to_numpy().tolist() == [[0, 1]]
    assert list(chosen.worker) == ["0", "1"]


def test_backends_stand_side_by_side_on_one_scale():
    """Panels are named after their backends and share the time axis, which begins at 0."""
    run = together(workload("tcp"), workload("ucx", seconds=3))
    figure = plot_communication(run)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["tcp", "ucx"]
    (limits,) = {axes.get_ylim() for axes in figure.axes}
    assert limits[0] == 0
    assert limits[1] > stats.worker_times(run).wall_s.median()
    assert figure.axes[0].get_ylabel() == "time (s)"


def test_the_title_tells_duration_median_and_share():
    """Above each panel stand this iteration's time, the median and how long workers received."""
    run = together(workload("tcp"))
    times = _typical(run)
    share = (times.transfer_only_s + times.overlap_s).sum() / times.wall_s.sum()
    (note,) = [words for words in texts(plot_communication(run)) if "(median" in words]
    assert note.endswith(f"receiving {share * 100:.0f} %")


def test_every_colour_is_explained_in_the_order_of_the_stack():
    """The legend has the four parts, and nothing else."""
    words = texts(plot_communication(together(workload("tcp"))))
    assert [word for word in words if word in {label for _, label in PARTS.values()}] == [
        "computing only", "computing and receiving", "receiving only",
        "neither (idle, scheduler, …)",
    ]  # fmt: skip


def test_a_backend_that_failed_is_named():
    """It has no panel, but the caption tells."""
    run = together(workload("tcp"), workload("ucx", launches=2, failing=2))
    figure = plot_communication(run)
    assert len(figure.axes) == 1
    caption = figure.get_supxlabel().replace("\n", " ")
    assert "Not shown: transpose-sum on ucx (2 of 2 launches failed)." in caption


@pytest.mark.parametrize(("n_workers", "shown"), [(8, 8), (40, 20)])
def test_labels_are_thinned_out_where_bars_are_thin(n_workers, shown):
    """All workers are drawn, but not all of 40 are named."""
    run = together(*(workload(name, n_workers=n_workers, launches=1) for name in ("tcp", "ucx")))
    axes = plot_communication(run).axes[0]
    assert len(axes.patches) == 4 * n_workers
    assert len(axes.get_xticks()) <= shown

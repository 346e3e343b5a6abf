"""The figure shows both accounts of every process, each as long as the iteration."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import EMPTY, texts, together, workload

from commbench import stats
from commbench.reports.figures import iteration_figures
from commbench.reports.figures.iteration_figures import (
    LOOPS,
    TASKS,
    plot_profile,
    typical_iteration,
)


@pytest.mark.parametrize(("place", "parts"), [(0, TASKS), (1, LOOPS)])
def test_the_parts_are_stacked_up_to_the_wall_time(place, parts):
    """Each bar is one process's whole iteration, its parts without a gap."""
    run = together(workload("tcp", n_workers=3))
    median = stats.summaries(run).median_s.item()
    times = typical_iteration(stats.worker_profiles(run), median).set_index("worker")
    axes = plot_profile(run).axes[place]
    names = ["0", "1", "2"] + ["scheduler", "client"] * place
    names = sorted(names, key=lambda name: [label.get_text() for label in axes.get_xticklabels()]
                   .index({"scheduler": "S", "client": "C"}.get(name, name)))  # fmt: skip
    top = np.zeros(len(names))
    for column in parts:
        bars = [bar for bar in axes.patches if bar.get_gid() == f"tcp {column}"]
        np.testing.assert_allclose([bar.get_y() for bar in bars], top)
        np.testing.assert_allclose([bar.get_height() for bar in bars], times.loc[names, column])
        top = top + [bar.get_height() for bar in bars]
    np.testing.assert_allclose(top, times.wall_s.max())


@pytest.mark.parametrize("place", [0, 1])
def test_many_bars_are_as_high_without_a_gap(place, monkeypatch):
    """Where bars are as thin as lines, each part is one area with the same steps."""
    run = together(workload("tcp", n_workers=5))
    bars = plot_profile(run).axes[place].patches
    monkeypatch.setattr(iteration_figures, "BARS_UP_TO", 4)
    axes = plot_profile(run).axes[place]
    assert not axes.patches
    for area in axes.collections:
        expected = [bar for bar in bars if bar.get_gid() == area.get_gid()]
        (path,) = area.get_paths()
        corners = {(round(x, 6), round(y, 9)) for x, y in path.vertices}
        for number, bar in enumerate(expected):
            for y in (bar.get_y(), bar.get_y() + bar.get_height()):
                assert (number - 0.5, round(y, 9)) in corners
                assert (number + 0.5, round(y, 9)) in corners
    assert len(axes.collections) == len((TASKS, LOOPS)[place])


def test_scheduler_and_client_stand_behind_the_workers():
    """Task threads are the workers' alone; event loops have the others' too."""
    run = together(workload("tcp", n_workers=11, launches=1))
    tasks, loops = plot_profile(run).axes
    workers = [str(number) for number in range(11)]
    assert [label.get_text() for label in tasks.get_xticklabels()] == workers
    assert [label.get_text() for label in loops.get_xticklabels()] == [*workers, "C", "S"]


def test_every_part_is_in_the_legend():
    """Each colour has its words."""
    shown = texts(plot_profile(together(workload("tcp"))))
    for parts in (TASKS, LOOPS):
        assert all(words in shown for _, words in parts.values())


def test_without_readings_there_is_no_figure():
    """A ping-pong has none."""
    assert plot_profile(EMPTY) is None

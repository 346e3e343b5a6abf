from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from made_up import run_of, texts, together, workload
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from commbench import model
from commbench.model import Case, ClusterSpec
from commbench.reports.figures import task_stream


def _sample(case, *, launch=0, iteration=0, seconds=2.0, warmup=False):
    return model.Sample(
        case_id=case.id, launch=launch, iteration=iteration, layer="workload", warmup=warmup,
        started_at_s=1000.0 + 100 * launch + 10 * iteration, seconds=seconds, cpu_seconds=1.0,
        payload_bytes=1, verified=True,
    )  # fmt: skip


def _task(case, start, stop, *, launch=0, iteration=0, worker="0", thread=77, action="compute"):
    began = 1000.0 + 100 * launch + 10 * iteration
    return model.TaskRecord(
        case_id=case.id, launch=launch, iteration=iteration, worker=worker, thread=thread,
        name="add", action=action, start_s=began + start, stop_s=began + stop,
    )  # fmt: skip


def _transfer(case, start, stop, *, dst="0"):
    return model.TransferRecord(
        case_id=case.id, launch=0, iteration=0, src="1", dst=dst, nbytes=1, n_keys=1,
        start_s=1000.0 + start, stop_s=1000.0 + stop,
    )  # fmt: skip


def _end(case, launch, ok=True):
    return model.LaunchEnd(case_id=case.id, launch=launch, block=0, position=0, ok=ok, seconds=1.0)


CASE = Case(workload="merge", backend="tcp", cluster=ClusterSpec(threads_per_worker=2))


def _bars(axes, action):
    """Return left, right, top and bottom of every bar, from left to right."""
    (found,) = [bars for bars in axes.collections if bars.get_label() == action]
    boxes = [path.get_extents().extents for path in found.get_paths()]
    return sorted((x0, x1, y0, y1) for x0, y0, x1, y1 in boxes)


def test_bars_lie_where_the_tasks_ran():
    """Left and right are seconds since the iteration's start."""
    records = [_sample(CASE), _task(CASE, 0.5, 1.0), _task(CASE, 1.25, 1.5), _end(CASE, 0)]
    (axes,) = task_stream.plot(run_of([CASE], records)).axes
    spans = [bar[:2] for bar in _bars(axes, "compute")]
    np.testing.assert_allclose(spans, [(0.5, 1.0), (1.25, 1.5)])
    assert axes.get_xlabel() == "time since the iteration's start (s)"
    assert axes.get_xlim()[0] == 0


def test_threads_have_lanes_and_transfers_one_below_them():
    """Two threads of one worker lie above each other, what it receives below both."""
    records = [
        _sample(CASE), _end(CASE, 0), _task(CASE, 0, 1, thread=5), _task(CASE, 0, 1, thread=9),
        _transfer(CASE, 0, 1), _task(CASE, 0, 1, worker="1"),
    ]  # fmt: skip
    (axes,) = task_stream.plot(run_of([CASE], records)).axes
    lanes = [bar[2:] for bar in _bars(axes, "compute")] + [
        bar[2:] for bar in _bars(axes, "transfer")
    ]
    of_worker_0 = [lane for lane in lanes if lane[1] <= 1]
    assert len(of_worker_0) == 3
    for (_, above), (below, _) in itertools.pairwise(of_worker_0):
        assert above <= below + 1e-9
    assert axes.get_ylim() == (2, 0)


def test_deserializing_and_spilling_have_their_colours():
    """Reads and writes of the disk are one colour, deserialization another."""
    records = [
        _sample(CASE), _end(CASE, 0), _task(CASE, 0, 0.1, action="deserialize"),
        _task(CASE, 0.2, 0.3, action="disk-read"), _task(CASE, 0.4, 0.5, action="disk-write"),
    ]  # fmt: skip
    figure = task_stream.plot(run_of([CASE], records))
    assert len(_bars(figure.axes[0], "disk")) == 2
    assert len(_bars(figure.axes[0], "deserialize")) == 1
    assert {"disk (spill)", "deserialize"} <= set(texts(figure))
    assert "compute" not in texts(figure)


def test_the_first_measured_iteration_of_the_first_good_launch_is_drawn():
    """A launch that failed and a warm-up are passed over, and the title says which is shown."""
    records = [
        _end(CASE, 0, ok=False), _sample(CASE), _task(CASE, 0, 1),
        _end(CASE, 1), _sample(CASE, launch=1, iteration=-1, warmup=True),
        _task(CASE, 0, 1, launch=1, iteration=-1),
        _sample(CASE, launch=1, iteration=1), _task(CASE, 0, 0.5, launch=1, iteration=1),
        _sample(CASE, launch=1, seconds=1.5), _task(CASE, 0.25, 0.75, launch=1),
    ]  # fmt: skip
    (axes,) = task_stream.plot(run_of([CASE], records)).axes
    assert axes.get_title(loc="left") == "tcp: 1.50 s (launch 1, iteration 0)"
    np.testing.assert_allclose([bar[:2] for bar in _bars(axes, "compute")], [(0.25, 0.75)])


def test_what_began_before_the_iteration_is_cut_at_its_start():
    """No bar lies left of 0, and one that ended before is not drawn."""
    records = [_sample(CASE), _end(CASE, 0), _task(CASE, -1, 0.5), _task(CASE, -2, -1)]
    (axes,) = task_stream.plot(run_of([CASE], records)).axes
    np.testing.assert_allclose([bar[:2] for bar in _bars(axes, "compute")], [(0, 0.5)])


def test_panels_share_one_time_axis():
    """A fast and a slow backend are drawn on the same scale, each with its end marked."""
    run = together(workload("tcp"), workload("ucx", seconds=3))
    fast, slow = task_stream.plot(run).axes
    assert fast.get_xlim() == slow.get_xlim()
    for axes in (fast, slow):
        seconds = float(axes.get_title(loc="left").split()[1])
        ends = [line.get_xdata()[0] for line in axes.lines if line.get_color() == "black"]
        np.testing.assert_allclose(ends, [seconds], rtol=0.01)


def test_only_the_first_32_workers_are_shown_and_it_says_so():
    """The caption names both numbers."""
    figure = task_stream.plot(together(workload("tcp", n_workers=40, launches=1)))
    assert figure.axes[0].get_ylim() == (32, 0)
    assert "Only the first 32 of 40 workers are shown." in figure.get_supxlabel().replace("\n", " ")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[:2] == ["0", "2"]


def test_an_idle_worker_has_its_empty_row():
    """A worker that did nothing in this iteration is a white row, not a missing one."""
    records = [
        _sample(CASE), _end(CASE, 0), _task(CASE, 0, 1),
        _task(CASE, 0, 1, worker="1", iteration=1),
    ]  # fmt: skip
    (axes,) = task_stream.plot(run_of([CASE], records)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]


def test_a_run_in_progress_can_be_drawn():
    """Before the first launch has ended its iterations count as good."""
    figure = task_stream.plot(run_of([CASE], [_sample(CASE), _task(CASE, 0, 1)]))
    assert len(figure.axes) == 1


def test_an_unknown_action_alone_makes_no_figure():
    """What a future Dask may record is left out rather than drawn as something else."""
    records = [_sample(CASE), _end(CASE, 0), _task(CASE, 0, 1, action="daydream")]
    assert task_stream.plot(run_of([CASE], records)) is None


def test_a_case_without_good_launches_is_named():
    """It has no panel, but the caption tells."""
    run = together(workload("tcp"), workload("ucx", launches=1, failing=1))
    figure = task_stream.plot(run)
    assert len(figure.axes) == 1
    caption = figure.get_supxlabel().replace("\n", " ")
    assert "Not shown: transpose-sum on ucx (1 of 1 launch failed)." in caption


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_twenty_thousand_bars_are_drawn_as_fast_as_elsewhere(suffix, tmp_path):
    """They take three times as long as in a bare figure at most, and less than 2 MB."""
    from commbench.reports.figures import style

    run = together(workload("tcp", n_workers=8, launches=1, tasks_per_thread=1250))
    one = run.tasks[run.tasks.iteration == 0]
    assert len(one) == 20_000
    began = time.process_time()
    bare = Figure()
    bare.subplots().broken_barh([(number, 0.5) for number in range(20_000)], (0, 1))
    bare.savefig(tmp_path / f"bare.{suffix}")
    bare_s, began = time.process_time() - began, time.process_time()
    figure = task_stream.plot(run.replace(tasks=one))
    image = style.encoded(figure, suffix)
    assert time.process_time() - began < 3 * bare_s
    assert len(image) < 2e6


def test_neighbouring_tasks_can_be_told_apart():
    """With few bars each has a white edge; with many edges would hide the bars."""
    few = task_stream.plot(together(workload("tcp"))).axes[0].collections[0]
    many = task_stream.plot(together(workload("tcp", tasks_per_thread=600))).axes[0].collections[0]
    assert few.get_linewidth()[0] > 0
    assert many.get_linewidth()[0] == 0
    FigureCanvasAgg(many.figure.figure).draw()

import itertools
import time

import builders
import numpy as np
import pytest
from builders import EPOCH, end, in_memory
from drawing import caption, texts, together, workload
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from commbench.model import ClusterSpec
from commbench.reports.figures import style, task_stream


def _sample(*, launch=0, iteration=0, **given):
    began = EPOCH + 100 * launch + 10 * iteration
    given = {"seconds": 2.0, "started_at_s": began} | given
    return builders.sample(CASE, launch=launch, iteration=iteration, **given)


def _task(start, stop, *, launch=0, iteration=0, **given):
    began = 100 * launch + 10 * iteration
    given |= {"launch": launch, "iteration": iteration}
    return builders.task(CASE, began + start, began + stop, **given)


CASE = builders.case(cluster=ClusterSpec(threads_per_worker=2))


def _bars(axes, action):
    """Return left, right, top and bottom of every bar, from left to right."""
    (bars,) = [bars for bars in axes.collections if bars.get_label() == action]
    boxes = [path.get_extents().extents for path in bars.get_paths()]
    return sorted((x0, x1, y0, y1) for x0, y0, x1, y1 in boxes)


@pytest.mark.parametrize("ends", [[], [end(CASE)]], ids=["in progress", "ended"])
def test_bars_are_tasks_in_seconds_since_the_start(ends):
    tasks = [_task(*span) for span in ((0.5, 1.0), (1.25, 1.5), (-1, 0.25), (-2, -1))]
    idle = _task(0, 1, worker="1", iteration=1)
    (axes,) = task_stream.plot(in_memory([CASE], [_sample(), *tasks, idle, *ends])).axes
    spans = [bar[:2] for bar in _bars(axes, "compute")]
    np.testing.assert_allclose(spans, [(0, 0.25), (0.5, 1.0), (1.25, 1.5)])
    assert axes.get_xlabel() == "time since the iteration's start (s)"
    assert axes.get_xlim()[0] == 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]


def test_columns_of_many_bars_are_shaded_by_the_busy_share_of_their_time(monkeypatch):
    monkeypatch.setattr(task_stream, "SHADED_FROM", 3)
    monkeypatch.setattr(task_stream, "N_COLUMNS", 4)
    spans = [(0.1, 0.2), (0.15, 0.35), (0.5, 1.5), (1.9, 2.5)]
    figure = task_stream.plot(in_memory([CASE], [_sample(), *itertools.starmap(_task, spans)]))
    (axes,) = figure.axes
    np.testing.assert_allclose(
        axes.collections[0].get_facecolor()[:, 3], [0.5, 1, 1, 0.2], atol=1e-5
    )
    assert [bar[:2] for bar in _bars(axes, "compute")] == [(0, 0.5), (0.5, 1), (1, 1.5), (1.5, 2)]
    assert "the busier its lane" in caption(figure)


def test_threads_have_lanes_above_the_transfers():
    records = [
        _sample(), end(CASE), _task(0, 1, thread=5), _task(0, 1, thread=9),
        builders.transfer(CASE, 0, 1, src="1", dst="0"), _task(0, 1, worker="1"),
    ]  # fmt: skip
    (axes,) = task_stream.plot(in_memory([CASE], records)).axes
    lanes = [bar[2:] for bar in _bars(axes, "compute")] + [
        bar[2:] for bar in _bars(axes, "transfer")
    ]
    of_worker_0 = [lane for lane in lanes if lane[1] <= 1]
    assert len(of_worker_0) == 3
    for (_, above), (below, _) in itertools.pairwise(of_worker_0):
        assert above <= below + 1e-9
    assert axes.get_ylim() == (2, 0)


def test_disk_and_deserialize_have_separate_bars():
    records = [
        _sample(), end(CASE), _task(0, 0.1, action="deserialize"),
        _task(0.2, 0.3, action="disk-read"), _task(0.4, 0.5, action="disk-write"),
    ]  # fmt: skip
    figure = task_stream.plot(in_memory([CASE], records))
    assert len(_bars(figure.axes[0], "disk")) == 2
    assert len(_bars(figure.axes[0], "deserialize")) == 1
    assert {"disk (spill)", "deserialize"} <= set(texts(figure))
    assert "compute" not in texts(figure)


def test_the_iteration_nearest_to_the_median_is_drawn():
    records = [
        end(CASE, ok=False), _sample(seconds=1.5), _task(0, 1),
        end(CASE, launch=1), _sample(launch=1, iteration=-1, seconds=1.5),
        _task(0, 1, launch=1, iteration=-1),
        _sample(launch=1, iteration=2), _task(0, 0.5, launch=1, iteration=2),
        _sample(launch=1, iteration=1, seconds=1.0), _task(0, 0.5, launch=1, iteration=1),
        _sample(launch=1, seconds=1.5), _task(0.25, 0.75, launch=1),
    ]  # fmt: skip
    (axes,) = task_stream.plot(in_memory([CASE], records)).axes
    assert axes.get_title(loc="left") == "tcp: 1.50 s (launch 1, iteration 0)"
    np.testing.assert_allclose([bar[:2] for bar in _bars(axes, "compute")], [(0.25, 0.75)])


def test_a_region_with_others_in_it_has_no_stream():
    outer, inner = (builders.case(workload=name) for name in ("code", "load"))
    records = []
    for n, case in enumerate((outer, inner)):
        records += [
            builders.region(case, 2.0, iteration=n, parent=n - 1),
            builders.sample(case, 2.0, iteration=n, started_at_s=EPOCH),
            builders.task(case, 0.5, 1.0, iteration=n),
        ]  # fmt: skip
    run = in_memory([outer, inner], builders.ended(records))
    streams = [task_stream.typical_stream(run, case) for case in (outer, inner)]
    assert [stream is None for stream in streams] == [True, False]


def test_tasks_have_their_name_or_its_key_where_it_fits():
    records = [
        _sample(), end(CASE), _task(0, 1, name="merge-partitions"),
        _task(1.1, 1.2, name="merge-partitions"), _task(1.3, 1.31, name="getitem"),
    ]  # fmt: skip
    figure = task_stream.plot(in_memory([CASE], records))
    names = [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    assert names == ["merge-partitions", "1"]
    assert {"1 merge-partitions", "2 getitem"} <= {*texts(figure)}


def test_panels_share_one_time_axis():
    run = together(workload("tcp"), workload("ucx", seconds=3))
    fast, slow = task_stream.plot(run).axes
    assert fast.get_xlim() == slow.get_xlim()
    for axes in (fast, slow):
        seconds = float(axes.get_title(loc="left").split()[1])
        ends = [line.get_xdata()[0] for line in axes.lines if line.get_color() == "black"]
        np.testing.assert_allclose(ends, [seconds], rtol=0.01)


def test_32_workers_are_shown_at_most():
    figure = task_stream.plot(together(workload("tcp", n_workers=40, launches=1)))
    assert figure.axes[0].get_ylim() == (32, 0)
    assert "Only the first 32 of 40 workers are shown." in caption(figure)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names[:2] == ["0", "2"]


def test_unknown_actions_are_not_drawn():
    records = [_sample(), end(CASE), _task(0, 1, action="daydream")]
    assert task_stream.plot(in_memory([CASE], records)) is None


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_twenty_thousand_bars_are_drawn_as_fast_as_by_a_bare_figure(suffix, tmp_path):
    run = together(workload("tcp", n_workers=8, launches=1, tasks_per_thread=1250))
    one = run.tasks[run.tasks.iteration == 0]
    assert len(one) == 20_000
    began = time.process_time()
    bare = Figure()
    bare.subplots().broken_barh([(number, 0.5) for number in range(20_000)], (0, 1))
    bare.savefig(tmp_path / f"bare.{suffix}")
    bare_s, began = time.process_time() - began, time.process_time()
    image = style.encoded(task_stream.plot(run.replace(tasks=one)), suffix)
    assert time.process_time() - began < 3 * bare_s
    assert len(image) < 2e6


def test_few_bars_have_edges_and_many_have_none():
    few = task_stream.plot(together(workload("tcp"))).axes[0].collections[0]
    many = task_stream.plot(together(workload("tcp", tasks_per_thread=600))).axes[0].collections[0]
    assert few.get_linewidth()[0] > 0
    assert many.get_linewidth()[0] == 0
    FigureCanvasAgg(many.figure.figure).draw()

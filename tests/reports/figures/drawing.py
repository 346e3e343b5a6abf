"""Runs as a real one would leave them behind, made up from a seed, and what a figure shows."""

import random
import re

import builders
import numpy as np
from builders import EPOCH, in_memory
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from commbench.model import Case, ClusterSpec


def workload(
    backend, name="transpose-sum", *, n_workers=2, launches=6, failing=0, seconds=1.3,
    bandwidth=1.2e9, tasks_per_thread=6, threads=1, silent_pairs=(), worker_name="{}", **params,
):  # fmt: skip
    """Return a case of a workload and the records of its launches, the last of which fail."""
    cluster = ClusterSpec(n_workers=n_workers, threads_per_worker=threads)
    case = Case(workload=name, backend=backend, cluster=cluster, params=params, launches=launches)
    dice, records = random.Random(f"{backend} {name}"), []
    names = [worker_name.format(worker) for worker in range(n_workers)]
    for launch in range(launches):
        ok = launch < launches - failing
        records.append(builders.end(case, launch=launch, ok=ok))
        if not ok:
            records.append(builders.failure(case, "a crash", launch=launch))
            continue
        drift = dice.uniform(0.93, 1.08)
        for iteration in range(-1, 2):
            at = {"launch": launch, "iteration": iteration}
            began = 100 * launch + 10 * iteration
            wall = seconds * drift * dice.uniform(1, 1.04)
            used = {"started_at_s": EPOCH + began, "cpu_seconds": wall * n_workers * 0.8}
            records.append(builders.sample(case, wall, **at, **used))
            records += _counters(dice, case, at, names, threads, wall)
            for dst, worker in enumerate(names):
                counts = {"n_started": n_workers, "n_logged": n_workers}
                records.append(builders.log_count(case, worker, **at, **counts))
                records += _tasks(dice, case, at, worker, threads, began, wall, tasks_per_thread)
                for src, sender in enumerate(names):
                    if src == dst:
                        continue
                    pair = {"src": sender, "dst": worker} | at
                    records.append(builders.wire(case, 100_000_000, n_messages=4, **pair))
                    if (src, dst) in silent_pairs:
                        continue
                    far = 0.4 if (src < n_workers // 2) != (dst < n_workers // 2) else 1
                    for _ in range(2):
                        start = began + wall * dice.uniform(0.05, 0.8)
                        speed = bandwidth * far * dice.uniform(0.6, 1.1)
                        stop = start + int(dice.uniform(1, 12) * 8e6) / speed
                        stop = min(stop, began + wall)
                        nbytes = int((stop - start) * speed)
                        records.append(builders.transfer(case, start, stop, nbytes, **pair))
    return case, records


def _counters(dice, case, at, workers, threads, wall):
    for name in [*workers, "scheduler", "client"]:
        idle = {"idle_seconds": 0.1, "idle_wait_seconds": 0.001, "idle_cpu_seconds": 0.03}
        cpu = wall * dice.uniform(0.3, 0.6)
        yield builders.thread_time(
            case, name, "loop", seconds=wall, cpu_seconds=cpu, n_turns=1000, idle_n_turns=200,
            wait_seconds=wall * dice.uniform(0, 0.2), **idle, **at,
        )  # fmt: skip
        if name not in workers:
            continue
        yield builders.thread_time(
            case, name, n_threads=threads, seconds=wall, cpu_seconds=cpu * threads,
            wait_seconds=wall * threads * dice.uniform(0, 0.1), **idle | {"idle_cpu_seconds": 0.0},
            **at,
        )  # fmt: skip
        for context, label, share in (
            ("execute", "thread-cpu", 0.9 * threads), ("get-data", "serialize", 0.1),
            ("gather-dep", "deserialize", 0.2), ("gather-dep", "network", 2.0),
        ):  # fmt: skip
            yield builders.activity(case, context, label, share * cpu, worker=name, **at)


def _tasks(dice, case, at, worker, threads, began, wall, count):
    for thread in range(threads):
        for index in range(count):
            start = began + wall * (index + dice.uniform(0, 0.3)) / count
            stop = start + wall / count * dice.uniform(0.3, 0.65)
            action = "disk-write" if index % 7 == 5 else "compute"
            bar = {"thread": 140_000_000_000_000 + 4096 * thread, **at}
            yield builders.task(case, start, stop, worker, action=action, **bar)
            end = stop + 0.05 * wall / count
            yield builders.task(case, stop, end, worker, action="deserialize", **bar)


def pingpong(
    backend, *, latency_s=50e-6, bandwidth=1.2e9, sizes=tuple(4**n for n in range(12)),
    launches=6, layers=("comm",), slow=lambda *_: 1, **params,
):  # fmt: skip
    """Return a case of the ping-pong and its records: a few messages of every size and launch.

    `slow` is the factor of the times of a layer in a launch.
    """
    case = Case(workload="pingpong", backend=backend, launches=launches, params=params)
    dice, records, sizes = random.Random(backend), [], list(sizes)
    for launch in range(launches):
        records.append(builders.end(case, launch=launch))
        for depth, layer in enumerate(layers):
            for size in sizes:
                drift = dice.lognormvariate(0, 0.08)
                exact = latency_s * (1 + depth) + size / bandwidth * (1 + depth / 3)
                exact *= slow(layer, launch)
                records += [
                    builders.message(
                        case, exact * drift * dice.uniform(1, 1.1), size, layer=layer,
                        launch=launch, iteration=iteration, cpu_seconds=1e-5,
                    )
                    for iteration in range(3)
                ]  # fmt: skip
    return case, records


def together(*parts):
    return in_memory(
        [case for case, _ in parts], [record for _, records in parts for record in records]
    )


EMPTY = in_memory([Case(workload="pingpong", backend="tcp"), Case(workload="merge", backend="tcp")])
"""A run in which nothing has been measured yet."""


def texts(figure):
    """Return every text that `figure` shows, ticks and legends included."""
    return [text.get_text() for text in _shown(figure)]


def caption(figure):
    return figure.get_supxlabel().replace("\n", " ")


def _shown(figure):
    # An axis keeps the labels of ticks beyond its limits too, but does not draw them.
    beyond = {
        id(label)
        for axis in figure.findobj(Axis)
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in beyond
    ]


def misplaced(figure):
    """Return the texts that leave the figure or cover each other, drawn at 100 dpi."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = _shown(figure)
    boxes = np.array([text.get_window_extent(canvas.get_renderer()).extents for text in shown])
    (x0, y0, x1, y1), slack = boxes.T, 1.5
    width, height = figure.bbox.size
    out = (x0 < -slack) | (y0 < -slack) | (x1 > width + slack) | (y1 > height + slack)
    wrong = [f"{shown[index].get_text()!r} leaves the figure" for index in np.flatnonzero(out)]
    across = np.minimum(x1[:, None], x1) - np.maximum(x0[:, None], x0) > slack
    down = np.minimum(y1[:, None], y1) - np.maximum(y0[:, None], y0) > slack
    # The box around a slanted text is mostly empty.
    slanted = np.array([text.get_rotation() % 90 != 0 for text in shown])
    both = across & down & ~(slanted[:, None] & slanted)
    wrong += [
        f"{shown[one].get_text()!r} covers {shown[other].get_text()!r}"
        for one, other in np.argwhere(np.triu(both, k=1))
    ]
    return wrong


_UNIT = re.compile(r"\((?:B/s|kB/s|MB/s|GB/s|s|ms|µs)\)")


def check_axes(figure):
    """Check that axes have a unit or a scale, and that linear ones begin at zero."""
    # The axis labels of small multiples stand at their edge only.
    labels = set()
    for axes in figure.axes:
        for label, limits, scale in (
            (axes.get_xlabel(), axes.get_xlim(), axes.get_xscale()),
            (axes.get_ylabel(), axes.get_ylim(), axes.get_yscale()),
        ):
            labels.add(label)
            if scale == "log":
                assert "log scale" in label
            elif _UNIT.search(label) or "linear scale" in label:
                assert limits[0] == 0
            else:
                # Names of workers and backends are no quantities.
                assert label.startswith(("worker", "from worker", "to worker")) or label == ""
    assert any(_UNIT.search(label) or "scale" in label for label in labels)

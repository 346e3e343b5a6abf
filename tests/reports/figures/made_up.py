"""Runs as a real one would leave them behind, made up from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from commbench import model
from commbench.analysis.run import Run
from commbench.model import Case, ClusterSpec, Manifest, Suite
from commbench.store import tables
from commbench.store.records import TABLES


def run_of(cases: Iterable[Case], records: Iterable[Any] = ()) -> Run:
    """Return the run that holds `records`, without going through files."""
    suite = Suite(name="made-up", cases=tuple(cases))
    by_id = {case.id: case for case in suite.cases}
    records = list(records)
    frames = {}
    for name, kind in TABLES.items():
        rows = [vars(record) for record in records if type(record).__name__ == kind]
        frame = tables.frame_from_rows(rows, kind)
        for column in ("workload", "backend"):
            names = {case_id: getattr(case, column) for case_id, case in by_id.items()}
            frame[column] = frame["case_id"].map(names).astype("str")
        frames[name] = frame
    return Run(
        Path("made-up"),
        Manifest(
            id="made-up", suite=suite, environment={}, seed=0, started_at="2025-01-01T00:00:00"
        ),
        **frames,
    )


def workload(
    backend: str,
    name: str = "transpose-sum",
    *,
    n_workers: int = 2,
    launches: int = 6,
    failing: int = 0,
    seconds: float = 1.3,
    bandwidth_Bps: float = 1.2e9,  # noqa: N803 - the unit's own spelling
    tasks_per_thread: int = 6,
    threads: int = 1,
    silent_pairs: Iterable[tuple[int, int]] = (),
    worker_name: str = "{}",
    **params: Any,
) -> tuple[Case, list[Any]]:
    """Return a case of a workload and the records of its launches, the last of which fail."""
    cluster = ClusterSpec(n_workers=n_workers, threads_per_worker=threads)
    case = Case(workload=name, backend=backend, cluster=cluster, params=params, launches=launches)
    dice, records = random.Random(f"{backend} {name}"), []
    silent = set(silent_pairs)
    for launch in range(launches):
        ok = launch < launches - failing
        records.append(
            model.LaunchEnd(
                case_id=case.id, launch=launch, block=launch, position=0, ok=ok, seconds=9.0
            )
        )
        if not ok:
            records.append(
                model.Failure(case_id=case.id, launch=launch, stage="run", message="a crash")
            )
            continue
        drift = dice.uniform(0.93, 1.08)
        for iteration in range(-1, 2):
            began, wall = (
                1e9 + 100 * launch + 10 * iteration,
                seconds * drift * dice.uniform(1, 1.04),
            )
            common = {"case_id": case.id, "launch": launch, "iteration": iteration}
            records.append(
                model.Sample(
                    **common, layer="workload", warmup=iteration < 0, started_at_s=began,
                    seconds=wall, cpu_seconds=wall * n_workers * 0.8, payload_bytes=800_000_000,
                    verified=True,
                )
            )  # fmt: skip
            names = [worker_name.format(worker) for worker in range(n_workers)]
            records.extend(_counters(dice, common, names, threads, wall))
            for worker in range(n_workers):
                records.append(
                    model.LogCount(
                        **common, worker=worker_name.format(worker), n_started=n_workers,
                        n_logged=n_workers, n_busy=0, n_failed=0, n_in_flight=0,
                    )
                )  # fmt: skip
                records.extend(
                    _tasks(
                        dice,
                        common,
                        worker_name.format(worker),
                        threads,
                        began,
                        wall,
                        tasks_per_thread,
                    )
                )
                records.extend(
                    model.WireBytes(
                        **common,
                        src=worker_name.format(src),
                        dst=worker_name.format(worker),
                        nbytes=100_000_000,
                        n_messages=4,
                    )
                    for src in range(n_workers)
                    if src != worker
                )
                for src in range(n_workers):
                    if src == worker or (src, worker) in silent:
                        continue
                    far = 0.4 if (src < n_workers // 2) != (worker < n_workers // 2) else 1
                    for _ in range(2):
                        start = began + wall * dice.uniform(0.05, 0.8)
                        speed = bandwidth_Bps * far * dice.uniform(0.6, 1.1)
                        nbytes = int(dice.uniform(1, 12) * 8e6)
                        stop = min(start + nbytes / speed, began + wall)
                        records.append(
                            model.TransferRecord(
                                **common, src=worker_name.format(src),
                                dst=worker_name.format(worker), n_keys=1,
                                nbytes=int((stop - start) * speed), start_s=start, stop_s=stop,
                            )
                        )  # fmt: skip
    return case, records


def _counters(
    dice: random.Random, common: dict[str, Any], workers: list[str], threads: int, wall: float
) -> Iterator[Any]:
    for name in [*workers, "scheduler", "client"]:
        idle = {"idle_seconds": 0.1, "idle_wait_seconds": 0.001, "idle_cpu_seconds": 0.03}
        cpu = wall * dice.uniform(0.3, 0.6)
        yield model.ThreadTime(
            **common, worker=name, role="loop", n_threads=1, seconds=wall, cpu_seconds=cpu,
            wait_seconds=wall * dice.uniform(0, 0.2), n_turns=1000, idle_n_turns=200, **idle,
        )  # fmt: skip
        if name not in workers:
            continue
        yield model.ThreadTime(
            **common, worker=name, role="tasks", n_threads=threads, seconds=wall,
            cpu_seconds=cpu * threads, wait_seconds=wall * threads * dice.uniform(0, 0.1),
            n_turns=0, idle_n_turns=0, **idle,
        )  # fmt: skip
        for context, label, share in (
            ("execute", "thread-cpu", 0.9 * threads), ("get-data", "serialize", 0.1),
            ("gather-dep", "deserialize", 0.2), ("gather-dep", "network", 2.0),
        ):  # fmt: skip
            yield model.Activity(
                **common, worker=name, context=context, label=label, seconds=share * cpu
            )


def _tasks(
    dice: random.Random, common: dict[str, Any], worker: str, threads: int,
    began: float, wall: float, count: int,
) -> Iterator[model.TaskRecord]:  # fmt: skip
    for thread in range(threads):
        for index in range(count):
            start = began + wall * (index + dice.uniform(0, 0.3)) / count
            stop = start + wall / count * dice.uniform(0.3, 0.65)
            action = "disk-write" if index % 7 == 5 else "compute"
            ident = 140_000_000_000_000 + 4096 * thread
            bar = {**common, "worker": worker, "thread": ident, "name": "add"}
            yield model.TaskRecord(**bar, action=action, start_s=start, stop_s=stop)
            yield model.TaskRecord(
                **bar, action="deserialize", start_s=stop, stop_s=stop + 0.05 * wall / count
            )


def pingpong(
    backend: str,
    *,
    latency_s: float = 50e-6,
    bandwidth_Bps: float = 1.2e9,  # noqa: N803 - the unit's own spelling
    sizes: Iterable[int] = tuple(4**n for n in range(12)),
    launches: int = 6,
    layers: Iterable[str] = ("comm",),
    **params: Any,
) -> tuple[Case, list[Any]]:
    """Return a case of the ping-pong and its records: a few messages of every size and launch."""
    case = Case(workload="pingpong", backend=backend, launches=launches, params=params)
    dice, records = random.Random(backend), []
    for launch in range(launches):
        records.append(
            model.LaunchEnd(
                case_id=case.id, launch=launch, block=launch, position=0, ok=True, seconds=9.0
            )
        )
        for depth, layer in enumerate(layers):
            for size in sizes:
                drift = dice.lognormvariate(0, 0.08)
                for iteration in range(3):
                    exact = latency_s * (1 + depth) + size / bandwidth_Bps * (1 + depth / 3)
                    records.append(
                        model.Sample(
                            case_id=case.id, launch=launch, iteration=iteration, layer=layer,
                            warmup=False, started_at_s=1e9, verified=True, payload_bytes=size,
                            seconds=exact * drift * dice.uniform(1, 1.1), cpu_seconds=1e-5,
                        )
                    )  # fmt: skip
    return case, records


def together(*parts: tuple[Case, list[Any]]) -> Run:
    """Return the run of several cases."""
    return run_of(
        [case for case, _ in parts], [record for _, records in parts for record in records]
    )


EMPTY = run_of([Case(workload="pingpong", backend="tcp"), Case(workload="merge", backend="tcp")])
"""A run in which nothing has been measured yet."""


def texts(figure: Figure) -> list[str]:
    """Return every text that `figure` shows, ticks and legends included."""
    return [text.get_text() for text in _shown(figure)]


def _shown(figure: Figure) -> list[Text]:
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


def misplaced(figure: Figure) -> list[str]:
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

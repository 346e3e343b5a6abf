"""``trace``: the typical iteration of each case as a timeline, for Perfetto or speedscope.

The format is Chrome's Trace Event Format: a JSON array of events with times in µs. The workers, the
scheduler and the client are processes. Their tracks are threads with their tasks, lanes of fetches
that are sent and received, with an arrow from the sender's slice to the receiver's, and the event
loop: one slice with what it did in the iteration, and slices of turns that blocked it for 0.1 s or
more. Counters have the bytes that were received, the cores in use, and the memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from commbench import stats
from commbench.analysis.run import Run
from commbench.errors import UsageError
from commbench.model import Case
from commbench.reports.sections import natural
from commbench.stats.worker_profile import LOOP_PARTS, NO_TASKS
from commbench.store import records

_LOOP, _RECEIVES, _SENDS = 999_999, 1_000_000, 2_000_000
"""The track of the event loop, and the first of fetches that a worker receives, and sends."""
_Event = dict[str, Any]


def render(run: Run) -> str:
    """Return the events as JSON, one per line.

    Raises
    ------
    UsageError
        If the run has no tasks.
    """
    events: list[_Event] = []
    for case in run.suite.cases:
        if (sample := stats.typical_sample(run, case)) is not None:
            first_process = len({event["pid"] for event in events}) + 1
            events += _case(run, case, sample, first_process)
    if not events:
        raise UsageError(
            f"{run.manifest.id} has no tasks, and a trace is of these; "
            f"{run.path / records.FILE} has all samples"
        )
    return "[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n"


def _case(run: Run, case: Case, sample: pd.Series[Any], first_process: int) -> Iterator[_Event]:
    """Yield the events of the iteration of a sample."""
    same = partial(stats.iteration_rows, sample)
    tasks, fetches = same(run.tasks), same(run.transfers)
    loops, uses = same(run.worker_profiles), same(run.process_use)
    # Fetches have records of their senders and sizes, which the bars of the task stream lack.
    tasks = tasks[tasks["action"] != "transfer"]
    workers = {*fetches["src"], *fetches["dst"]}.union(*(t["worker"] for t in (tasks, loops, uses)))
    others = [name for name in NO_TASKS if name in workers]
    names = [*sorted(workers.difference(others), key=natural), *others]
    processes = {name: first_process + position for position, name in enumerate(names)}
    for name, pid in processes.items():
        who = name if name in others else f"worker {name}"
        title = f"{run.case_names[case.id]}, {who}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    began_s = sample["started_at_s"]
    yield from _tasks(tasks, processes, began_s)
    yield from _fetches(fetches, processes, began_s)
    yield from _loops(loops, same(run.long_turns), processes, sample)
    for use in uses.itertuples():
        # Cores are those of the time before a reading.
        for name, read_s, value in (
            ("cores in use", use.start_s, use.n_cores),
            ("memory (bytes)", use.stop_s, use.memory_bytes),
        ):
            yield _counter(name, processes[str(use.worker)], max(0.0, read_s - began_s), value)


def _loops(
    loops: pd.DataFrame, long_turns: pd.DataFrame, processes: dict[str, int],
    sample: pd.Series[Any],
) -> Iterator[_Event]:  # fmt: skip
    for row in loops[loops["asleep_s"].notna()].itertuples():
        pid = processes[str(row.worker)]
        parts = {name: getattr(row, name) for name in LOOP_PARTS}
        known = {name: seconds for name, seconds in parts.items() if not math.isnan(seconds)}
        yield _track(pid, _LOOP, "event loop")
        yield _slice("event loop", "loop", pid, _LOOP, 0.0, row.wall_s, **known)
        for turn in long_turns[long_turns["worker"] == row.worker].itertuples():
            start_s = max(0.0, turn.start_s - sample["started_at_s"])
            stop_s = min(row.wall_s, turn.stop_s - sample["started_at_s"])
            if stop_s > start_s:
                yield _slice("blocked", "loop", pid, _LOOP, start_s, stop_s - start_s)


def _tasks(tasks: pd.DataFrame, processes: dict[str, int], began_s: float) -> Iterator[_Event]:
    for worker, rows in tasks.groupby("worker", observed=True):
        tracks: dict[tuple[int, int], int] = {}
        pid = processes[str(worker)]
        for number, (_, tasks_there) in enumerate(rows.groupby("thread"), 1):
            ends: list[float] = []
            for row in tasks_there.sort_values("start_s").itertuples():
                # Tasks overlap by corrections of their worker's clock, and as coroutines.
                lane, is_new = _free_lane(ends, row.start_s, row.stop_s)
                tid = tracks.setdefault((number, lane), 1 + len(tracks))
                if is_new:
                    yield _track(pid, tid, f"thread {number}" + f", {lane + 1}" * (lane > 0))
                yield _slice(
                    row.name, row.action, pid, tid, row.start_s - began_s,
                    row.stop_s - row.start_s, key=row.key, nbytes=row.nbytes,
                )  # fmt: skip


def _fetches(fetches: pd.DataFrame, processes: dict[str, int], began_s: float) -> Iterator[_Event]:
    lanes: dict[tuple[int, int], list[float]] = {}
    fetches = fetches[fetches["stop_s"] >= fetches["start_s"]].sort_values("start_s")
    for row in fetches.itertuples():
        start_s, stop_s = row.start_s - began_s, row.stop_s - began_s
        ends = {}
        for kind, worker, first, what in (
            ("s", row.src, _SENDS, "sends"), ("f", row.dst, _RECEIVES, "receives")
        ):  # fmt: skip
            pid = processes[str(worker)]
            lane, is_new = _free_lane(lanes.setdefault((pid, first), []), start_s, stop_s)
            ends[kind] = pid, first + lane
            if is_new:
                yield _track(pid, first + lane, f"{what} {lane + 1}")
        size = {"nbytes": row.nbytes, "keys": row.n_keys, "channel": row.channel}
        if row.channel == "p2p":
            size |= {"shuffle": row.shuffle, "queue_s": row.queue_s, "handling_s": row.handling_s}
        name = f"{row.src} → {row.dst}"
        for kind, (pid, tid) in ends.items():
            yield _slice(name, "fetch", pid, tid, start_s, stop_s - start_s, **size)
            ts = (start_s if kind == "s" else stop_s) * 1e6
            # Viewers match the ends of arrows by this number in the whole trace.
            event = {"ph": kind, "name": "fetch", "cat": "fetch", "id": row.Index, "ts": ts}
            yield {**event, "pid": pid, "tid": tid, **({"bp": "e"} if kind == "f" else {})}
    for receiver, rows in fetches.sort_values("stop_s").groupby("dst", observed=True):
        totals = zip(rows["stop_s"], rows["nbytes"].cumsum(), strict=True)
        for stop_s, total in totals:
            pid = processes[str(receiver)]
            yield _counter("bytes received", pid, stop_s - began_s, int(total))


def _free_lane(ends: list[float], start_s: float, stop_s: float) -> tuple[int, bool]:
    """Return the first lane that is free from `start_s` on, and whether it is a new one.

    `ends` has the end of the last slice of each lane.
    """
    lane = next((lane for lane, end_s in enumerate(ends) if end_s <= start_s), len(ends))
    is_new = lane == len(ends)
    ends[lane : lane + 1] = [stop_s]
    return lane, is_new


def _track(pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _counter(name: str, pid: int, at_s: float, value: float) -> _Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": at_s * 1e6, "args": {name: value}}


def _slice(
    name: str, category: str, pid: int, tid: int, start_s: float, seconds: float, **args: Any
) -> _Event:
    return {
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start_s * 1e6,
        "dur": seconds * 1e6, "args": args,
    }  # fmt: skip

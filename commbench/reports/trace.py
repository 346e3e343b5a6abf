"""``trace``: the typical iteration of each case as a timeline, for Perfetto or speedscope.

The format is Chrome's Trace Event Format: a JSON array of events with times in µs. A worker is a
process. Its tracks are its threads with their tasks, and lanes of fetches that it sends and
receives; an arrow leads from the sender's slice to the receiver's. A counter has the bytes that
it has received.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd

from commbench.analysis.run import Run
from commbench.errors import UsageError
from commbench.model import Case
from commbench.reports.sections import natural

_RECEIVES, _SENDS = 1_000_000, 2_000_000
"""The first track of fetches that a worker receives, and sends; threads come before them."""
_Event = dict[str, Any]


def render(run: Run) -> str:
    """Return the events as JSON, one per line.

    Raises
    ------
    UsageError
        If the run has no tasks.
    """
    events: list[_Event] = []
    samples = run.measured
    samples = samples[samples["layer"] == "workload"]
    for case in run.suite.cases:
        mine = samples[samples["case_id"] == case.id]
        if len(mine):
            first_process = len({event["pid"] for event in events}) + 1
            events += _case(run, case, mine, first_process)
    if not events:
        raise UsageError(
            f"{run.manifest.id} has no tasks, and a trace is of these; commbench report RUN "
            "--format csv has all samples"
        )
    return "[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n"


def _case(run: Run, case: Case, samples: pd.DataFrame, first_process: int) -> Iterator[_Event]:
    """Yield the events of the typical iteration of a case; its workers are processes."""
    typical = samples.loc[(samples["seconds"] - samples["seconds"].median()).abs().idxmin()]
    launch, number, began_s = typical[["launch", "iteration", "started_at_s"]]
    tasks, fetches = (
        table[
            (table["case_id"] == case.id)
            & (table["launch"] == launch)
            & (table["iteration"] == number)
        ]
        for table in (run.tasks, run.transfers)
    )
    # Fetches have records of their senders and sizes, which the bars of the task stream lack.
    tasks = tasks[tasks["action"] != "transfer"]
    workers = sorted({*tasks["worker"], *fetches["src"], *fetches["dst"]}, key=natural)
    processes = {name: first_process + position for position, name in enumerate(workers)}
    for name, pid in processes.items():
        title = f"{run.case_names[case.id]}, worker {name}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    yield from _tasks(tasks, processes, began_s)
    yield from _fetches(fetches, processes, began_s)


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
    for number, row in enumerate(fetches.itertuples()):
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
            event = {"ph": kind, "name": "fetch", "cat": "fetch", "id": number, "ts": ts}
            yield {**event, "pid": pid, "tid": tid, **({"bp": "e"} if kind == "f" else {})}
    for receiver, rows in fetches.sort_values("stop_s").groupby("dst", observed=True):
        totals = zip(rows["stop_s"], rows["nbytes"].cumsum(), strict=True)
        for stop_s, total in totals:
            yield {
                "ph": "C", "name": "bytes received", "pid": processes[str(receiver)],
                "ts": (stop_s - began_s) * 1e6, "args": {"bytes": int(total)},
            }  # fmt: skip


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


def _slice(
    name: str, category: str, pid: int, tid: int, start_s: float, seconds: float, **args: Any
) -> _Event:
    return {
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start_s * 1e6,
        "dur": seconds * 1e6, "args": args,
    }  # fmt: skip

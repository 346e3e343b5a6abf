"""Where the time went: the task threads and the event loops, each with an account of its own."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.run import Run
from commbench.reports.sections.cells import Quantity, Section, Table, label, number

_TASKS = {
    "compute": "compute", "other_cpu": "other\nCPU", "queue": "no core", "blocked": "blocked",
    "data": "await\ndata", "idle": "idle",
}  # fmt: skip
_LOOP = {
    "serialize": "seria-\nlize", "deserialize": "dese-\nrialize", "messages": "mes-\nsages",
    "poll": "poll", "loop_queue": "no core", "asleep": "asleep",
}  # fmt: skip


def tables(run: Run) -> Iterator[Table]:
    """Yield the two accounts, where there are readings."""
    shares = run.profile_shares
    tasks = shares[shares["compute"].notna()]
    if len(tasks):
        yield Table(
            "Where the time went: task threads of the workers (% of the wall time)",
            ("backend", *_TASKS.values()),
            tuple(
                (label(run, row), *(_percent(getattr(row, name)) for name in _TASKS))
                for row in tasks.itertuples()
            ),
            "An average thread of an average worker; a row adds up to 100. compute: on a core in a "
            "task; no core: ready to run, but other threads had the cores; blocked: in a task, but "
            "asleep (waits for the GIL, locks, I/O); await data: no task, and a fetch under way "
            "(P2P shuffles are not logged as fetches).",
        )
    loops = shares[shares["asleep"].notna()]
    # Without gilknocker nobody knows, and the column would take the room of another.
    gil = {"gil": "GIL\nbusy"} if loops["gil"].notna().any() else {}
    columns = {**_LOOP, "other_threads": "other\nthreads", **gil}
    if len(loops):
        yield Table(
            "Where the time went: event loops (% of the wall time)",
            ("backend", "process", *columns.values()),
            tuple(
                (
                    label(run, row),
                    row.process,
                    *(_percent(getattr(row, name)) for name in columns),
                )
                for row in loops.itertuples()
            ),
            "The thread of the event loop; its first six columns add up to 100. messages: all that "
            "it does besides; poll: its turns at the price of a turn in the idle cluster; other "
            "threads: their time on a core (progress threads, offloaded serialization, the "
            "tasks' own)." + " GIL busy: time in which who asked for it had to wait." * bool(gil),
            text_columns=frozenset({"process"}),
        )


def _percent(share: float) -> str:
    return Quantity("0", 100 * share) if share < 0.0005 else number(100 * share)


SECTION = Section(
    title="Where the time went",
    position=30,
    tables=tables,
    figures=("communication", "task-stream", "worker-profile"),
)

"""What measuring costs with many workers: ``make scale``, or ``python tests/scale.py``.

Prints the tables of docs/scale.md, which says what they mean: what it takes to collect from
simulated workers, and to report what they leave behind. ``--workers 10,100`` and ``--rounds 1``
make it shorter.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import builders
import numpy as np
from collecting import collected

from commbench.harness.cases import cases_for
from commbench.model import ClusterSpec
from commbench.model.observed import Record, TaskRecord, TransferRecord, TransportUsed, WireBytes
from commbench.store import parts

WORKERS = (10, 30, 100, 300, 1000)
N_ENTRIES = 1000
MB = 1e6
# The maximum of wait4 would be that of this process, before the child replaced its memory.
PRINT_COST = """
import re, sys, time
def print_cost(seconds):
    status = open("/proc/self/status").read()
    peak = 1024 * int(re.search(r"VmHWM:\\s*([0-9]+)", status)[1])
    print(f"\\n{{}} {{}}".format(seconds, peak), file=sys.stderr)
"""
REPORT = """
from commbench.cli.main import main
began = time.perf_counter()
try:
    main(["report", *sys.argv[1:]])
finally:
    print_cost(time.perf_counter() - began)
"""
_FINISH = """
import pathlib
from commbench.store import directory
began = time.perf_counter()
directory.RunStore.reopen(pathlib.Path(sys.argv[1])).finish()
print_cost(time.perf_counter() - began)
"""
_FIGURE = """
import pathlib
from commbench import load
from commbench.model import registry
from commbench.reports.figures import style
run = load(pathlib.Path(sys.argv[1]))
began = time.perf_counter()
figure = registry.load("plot", "pair-bandwidth")(run)
style.encoded(figure, "svg"), style.encoded(figure, "png")
print_cost(time.perf_counter() - began)
"""


class Cost(NamedTuple):
    """Of a process: its duration, that without start and imports, and its peak memory."""

    whole_s: float
    inner_s: float
    peak_bytes: int


def cost(code: str, *arguments: str | Path, output: Path) -> Cost:
    """Return the cost of a new process that runs `code`, which calls ``print_cost``."""
    command = [sys.executable, "-c", PRINT_COST + code, *map(str, arguments)]
    began = time.perf_counter()
    with output.open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=False)
    whole_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr.decode()
    seconds, peak = done.stderr.split()[-2:]
    return Cost(whole_s, float(seconds), int(peak))


def collecting(n_workers: int, n_entries: int, rounds: int) -> dict[str, float]:
    """Return the medians of what collecting from that many workers costs."""
    costs = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            one = collected(n_workers, n_entries, Path(folder))
            assert one["n_stored"] == n_workers * n_entries
            costs.append(one)
    return {
        name: statistics.median(one[name] for one in costs) for name in costs[0] if name != "path"
    }


def one_iteration(output: Path, n_workers: int, n_fetches: int) -> Path:
    """Write a run of one launch of one iteration, with every kind of record that Dask has for it.

    Every worker fetches `n_fetches` times, from each other one in turn, and has as many tasks;
    there are eight workers to a host. Returns the run's path.
    """
    (case,) = cases_for("merge", ["tcp"], {}, ClusterSpec(n_workers=n_workers), launches=1)
    run = builders.written(output, [case], builders.launches(case, [1.0], n_samples=1))
    many = run.parts("one")
    common = {"case_id": case.id, "launch": 0}
    where, random = {**common, "iteration": 0}, np.random.default_rng(0)
    peers = min(n_fetches, n_workers - 1)
    for number in range(n_workers):
        worker, n = str(number), n_fetches
        host = f"node{number // 8}"
        where_at = f"tcp://10.0.{number // 2000}.{number // 8 % 250}:{40000 + number % 8}"
        start_s = np.sort(random.uniform(0, 100, n)) + builders.EPOCH
        nbytes = random.integers(1_000_000, 50_000_000, n)
        stop_s = (start_s + nbytes / random.uniform(1e9, 2e9, n)).tolist()
        names = [str((number + 1 + offset) % n_workers) for offset in range(peers)]
        sent = nbytes[:peers].tolist()
        for record in (
            parts.table(
                TransferRecord, **where, dst=worker, src=[names[i % peers] for i in range(n)],
                nbytes=nbytes.tolist(), start_s=start_s.tolist(), stop_s=stop_s, n_keys=1,
                channel="gather",
            ),
            parts.table(
                TaskRecord, **where, worker=worker, thread=1, name="add", action="compute",
                start_s=start_s.tolist(), stop_s=stop_s,
            ),
            parts.table(
                WireBytes, **where, src=worker, dst=names, nbytes=sent, n_messages=2
            ),
            parts.table(
                TransportUsed, **common, src=worker, dst=names, transport="tcp",
                evidence=[f"socket 10.0.0.1:{number} ↔ 10.0.1.1:{peer}" for peer in names],
                contradiction="",
            ),
            builders.log_count(case, worker, n_started=n, n_logged=n),
            builders.address(case, worker, where_at),
            builders.place(case, worker, host=host, host_id=host),
            *(
                builders.thread_time(case, worker, role, cpu_seconds=0.5)
                for role in ("loop", "tasks", "offload", "other")
            ),
            *(
                builders.activity(case, "execute", label, 0.2, worker=worker)
                for label in ("thread-cpu", "thread-noncpu", "executor")
            ),
            *(
                builders.activity(case, "gather-dep", label, 0.2, worker=worker)
                for label in ("deserialize", "network", "other")
            ),
        ):  # fmt: skip
            if isinstance(record, Record):
                run.append(record)
            else:
                many.add(record)
    many.close()
    run.close()
    return run.path


def reporting(n_workers: int, rounds: int) -> dict[str, float]:
    """Return what it takes to make files and reports of one iteration of that many workers."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "report")
        run = one_iteration(Path(folder), n_workers, N_ENTRIES)
        finished = cost(_FINISH, run, output=output)
        measured = {"finish_s": finished.whole_s, "finish_bytes": float(finished.peak_bytes)}
        measured["parquet_bytes"] = sum(file.stat().st_size for file in run.glob("*/*.parquet"))
        measured["samples_bytes"] = (run / "samples.jsonl").stat().st_size
        for name, code, options in (
            ("terminal", REPORT, ["--format", "terminal"]),
            ("html", REPORT, ["--format", "html"]),
            ("figure", _FIGURE, []),
        ):
            costs = [cost(code, run, *options, output=output) for _ in range(rounds)]
            inner = name == "figure"
            measured[f"{name}_s"] = statistics.median(
                one.inner_s if inner else one.whole_s for one in costs
            )
            measured[f"{name}_peak_bytes"] = max(one.peak_bytes for one in costs)
            measured[f"{name}_bytes"] = output.stat().st_size
    return measured


def _collecting_table(sizes: list[int], n_entries: int, rounds: int) -> Iterator[str]:
    yield (
        "| workers | records | messages | MB through the scheduler | its CPU s | collected s"
        " | client's CPU s | on disk s | empty logs s | client's peak MB | MB on disk |"
    )
    yield "|" + " ---: |" * 11
    for n_workers in sizes:
        measured = collecting(n_workers, n_entries, rounds)
        yield _row(
            f"{n_workers:,}", f"{measured['n_records']:,.0f}", f"{measured['n_messages']:.0f}",
            measured["scheduler_bytes"] / MB, measured["scheduler_cpu_s"], measured["collect_s"],
            measured["client_cpu_s"], measured["disk_s"], measured["empty_s"],
            f"{measured['peak_bytes'] / MB:.0f}", measured["stored_bytes"] / MB,
        )  # fmt: skip


def _reporting_table(sizes: list[int], rounds: int) -> Iterator[str]:
    yield (
        "| workers | pairs | merging s | MB of Parquet | MB of lines"
        " | terminal s | peak MB | HTML s | peak MB | MB of HTML | figure of pairs s |"
    )
    yield "|" + " ---: |" * 11
    for n_workers in sizes:
        measured = reporting(n_workers, rounds)
        yield _row(
            f"{n_workers:,}", f"{n_workers * min(n_workers - 1, N_ENTRIES):,}",
            measured["finish_s"], measured["parquet_bytes"] / MB,
            measured["samples_bytes"] / MB, measured["terminal_s"],
            f"{measured['terminal_peak_bytes'] / MB:.0f}", measured["html_s"],
            f"{measured['html_peak_bytes'] / MB:.0f}", measured["html_bytes"] / MB,
            measured["figure_s"],
        )  # fmt: skip


def _row(*cells: Any) -> str:
    texts = (cell if isinstance(cell, str) else f"{cell:.3g}" for cell in cells)
    return f"| {' | '.join(texts)} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--entries", type=int, default=N_ENTRIES, help="of each worker's log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("collecting", "reporting"))
    given = parser.parse_args()
    sizes = [int(word) for word in given.workers.split(",")]
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    if given.only != "reporting":
        print(
            f"\nCollecting, {given.entries:,} entries of each worker, median of {given.rounds}:\n"
        )
        for row in _collecting_table(sizes, given.entries, given.rounds):
            print(row, flush=True)
    if given.only != "collecting":
        print(f"\nReporting one iteration, {N_ENTRIES:,} fetches and tasks of each worker:\n")
        for row in _reporting_table(sizes, given.rounds):
            print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())

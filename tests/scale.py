"""What measuring costs with many workers: ``make scale``, or ``python tests/scale.py``.

Prints the tables of docs/scale.md, which says what they mean: what it takes to collect from
simulated workers, and to report what they leave behind. ``--workers 10,100`` and ``--rounds 1``
make it shorter.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import one_iteration
from collecting import collected
from test_scale import REPORT, cost

WORKERS = (10, 30, 100, 300, 1000)
EXTRAPOLATED = 10_000
N_ENTRIES = 1000
MB = 1e6
_FINISH = """
import pathlib
from commbench.store import directory
began = time.perf_counter()
directory.RunStore.reopen(pathlib.Path(sys.argv[1])).finish()
told(time.perf_counter() - began)
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
told(time.perf_counter() - began)
"""


def collecting(n_workers: int, n_entries: int, rounds: int) -> dict[str, float]:
    """Return the medians of what it takes to collect from that many workers."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            one = collected(n_workers, n_entries, Path(folder))
            assert one["n_stored"] == n_workers * n_entries
            found.append(one)
    return {
        name: statistics.median(one[name] for one in found) for name in found[0] if name != "path"
    }


def reporting(n_workers: int, rounds: int) -> dict[str, float]:
    """Return what it takes to make files and reports of one iteration of that many workers."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "report")
        run = one_iteration.written(Path(folder), n_workers, N_ENTRIES)
        finished = cost(_FINISH, run, output=output)
        found = {"finish_s": finished.whole_s, "finish_bytes": float(finished.peak_bytes)}
        found["parquet_bytes"] = sum(file.stat().st_size for file in run.glob("*/*.parquet"))
        found["samples_bytes"] = (run / "samples.jsonl").stat().st_size
        for name, code, options in (
            ("terminal", REPORT, ["--format", "terminal"]),
            ("html", REPORT, ["--format", "html"]),
            ("figure", _FIGURE, []),
        ):
            costs = [cost(code, run, *options, output=output) for _ in range(rounds)]
            inner = name == "figure"
            found[f"{name}_s"] = statistics.median(
                one.inner_s if inner else one.whole_s for one in costs
            )
            found[f"{name}_peak_bytes"] = max(one.peak_bytes for one in costs)
            found[f"{name}_bytes"] = output.stat().st_size
    return found


def _collecting_table(sizes: list[int], n_entries: int, rounds: int) -> Iterator[str]:
    yield (
        "| workers | records | messages | MB through the scheduler | its CPU s | collected s"
        " | client's CPU s | on disk s | empty logs s | client's peak MB | MB on disk |"
    )
    yield "|" + " ---: |" * 11
    for n_workers in sizes:
        found = collecting(n_workers, n_entries, rounds)
        yield _row(
            f"{n_workers:,}", f"{found['n_records']:,.0f}", f"{found['n_messages']:.0f}",
            found["scheduler_bytes"] / MB, found["scheduler_cpu_s"], found["collect_s"],
            found["client_cpu_s"], found["disk_s"], found["empty_s"],
            f"{found['peak_bytes'] / MB:.0f}", found["stored_bytes"] / MB,
        )  # fmt: skip


def _reporting_table(sizes: list[int], rounds: int) -> Iterator[str]:
    yield (
        "| workers | pairs | merging s | MB of Parquet | MB of lines"
        " | terminal s | peak MB | HTML s | peak MB | MB of HTML | figure of pairs s |"
    )
    yield "|" + " ---: |" * 11
    for n_workers in sizes:
        found = reporting(n_workers, rounds)
        yield _row(
            f"{n_workers:,}", f"{n_workers * min(n_workers - 1, N_ENTRIES):,}",
            found["finish_s"], found["parquet_bytes"] / MB,
            found["samples_bytes"] / MB, found["terminal_s"],
            f"{found['terminal_peak_bytes'] / MB:.0f}", found["html_s"],
            f"{found['html_peak_bytes'] / MB:.0f}", found["html_bytes"] / MB, found["figure_s"],
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

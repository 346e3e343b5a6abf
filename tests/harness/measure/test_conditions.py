"""The use of the cores during a launch: by the launch itself, and by others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import builders
import pytest
from launching import make_launch

from commbench.harness.measure import conditions
from commbench.machine import cores
from commbench.model import CoreUse

LAUNCH = make_launch(builders.case(), 3)
BURN = """
import time
input()
while time.process_time() < {}: pass
print("done", flush=True)
input()
"""


def burning(seconds: float) -> subprocess.Popen[str]:
    """Start a process that waits for a line, burns that much CPU time, says so, and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", BURN.format(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def burn(child: subprocess.Popen[str]) -> None:
    """Let the process burn its CPU time."""
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


def end(child: subprocess.Popen[str]) -> None:
    """Wait for the process to end, whose times the kernel has then."""
    child.communicate("\n")


def test_children_that_ended_count_for_the_launch(tag: object) -> None:
    records: list[CoreUse] = []
    with conditions.watched(LAUNCH, records.append):
        child = burning(0.5)
        burn(child)
        end(child)
    (use,) = records
    assert (use.case_id, use.launch) == (LAUNCH.case.id, 3)
    assert use.own_cpu_seconds >= 0.5
    # The kernel counts by ticks, of 10 ms at the most on each core.
    assert use.busy_cpu_seconds > use.own_cpu_seconds - 0.1
    assert use.seconds * use.n_cores >= use.busy_cpu_seconds - 0.1
    assert use.stolen_cpu_seconds >= 0


def test_other_processes_count_in_the_busy_time_alone(tag: object) -> None:
    records: list[CoreUse] = []
    child = burning(0.6)
    try:
        with conditions.watched(LAUNCH, records.append):
            burn(child)
    finally:
        end(child)
    (use,) = records
    assert use.busy_cpu_seconds - use.own_cpu_seconds > 0.3
    assert use.own_cpu_seconds < 0.3


def test_a_launch_that_fails_has_no_record(tag: object) -> None:
    # Its processes may live on, and their time would pass for that of others.
    records: list[CoreUse] = []
    with pytest.raises(ZeroDivisionError), conditions.watched(LAUNCH, records.append):
        raise ZeroDivisionError
    assert records == []


@pytest.mark.parametrize(
    "seen", [None, cores.Times(1.0, 0.0)], ids=["nothing", "a clock that stands"]
)
def test_no_record_where_the_kernel_hides_the_times(
    seen: cores.Times | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cores, "times", lambda _: seen)
    records: list[CoreUse] = []
    with conditions.watched(LAUNCH, records.append):
        pass
    assert records == []

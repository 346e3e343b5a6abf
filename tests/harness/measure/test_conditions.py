"""The use of the cores during a launch: by the launch itself, and by others."""

import contextlib
import subprocess
import sys

import builders
import pytest
from launching import make_launch

from commbench.harness.measure import conditions
from commbench.machine import cores

LAUNCH = make_launch(builders.case(), 3)
BURN = """
import time
input()
while time.process_time() < {}: pass
print("done", flush=True)
input()
"""


@contextlib.contextmanager
def burning(seconds):
    """Yield a function that uses that much CPU time in a process, which ends with the context."""
    with subprocess.Popen(
        [sys.executable, "-c", BURN.format(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as child:  # fmt: skip

        def burn():
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"

        try:
            yield burn
        finally:
            child.communicate("\n")


def test_children_that_ended_count_for_the_launch(tag):
    records = []
    with conditions.watched(LAUNCH, records.append), burning(0.5) as burn:
        burn()
    (use,) = records
    assert (use.case_id, use.launch) == (LAUNCH.case.id, 3)
    assert use.own_cpu_seconds >= 0.5
    # The kernel counts by ticks, of 10 ms at the most on each core.
    assert use.busy_cpu_seconds > use.own_cpu_seconds - 0.1
    assert use.seconds * use.n_cores >= use.busy_cpu_seconds - 0.1
    assert use.stolen_cpu_seconds >= 0


def test_other_processes_count_in_the_busy_time_alone(tag):
    records = []
    with burning(0.6) as burn, conditions.watched(LAUNCH, records.append):
        burn()
    (use,) = records
    assert use.busy_cpu_seconds - use.own_cpu_seconds > 0.3
    assert use.own_cpu_seconds < 0.3


def test_a_launch_that_fails_has_no_record(tag):
    # Its processes may live on, and their time would pass for that of others.
    records = []
    with pytest.raises(ZeroDivisionError), conditions.watched(LAUNCH, records.append):
        raise ZeroDivisionError
    assert records == []


@pytest.mark.parametrize(
    "seen", [None, cores.Times(1.0, 0.0)], ids=["nothing", "a clock that stands"]
)
def test_no_record_where_the_kernel_hides_the_times(seen, monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "times", lambda _: seen)
    records = []
    with conditions.watched(LAUNCH, records.append):
        pass
    assert records == []

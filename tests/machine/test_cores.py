import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commbench.machine import cores, environment

STAT = """\
cpu  1 1 1 1 1 1 1 1 0 0
cpu0 100 10 20 5000 7 3 4 50 9 9
cpu2 200 0 0 5000 0 0 0 0 0 0
cpu12 1000 0 0 0 0 0 0 900 0 0
intr 5 5
"""
SPIN = """
import sys, threading, time
def spin():
    while time.thread_time() < 0.1:
        pass
threads = [threading.Thread(target=spin) for _ in range(int(sys.argv[1]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(2):
    print(time.process_time(), flush=True)
    sys.stdin.readline()
"""
Child = subprocess.Popen[str]


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "stat").write_text(STAT)
    return tmp_path


def test_busy_and_stolen_seconds_are_summed_over_the_requested_cores(proc):
    # User, nice, system and interrupts are busy; idling and waiting for disks are not.
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert cores.times([0], proc) == pytest.approx((137 * tick_s, 50 * tick_s))
    assert cores.times({0, 2}, proc) == pytest.approx((337 * tick_s, 50 * tick_s))


@pytest.mark.parametrize(
    "text",
    [None, "", "cpu0 1 2 3\n", STAT.replace("cpu0", "cpu1")],
    ids=["no file", "empty", "too few numbers", "core off line"],
)
def test_times_are_unknown_where_the_kernel_does_not_count_them(text, tmp_path):
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert cores.times([0], tmp_path) is None


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ({"usable_cores": 8, "cgroup_quota_cores": "unlimited"}, 8),
        ({"usable_cores": 8, "cgroup_quota_cores": 2.5}, 2.5),
        ({"usable_cores": 8, "cgroup_quota_cores": None}, 8),
        ({}, None),
    ],
)
def test_usable_cores_are_the_tightest_known_limit(cpu, expected):
    assert cores.usable(cpu) == expected


def test_the_resolution_of_this_clock_is_plausible():
    assert 1e-9 <= environment.timer_resolution() < 1e-3


def test_the_resolution_is_the_step_between_different_readings(monkeypatch):
    readings = iter(range(10**6))
    monkeypatch.setattr(environment.time, "perf_counter", lambda: 0.01 * (next(readings) // 50))
    assert environment.timer_resolution() == pytest.approx(0.01)


def test_the_resolution_of_a_stopped_clock_is_the_documented_one(monkeypatch):
    monkeypatch.setattr(environment.time, "perf_counter", lambda: 1.0)
    documented = time.get_clock_info("perf_counter").resolution
    assert environment.timer_resolution() == documented


@pytest.fixture
def start():
    """Return a function that starts Python code in a process, which ends with the test."""
    children = []

    def start(code, *arguments):
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def process_times(children):
    """Return the sum of what the processes read from their clocks."""
    return sum(float(child.stdout.readline()) for child in children)


@pytest.mark.parametrize(("n_processes", "n_threads"), [(1, 3), (2, 1)])
def test_cpu_seconds_are_those_of_all_threads_of_all_processes(start, n_processes, n_threads):
    children = [start(SPIN, str(n_threads)) for _ in range(n_processes)]
    before = process_times(children)
    seconds = cores.cpu_seconds(child.pid for child in children)
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    assert 0.1 * n_processes * n_threads <= before <= seconds <= process_times(children)


def test_cpu_seconds_are_finer_than_a_clock_tick():
    # The ticks of /proc/PID/stat can't show a millisecond.
    used = []
    for _ in range(5):
        before = cores.cpu_seconds([os.getpid()])
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        used.append(cores.cpu_seconds([os.getpid()]) - before)
    assert all(seconds >= 0.001 for seconds in used)
    assert min(used) < 0.005


def test_a_process_that_has_ended_has_no_cpu_seconds(start):
    child = start("")
    child.communicate()
    assert cores.cpu_seconds([child.pid]) == 0.0
    assert cores.cpu_seconds([child.pid, os.getpid()]) > 0.0


def agrees(clock):
    """Return whether the clock has the waits of the calling thread."""
    here = threading.get_native_id()
    before_s, waited_s = cores.thread_seconds()[here][1], clock.seconds()
    return before_s <= waited_s <= cores.thread_seconds()[here][1]


def open_clocks():
    """Return how many files of waits are open: other threads open other files meanwhile."""
    links = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(file.readlink()))
    return sum(link.endswith("/schedstat") for link in links)


def test_each_thread_has_a_clock_of_its_waits_whose_file_ends_with_it():
    clock, n_before = cores.WaitClock(), open_clocks()
    with ThreadPoolExecutor(2) as executor:
        assert all(executor.map(agrees, [clock] * 4))
        assert open_clocks() > n_before
    assert agrees(clock)
    del clock
    gc.collect()
    assert open_clocks() == n_before

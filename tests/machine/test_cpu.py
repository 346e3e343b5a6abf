from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from commbench.machine import cores

SPIN = """
import sys, threading, time
def spin():
    while time.thread_time() < 0.4:
        pass
threads = [threading.Thread(target=spin) for _ in range(int(sys.argv[1]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(2):
    print(time.process_time(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start():
    """Return a function that starts Python code and ends it with the test."""
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


def told_before_and_after(children):
    """Return what `children` say of themselves, summed, around what is found of them."""
    before = sum(float(child.stdout.readline()) for child in children)
    found = cores.cpu_seconds(child.pid for child in children)
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    return before, found, sum(float(child.stdout.readline()) for child in children)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_all_threads_of_another_process_count(start, n_threads):
    """The CPU time of another process is what that process says of itself, all threads together."""
    before, found, after = told_before_and_after([start(SPIN, str(n_threads))])
    assert 0.4 * n_threads <= before <= found <= after


def test_several_processes_add_up(start):
    """The CPU times of several processes are summed."""
    before, found, after = told_before_and_after([start(SPIN, "1") for _ in range(2)])
    assert before <= found <= after


def test_the_own_process_counts_like_any_other():
    """The clock of this process is the one that ``time.process_time`` reads."""
    before = time.process_time()
    found = cores.cpu_seconds([os.getpid()])
    assert before <= found <= time.process_time()


def test_it_is_finer_than_the_clock_tick_of_proc():
    """Work of a millisecond is seen, which the ticks of /proc/PID/stat can't show."""
    found = []
    for _ in range(5):
        before = cores.cpu_seconds([os.getpid()])
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        found.append(cores.cpu_seconds([os.getpid()]) - before)
    assert all(seconds >= 0.001 for seconds in found)
    assert min(found) < 0.005


def test_a_sleeping_process_uses_nothing(start):
    """Time that a process sleeps does not count."""
    child = start("print(flush=True); import sys; sys.stdin.read()")
    child.stdout.readline()
    before, began = cores.cpu_seconds([child.pid]), time.monotonic()
    threading.Event().wait(0.5)
    assert cores.cpu_seconds([child.pid]) - before < 0.1 * (time.monotonic() - began)


def test_a_process_that_is_gone_counts_nothing(start):
    """A process id that nobody has any more is left out."""
    child = start("")
    child.communicate()
    assert cores.cpu_seconds([child.pid]) == 0.0
    assert cores.cpu_seconds([child.pid, os.getpid()]) > 0.0

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import processes
import pytest

from commbench.machine import process


@pytest.fixture
def watchers():
    """Return a function that returns the threads that watch a process since the test began."""
    before = set(threading.enumerate())
    return lambda: [t for t in {*threading.enumerate()} - before if t.name.startswith("watch ")]


@pytest.fixture(params=["pidfd", "thread"])
def ends(request, monkeypatch):
    """Learn of ends with this Python, and with one that was built for an old Linux."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.fixture
def sleeper(tag):
    """Return a function that starts a child that does nothing for long."""
    children = []

    def start(**options):
        children.append(subprocess.Popen(["sleep", "1000"], **options))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.usefixtures("ends")
def test_a_death_is_reported_with_the_end_of_the_log(deaths, sleeper, tmp_path):
    log = tmp_path / "worker-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    child = sleeper()
    process.watch("worker 0", child, log)
    child.kill()
    processes.until(lambda: deaths, "the report")
    (message,) = deaths
    first, *lines = message.splitlines()
    assert f"worker 0 (process {child.pid}) was killed by SIGKILL while it was needed" in first
    assert str(log) in first
    assert lines == [f"  line {number}" for number in range(18, 30)]


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("dead_already", [False, True])
def test_an_exit_with_status_0_is_a_death(deaths, tmp_path, dead_already):
    child = subprocess.Popen(["true"])
    if dead_already:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    process.watch("scheduler", child, tmp_path / "none.log")
    processes.until(lambda: deaths, "the report")
    message = f"scheduler (process {child.pid}) exited with status 0 while it was needed"
    assert deaths == [message]


def test_only_the_first_death_is_reported(deaths, sleeper, watchers, tmp_path):
    children = [sleeper() for _ in range(5)]
    for index, child in enumerate(children):
        process.watch(f"worker {index}", child, tmp_path / "none.log")
    for child in children:
        child.kill()
    processes.until(lambda: not watchers(), "all watchers end")
    assert len(deaths) == 1


@pytest.mark.usefixtures("ends")
def test_after_unwatch_no_death_is_reported(deaths, sleeper, watchers, tmp_path):
    child = sleeper()
    process.watch("worker 0", child, tmp_path / "none.log")
    process.unwatch()
    child.kill()
    child.wait()
    processes.until(lambda: not watchers(), "the watcher ends")
    assert deaths == []


def test_a_new_process_of_the_same_name_is_watched(deaths, sleeper, watchers, tmp_path):
    old, new = sleeper(), sleeper()
    process.watch("worker 0", old, tmp_path / "none.log")
    process.unwatch()
    process.watch("worker 0", new, tmp_path / "none.log")
    old.kill()
    processes.until(lambda: len(watchers()) == 1, "the watcher of the old one ends")
    assert deaths == []
    new.kill()
    processes.until(lambda: deaths, "the report")
    assert str(new.pid) in deaths[0]


def test_more_processes_than_select_can_watch(deaths, sleeper, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"this user may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        child = sleeper()
        process.watch("worker 500", child, tmp_path / "none.log")
        child.kill()
        processes.until(lambda: deaths, "the report")
    finally:
        for descriptor in fillers:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_error_waits_for_the_report_of_a_death(deaths, sleeper, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_NOTICE_SECONDS", 0.2)
    child = sleeper()
    process.watch("peer", child, tmp_path / "none.log")
    began = time.monotonic()
    process.await_death_report()
    assert time.monotonic() - began >= 0.2
    child.kill()
    processes.until(lambda: deaths, "the report")
    waiting = threading.Thread(target=process.await_death_report, daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    process.on_death(deaths.append)
    waiting.join(processes.PATIENCE_SECONDS)
    assert not waiting.is_alive()


def test_an_error_does_not_wait_where_nothing_is_watched(deaths, monkeypatch):
    monkeypatch.setattr(process, "_NOTICE_SECONDS", 1e6)
    process.await_death_report()


def test_the_callback_comes_when_the_parents_pipe_closes_and_not_before():
    read_end, write_end = os.pipe()
    called = threading.Event()
    process.watch_parent(read_end, called.set)
    os.write(write_end, b"still here\n")
    assert not called.wait(0.3)
    os.close(write_end)
    assert called.wait(processes.PATIENCE_SECONDS)
    os.close(read_end)


def test_the_kernel_ends_a_process_with_its_parent(tag):
    grandchild = (
        "from commbench.machine import process; process.die_with_parent(); print(flush=True);"
        "import time; time.sleep(1000)"
    )
    child = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True);"
        "time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
    with parent.stdout:
        assert parent.stdout.readline() == b"\n"
    assert len(tag.processes()) == 2
    parent.kill()
    parent.wait()
    processes.until(lambda: not tag.processes(), "the grandchild is gone")


def test_all_processes_with_the_mark_and_no_others_are_killed(sleeper):
    marks = ["a" * 32, "a" * 32, "b" * 32]
    children = [
        sleeper(env={**os.environ, process.MARK: mark}, start_new_session=True) for mark in marks
    ]
    children[1].send_signal(signal.SIGSTOP)
    processes.until(
        lambda: sorted(process.marked("a" * 32)) == sorted(child.pid for child in children[:2]),
        "both have the mark",
    )
    process.kill_marked("a" * 32)
    assert process.marked("a" * 32) == []
    assert [child.wait(processes.PATIENCE_SECONDS) for child in children[:2]] == [
        -signal.SIGKILL
    ] * 2
    assert children[2].poll() is None


def test_a_process_does_not_kill_itself_by_its_mark():
    code = (
        "import os; from commbench.machine import process;"
        "process.kill_marked(os.environ[process.MARK]); print('alive')"
    )
    environ = {**os.environ, process.MARK: "c" * 32}
    assert subprocess.check_output([sys.executable, "-c", code], env=environ) == b"alive\n"


def test_the_tail_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert process.tail(log) == ""
    log.write_bytes(b"")
    assert process.tail(log) == ""
    log.write_bytes(b"caf\xe9\n")
    assert process.tail(log).endswith("\n  caf\ufffd")


def test_the_tail_of_a_log_that_ends_in_an_exception_is_its_causes_and_itself(tmp_path):
    log = tmp_path / "log"
    lines = ["begin", "a.UnavailableError: no MPI", *["  in a file"] * 20, "RuntimeError: failed"]
    log.write_text("\n".join(lines))
    assert process.tail(log).split("\n  ")[1:] == [lines[1], lines[-1]]
    log.write_text("\n".join([*lines, "the end"]))
    assert process.tail(log).split("\n  ")[1:] == [lines[1], *lines[-11:], "the end"]


def test_an_exit_by_an_unknown_signal_has_its_number():
    assert process.describe_exit(-42) == "was killed by signal 42"

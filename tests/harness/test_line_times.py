import contextlib
import itertools
import json
import sysconfig
import threading
import time
from types import SimpleNamespace

import dask
import pytest

from commbench.harness import line_times
from commbench.harness.line_times import Libraries, LineSampler, LineTimes


@contextlib.contextmanager
def running():
    """Yield the number of a thread that waits in this file until the block ends."""
    leave = threading.Event()
    thread = threading.Thread(target=lambda: leave.wait(60))
    thread.start()
    try:
        yield thread.ident
    finally:
        leave.set()
        thread.join()


@pytest.fixture(autouse=True)
def _enabled():
    """Sample, as Dask does by default; clusters of other tests may still have disabled it."""
    with dask.config.set({"distributed.worker.profile.enabled": True}):
        yield


STDLIB = sysconfig.get_path("stdlib")
PACKAGES = "/env/lib/site-packages"
WAIT = ("threading", f"{STDLIB}/threading.py", 1)
SYNC = ("distributed.utils", f"{PACKAGES}/distributed/utils.py", 2)
EXECUTE = ("distributed.worker", f"{PACKAGES}/distributed/worker.py", 3)
USER = ("__main__", "/home/me/job.py", 7)
PANDAS = ("pandas.core.frame", f"{PACKAGES}/pandas/core/frame.py", 8)
READ = ("pandas.io", f"{PACKAGES}/pandas/io.py", 9)
DASK = ("dask.dataframe", f"{PACKAGES}/dask/dataframe.py", 10)
OURS = ("commbench.studies.profile", "/src/commbench/studies/profile.py", 11)
LOOP = ("asyncio.events", f"{STDLIB}/asyncio/events.py", 12)
POOL = ("concurrent.futures.thread", f"{STDLIB}/concurrent/futures/thread.py", 13)


@pytest.mark.parametrize(
    ("name", "stack", "line"),
    [
        ("f", [PANDAS, USER, PANDAS, DASK, EXECUTE, POOL], ("task", "f", USER[1], 7, "")),
        # Without a line of the user's, it is what Dask calls, and not what called Dask.
        ("f", [PANDAS, READ, DASK, EXECUTE, POOL], ("task", "f", "", 0, "pandas.io.f")),
        ("f", [DASK, EXECUTE, POOL], ("task", "f", "", 0, "")),
        # A task that waits for other tasks does nothing, and one that waits for a lock is long.
        ("f", [WAIT, SYNC, USER, EXECUTE], None),
        ("f", [WAIT, USER, EXECUTE], ("task", "f", USER[1], 7, "")),
        ("", [WAIT, SYNC, DASK, USER], ("wait", "", USER[1], 7, "")),
        # The user's locks and other threads are no waits for the cluster, nor are Dask's.
        ("", [WAIT, USER], ("blocked", "", USER[1], 7, "")),
        ("", [POOL, USER], ("blocked", "", USER[1], 7, "")),
        ("", [WAIT, DASK, USER], ("blocked", "", USER[1], 7, "")),
        ("", [SYNC, DASK, USER], ("graph", "", USER[1], 7, "")),
        ("", [PANDAS, DASK, USER], ("graph", "", USER[1], 7, "")),
        ("", [PANDAS, USER], ("script", "", USER[1], 7, "")),
        ("", [USER, DASK, USER], ("script", "", USER[1], 7, "")),
        ("", [WAIT, OURS, USER], None),
        ("", [PANDAS, LOOP, USER], None),
        ("", [WAIT, POOL], None),
    ],
)
def test_the_line_is_the_innermost_of_the_users_code(name, stack, line):
    assert line_times._line([(*frame, "f") for frame in stack], name, Libraries()) == line


@pytest.mark.parametrize(
    ("file", "is_library"),
    [
        (json.__file__, True),
        (f"{PACKAGES}/x.py", True),
        ("/usr/lib/python3/dist-packages/x.py", True),
        ("<frozen importlib._bootstrap>", True),
        ("<attrs generated init x>", True),
        ("/home/me/job.py", False),
        (__file__, False),
        # Methods of data classes, for example.
        ("<string>", True),
        ("<python-input-0>", False),
        ("<stdin>", False),
        ("<ipython-input-1>", False),
    ],
)
def test_files_of_python_and_installed_packages_are_libraries(file, is_library):
    libraries = Libraries()
    assert [file in libraries, file in libraries] == [is_library] * 2


def test_files_in_a_folder_that_is_gone_are_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert "job.py" not in Libraries()
    assert "a\0b" not in Libraries()


@contextlib.contextmanager
def sampling():
    """Wait at the end of the block until its sampling threads have ended."""
    before = {*threading.enumerate()}
    yield
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
        assert not thread.is_alive()


def test_times_are_those_of_the_threads_that_are_named():
    with running() as thread, running() as other, sampling():
        names = {thread: "f"}
        began = time.perf_counter()
        times = LineTimes(lambda: names)
        time.sleep(0.5)
        ((role, name, file, _, _), first_s), *rest = times.take()
        elapsed_s = time.perf_counter() - began
        assert (role, name, file, rest) == ("task", "f", __file__, [])
        assert 0 < first_s <= elapsed_s
        names[other] = "g"
        time.sleep(0.2)
        times.stop()
    assert {line[1] for line, _ in times.take()} == {"f", "g"}
    assert times.take() == []


def test_seconds_are_those_of_the_wall_clock():
    with running() as thread, sampling():
        times = LineTimes(lambda: {thread: "f"})
        began = time.perf_counter()
        sum(i * i for i in range(5_000_000))
        elapsed_s = time.perf_counter() - began
        ((_, seconds),) = times.take()
        times.stop()
    # Samples that are late count for more.
    assert seconds >= elapsed_s


def test_nothing_is_sampled_where_dasks_profiler_is_disabled():
    with dask.config.set({"distributed.worker.profile.enabled": False}), sampling():
        before = threading.active_count()
        times = LineTimes(lambda: {threading.main_thread().ident: "f"})
        assert threading.active_count() == before
        assert times.take() == []


def test_threads_that_have_ended_are_left_out():
    with sampling():
        times = LineTimes(lambda: {-1: "f"})
        time.sleep(0.1)
        times.stop()
    assert times.take() == []


def test_slow_samples_are_rarer():
    calls = []

    def threads():
        calls.append(0)
        spent_s = time.thread_time()
        while time.thread_time() < spent_s + 0.01:
            pass
        return {}

    # Each takes half of the time until the next one.
    with sampling():
        times = LineTimes(threads)
        time.sleep(1.0)
        times.stop()
    assert len(calls) < 5


def test_samples_go_on_after_an_error():
    calls = itertools.count()

    def threads():
        if not next(calls):
            raise RuntimeError
        return {threading.main_thread().ident: "f"}

    with sampling():
        times = LineTimes(threads)
        time.sleep(0.2)
        times.stop()
    assert times.take()


def test_samples_end_with_the_plugin():
    worker = SimpleNamespace(active_threads_lock=threading.Lock(), active_threads={}, plugins={})
    assert line_times.take(worker) == []
    sampler = worker.plugins[LineSampler.name] = LineSampler()
    with running() as thread, sampling():
        sampler.setup(worker)
        worker.active_threads[thread] = ("sum-0123456789abcdef", 1)
        time.sleep(0.3)
        sampler.teardown(worker)
    ((line, _),) = line_times.take(worker)
    assert line[:2] == ("task", "sum")

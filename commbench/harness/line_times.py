"""Sample the lines of code that tasks and a user's script execute.

Dask's profiler has functions instead of lines, in bins of a second. A thread that samples waits for
the GIL; each sample counts for the time since the one before, so that this loses nothing. Where
Dask's profiler is disabled, nothing is sampled: it reads frames of other threads in the same way,
which has crashed some versions of Python.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
from distributed.diagnostics.plugin import WorkerPlugin

_INTERVAL_S = 0.02
_MAX_INTERVAL_S = 1.0
_MAX_COST = 0.02
"""The share of a core that sampling takes, at most, unless it is slower than `_MAX_INTERVAL_S`."""
_MOST = 300
"""The lines of a process and region that are recorded: those with the longest times."""
_PACKAGES = ("site-packages", "dist-packages")
_DASK = ("dask", "distributed", "tlz", "toolz", "cytoolz", "contextlib")
_WAITS = ("threading", "queue", "concurrent", "joblib", "selectors")
"""Packages whose innermost frames wait for other threads."""
_OTHERS = ("commbench", "asyncio")
"""Packages whose work below a script's line is not the script's."""
_TYPED = ("<stdin>", "<ipython", "<python-input")
"""The files of what is typed; those of generated code look alike."""

Line = tuple[str, str, str, int, str]
"""The role, as in `LineTime`; the task's name; the file and line, or a library's function."""


class Libraries:
    """The files of Python and of installed packages, in this process."""

    def __init__(self) -> None:
        folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
        self._folders = tuple({f"{os.path.realpath(each)}{os.sep}" for each in folders})
        self._known: dict[str, bool] = {}

    def __contains__(self, file: str) -> bool:
        if file not in self._known:
            self._known[file] = self._has(file)
        return self._known[file]

    def _has(self, file: str) -> bool:
        if file.startswith("<"):
            return not file.startswith(_TYPED)
        if any(name in Path(file).parts for name in _PACKAGES):
            return True
        # The working directory may be gone, and a name may be any.
        with suppress(OSError, ValueError):
            return os.path.realpath(file).startswith(self._folders)
        return False


class LineTimes:
    """Samples threads of this process, until it is stopped.

    Parameters
    ----------
    threads
        Returns the name of what each thread does, by the thread's number.
    """

    def __init__(self, threads: Callable[[], Mapping[int, str]]) -> None:
        self._threads, self._libraries = threads, Libraries()
        self._seconds: dict[Line, float] = {}
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._last = time.perf_counter()
        if dask.config.get("distributed.worker.profile.enabled", True):
            threading.Thread(target=self._run, name="commbench-lines", daemon=True).start()
        else:
            self._threads = dict

    def stop(self) -> None:
        """End; `take` samples once more."""
        self._stopped.set()

    def take(self) -> list[tuple[Line, float]]:
        """Return the seconds since the last call, by line; the longest times first."""
        self._sample()
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return sorted(seconds.items(), key=lambda item: -item[1])[:_MOST]

    def _run(self) -> None:
        interval_s = _INTERVAL_S
        while not self._stopped.wait(interval_s):
            began_s = time.thread_time()
            self._sample()
            cost_s = time.thread_time() - began_s
            interval_s = min(max(_INTERVAL_S, cost_s / _MAX_COST), _MAX_INTERVAL_S)

    def _sample(self) -> None:
        # Code may have any names, and an interpreter that ends has no modules.
        with self._lock, suppress(Exception):
            now, last = time.perf_counter(), self._last
            self._last = now
            for thread, name in self._threads().items():
                if line := _line(_stack(thread), name, self._libraries):
                    self._seconds[line] = self._seconds.get(line, 0.0) + now - last


def _stack(thread: int) -> list[tuple[str, str, int, str]]:
    """Return the module, file, line and function of a thread's frames, the innermost first.

    Frames are let go before anything else is done: they keep what their variables refer to, and
    other threads may release these buffers.
    """
    stack, frame = list[tuple[str, str, int, str]](), sys._current_frames().get(thread)
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        stack.append((str(module), code.co_filename, frame.f_lineno or 0, code.co_qualname))
        frame = frame.f_back
    return stack


def _line(stack: list[tuple[str, str, int, str]], name: str, libraries: Libraries) -> Line | None:
    """Return what a thread does: the innermost line that is no library's.

    It is None if a script's thread works for commbench, or an event loop for Dask, and if a task
    waits for other tasks.
    """
    packages, function = list[str](), ""
    for module, file, number, qualname in stack:
        package = module.partition(".")[0]
        if module == "distributed.worker":
            break
        if package in _OTHERS and not name:
            return None
        if package not in _DASK and file not in libraries:
            role = _role(packages, is_task=bool(name))
            return (role, name, file, number, "") if role else None
        packages.append(package)
        if package not in _DASK:
            function = f"{module}.{qualname}"
    return ("task", name, "", 0, function) if name and stack else None


def _role(packages: list[str], *, is_task: bool) -> str:
    """Return the role of a line that calls these packages, the innermost first; "" if none."""
    waits = packages[:1] and packages[0] in _WAITS
    if waits and "distributed" in packages:
        return "" if is_task else "wait"
    if is_task:
        return "task"
    if waits:
        return "blocked"
    return "graph" if {"dask", "distributed"}.intersection(packages) else "script"


class LineSampler(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that samples the tasks of the worker."""

    name = "commbench-line-sampler"

    def setup(self, worker: Any) -> None:
        """Begin to sample the task threads of `worker`."""
        from dask.utils import key_split

        def threads() -> dict[int, str]:
            with worker.active_threads_lock:
                return {thread: key_split(key) for thread, key in worker.active_threads.items()}

        self.times = LineTimes(threads)

    def teardown(self, worker: Any) -> None:
        """Stop sampling."""
        del worker
        self.times.stop()


def take(dask_worker: Any) -> list[tuple[Line, float]]:
    """Return the seconds of lines since the last call; runs on a worker."""
    sampler = dask_worker.plugins.get(LineSampler.name)
    return [] if sampler is None else sampler.times.take()

"""Sample the lines of code that tasks and a user's script execute.

Dask's profiler has functions instead of lines, in bins of a second. A thread that samples waits for
the GIL; each sample counts for the time since the one before, so that this loses nothing.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

_INTERVAL_S = 0.02
_MAX_COST = 0.02
"""The share of a core that sampling takes, at most."""
_MOST = 1000
"""The lines of a process and region that are recorded: those with the longest times."""
_PACKAGES = ("site-packages", "dist-packages")
_DASK = ("dask", "distributed", "tlz", "toolz", "cytoolz", "contextlib")
_WAITS = ("threading", "queue")
"""Modules in which Dask waits for its event loop."""
_OTHERS = ("commbench", "asyncio")
"""Packages whose work below a script's line is not the script's."""
_NAMED_INPUT = ("<stdin>", "<string>", "<ipython")

Line = tuple[str, str, str, int, str]
"""``task``, ``script`` or ``wait``; the task's name; the file and line, or a library's function."""


class Libraries:
    """The files of Python and of installed packages, in this process."""

    def __init__(self) -> None:
        folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
        self._folders = tuple({f"{os.path.realpath(each)}{os.sep}" for each in folders})
        self._known: dict[str, bool] = {}

    def __contains__(self, file: str) -> bool:
        if file not in self._known:
            is_generated = file.startswith("<") and not file.startswith(_NAMED_INPUT)
            is_installed = any(name in Path(file).parts for name in _PACKAGES)
            path = os.path.realpath(file)
            self._known[file] = is_generated or is_installed or path.startswith(self._folders)
        return self._known[file]


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
        threading.Thread(target=self._sample, name="commbench-lines", daemon=True).start()

    def stop(self) -> None:
        """End with a last sample."""
        self._stopped.set()

    def take(self) -> list[tuple[Line, float]]:
        """Return the seconds since the last call, by line; the longest times first."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return sorted(seconds.items(), key=lambda item: -item[1])[:_MOST]

    def _sample(self) -> None:
        is_last, interval_s = False, _INTERVAL_S
        while not is_last:
            is_last, now = self._stopped.wait(interval_s), time.perf_counter()
            names = self._threads()
            frames = sys._current_frames() if names else {}
            lines = [
                _line(frames[thread], name, self._libraries)
                for thread, name in names.items()
                if thread in frames
            ]
            # Frames keep what their variables refer to.
            del frames
            with self._lock:
                for line in filter(None, lines):
                    self._seconds[line] = self._seconds.get(line, 0.0) + now - self._last
            self._last = now
            interval_s = max(_INTERVAL_S, (time.perf_counter() - now) / _MAX_COST)


def _line(frame: Any, name: str, libraries: Libraries) -> Line | None:
    """Return what a thread does: the innermost line that is no library's.

    It is None if a script's thread works for commbench, or an event loop for Dask.
    """
    may_wait = frame.f_globals.get("__name__") in _WAITS
    is_dask, function = False, ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if module == "distributed.worker":
            break
        if package in _OTHERS and not name:
            return None
        if package in _DASK:
            is_dask = True
        elif frame.f_code.co_filename not in libraries:
            role = "task" if name else "wait" if may_wait and is_dask else "script"
            return role, name, frame.f_code.co_filename, frame.f_lineno or 0, ""
        else:
            function = f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ("task", name, "", 0, function) if name else None


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

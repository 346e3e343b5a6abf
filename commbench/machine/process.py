"""Watch processes for their death, and kill all processes of a launch.

A launch depends on all its processes, and on the orchestrator that started it. A thread per process
sleeps until the kernel reports its end, which costs nothing and is noticed at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from commbench.machine import cores

MARK = "COMMBENCH_LAUNCH"
"""An environment variable that identifies all processes of a launch."""

CPUS = "COMMBENCH_CPUS"
"""An environment variable with the CPUs to bind a worker to, in the kernel's list format."""

FORWARDED = "COMMBENCH_FORWARDED"
"""An environment variable with prefixes, comma-separated: the variables that the backend needs in
processes on other hosts.
"""

_LOG_TAIL_LINES = 12
_MAX_CAUSES = 3
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception): ")
"""The last line of a traceback."""
_NOTICE_SECONDS = 1.0
GONE_SECONDS = 10.0
# malloc.h
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 128 * 1024
_MAX_INT = 2**31 - 1
_MALLOC_OPTIONS = {
    "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_MMAP_MAX_": -4, "MALLOC_PERTURB_": -6, "MALLOC_ARENA_TEST": -7, "MALLOC_ARENA_MAX": -8,
}  # fmt: skip
# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

# No process has this id.
_REMOTE = 0


class Child(Protocol):
    """A child of this process; ``subprocess.Popen`` is one."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None if the process is running."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit status."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to the process if it is running."""


_on_death: Callable[[str], None] | None = None
_reported = False
_watched: dict[str, int] = {}
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


def on_death(report: Callable[[str], None]) -> None:
    """Call `report` with a message, from a thread, when the first watched process dies.

    It should end this process: later deaths are not reported.
    """
    global _on_death, _reported
    _on_death, _reported = report, False


def watch(name: str, child: Child, log: Path) -> None:
    """Report the death of `child` with the end of its `log`, until ``unwatch`` is called."""
    descriptor = open_end(child.pid)
    with _lock:
        _watched[name] = child.pid

    def wait() -> None:
        await_end(descriptor)
        _report(
            name,
            child.pid,
            lambda: (
                f"{name} (process {child.pid}) {describe_exit(child.wait())} while it was needed"
                + tail(log)
            ),
        )

    threading.Thread(target=wait, name=f"watch {name}", daemon=True).start()


def open_end(pid: int) -> int:
    """Return a descriptor that becomes readable when a child has ended.

    Python has no ``os.pidfd_open`` if it was built for Linux before 5.3, as conda's. Then a thread
    waits for the child.
    """
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    descriptor, end = os.pipe()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # Processes that are forked meanwhile have the pipe, too: it does not close.
        with contextlib.suppress(BrokenPipeError):
            os.write(end, b"\0")
        os.close(end)

    threading.Thread(target=wait, name=f"end of {pid}", daemon=True).start()
    return descriptor


def await_end(descriptor: int, timeout_s: float | None = None) -> None:
    """Wait until a process has ended, at most `timeout_s`, and close what ``open_end`` returned."""
    try:
        gone = select.poll()
        gone.register(descriptor, select.POLLIN)
        gone.poll(None if timeout_s is None else timeout_s * 1000)
    finally:
        os.close(descriptor)


def watch_remote(name: str) -> None:
    """Watch `name`, which is no child of this process; see ``report_death``."""
    with _lock:
        _watched[name] = _REMOTE


def report_death(name: str, message: str) -> None:
    """Report that `name`, given to ``watch_remote``, has died, until ``unwatch`` is called."""
    _report(name, _REMOTE, lambda: message)


def _report(name: str, pid: int, message: Callable[[], str]) -> None:
    global _reported
    with _lock:
        expected = _reported or _watched.get(name) != pid
        _reported = _reported or not expected
    if not expected and _on_death is not None:
        _on_death(message())


def unwatch() -> None:
    """Stop reporting deaths, because processes are about to be ended."""
    with _lock:
        _watched.clear()


def at_end(undo: Callable[[], None]) -> None:
    """Call `undo` before this process kills itself, to end what it has started on other hosts.

    If several threads end the process, each calls it, so `undo` must return only when it is done.
    """
    _undo.append(undo)


def undo_all() -> None:
    """Call the functions given to ``at_end``; their exceptions are ignored."""
    for undo in reversed(_undo):
        with contextlib.suppress(Exception):
            undo()


def await_death_report() -> None:
    """Wait after an error until a death, which may have caused it, would have been reported.

    The kernel closes the sockets of a dying process before it reports its end. So its peers see a
    closed connection first, which does not explain the error. If a death is reported, this does
    not return, because the report ends the process.
    """
    if _watched:
        time.sleep(_NOTICE_SECONDS)
    while _reported and _on_death is not None:
        time.sleep(_NOTICE_SECONDS)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def rename(name: str) -> None:
    """Set the name of this process that tools such as ``ps`` show; the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def configure_allocator(names: Collection[str]) -> None:
    """Let variables of glibc's allocator that are new have the effect they have at a start.

    It does nothing with other C libraries, which don't read them.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    tuned = set(re.findall(r"glibc\.malloc\.(\w+)=", tunables))
    given = {
        option: min(int(os.environ[name]), _MAX_INT)
        for name, option in _MALLOC_OPTIONS.items()
        if name in names and os.environ[name].isdecimal()
        and name.removeprefix("MALLOC_").rstrip("_").lower() not in tuned
    }  # fmt: skip
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if not given or mallopt is None:
        return
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ and "mmap_threshold" not in tuned:
        # glibc raises it as memory is freed, until an option is set.
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    for option, value in given.items():
        mallopt(option, value)


def bind() -> None:
    """Bind this process, before it starts threads, to the CPUs in ``COMMBENCH_CPUS``, if set."""
    if numbers := cores.parse(os.environ.get(CPUS, "")):
        os.sched_setaffinity(0, numbers)


def marked(mark: str) -> list[int]:
    """Return the ids of the other processes whose environment has `mark`."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                pids.append(int(environ.parent.name))
    return [pid for pid in pids if pid != os.getpid()]


def kill_marked(mark: str) -> list[int]:
    """Kill all processes with `mark`, in any session; return those that don't end in 10 s."""
    deadline = time.monotonic() + GONE_SECONDS
    while (survivors := marked(mark)) and time.monotonic() < deadline:
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return survivors


def watch_parent(descriptor: int, then: Callable[[], None]) -> None:
    """Call `then`, from a thread, when the other end of the pipe `descriptor` is closed."""

    def wait() -> None:
        while os.read(descriptor, 4096):
            pass
        then()

    threading.Thread(target=wait, name="watch parent", daemon=True).start()


def describe_exit(status: int) -> str:
    """Return a description of the exit status `status` of ``Popen``.

    Examples
    --------
    >>> describe_exit(-9), describe_exit(3), describe_exit(0)
    ('was killed by SIGKILL', 'exited with status 3', 'exited with status 0')
    """
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def tail(log: Path) -> str:
    """Return the last lines of `log` for an error message, or "" if there are none.

    Exceptions before them come first. If one is the last line, the frames are left out.
    """
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    ends_in_exception = bool(lines) and _EXCEPTION.match(lines[-1])
    n_whole = 1 if ends_in_exception else _LOG_TAIL_LINES
    causes = [line for line in lines[:-n_whole] if _EXCEPTION.match(line)]
    shown = [*causes[-_MAX_CAUSES:], *lines[-n_whole:]]
    return f"; its last words ({log}):\n  " + "\n  ".join(shown) if shown else ""

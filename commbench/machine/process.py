"""Notice at once, and at no cost, that a process died, and leave none behind.

A launch depends on all its processes, and on the orchestrator that started it. Where one of them
goes, waiting for a result is in vain: the kernel tells a sleeping thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from commbench.machine import cores

MARK = "COMMBENCH_LAUNCH"
"""An environment variable that every process of a launch carries, so that none is missed."""

CPUS = "COMMBENCH_CPUS"
"""An environment variable with the CPUs that a worker is bound to, as the kernel lists them."""

FORWARDED = "COMMBENCH_FORWARDED"
"""An environment variable with what the names of others begin with, comma-separated, that processes
on other hosts are to have for the sake of the backend.
"""

_LOG_TAIL_LINES = 12
_NOTICE_SECONDS = 1.0
_GONE_SECONDS = 10.0
# linux/prctl.h
_PR_SET_PDEATHSIG = 1

# No process has this id.
_ELSEWHERE = 0

_on_death: Callable[[str], None] | None = None
_told = False
_watched: dict[str, int] = {}
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


def on_death(report: Callable[[str], None]) -> None:
    """Call `report`, with a message, from a thread, when the first watched process dies.

    It is expected to end this process: the deaths that follow are not told.
    """
    global _on_death, _told
    _on_death, _told = report, False


def watch(name: str, child: subprocess.Popen[bytes], log: Path) -> None:
    """Report the death of `child`, with the end of its `log`, unless ``unwatch`` came first."""
    descriptor = os.pidfd_open(child.pid)
    with _lock:
        _watched[name] = child.pid

    def wait() -> None:
        try:
            gone = select.poll()
            gone.register(descriptor, select.POLLIN)
            gone.poll()
        finally:
            os.close(descriptor)
        _tell(
            name,
            child.pid,
            lambda: (
                f"{name} (process {child.pid}) {describe_exit(child.wait())} while it was needed"
                + tail(log)
            ),
        )

    threading.Thread(target=wait, name=f"watch {name}", daemon=True).start()


def expect_life(name: str) -> None:
    """Take the death of `name`, which is no child of this process, as one to be told."""
    with _lock:
        _watched[name] = _ELSEWHERE


def tell_death(name: str, message: str) -> None:
    """Report with `message` that `name` died, unless ``unwatch`` came first."""
    _tell(name, _ELSEWHERE, lambda: message)


def _tell(name: str, pid: int, message: Callable[[], str]) -> None:
    global _told
    with _lock:
        expected = _told or _watched.get(name) != pid
        _told = _told or not expected
    if not expected and _on_death is not None:
        _on_death(message())


def unwatch() -> None:
    """Take the death of every process from here on as intended."""
    with _lock:
        _watched.clear()


def at_end(undo: Callable[[], None]) -> None:
    """Call `undo` before this process has to end itself: what it started is on other hosts.

    Where several threads end the process, each calls it, and none may go on before all is undone.
    """
    _undo.append(undo)


def undo_all() -> None:
    """Call what ``at_end`` was given, and let none of it keep the end from coming."""
    for undo in reversed(_undo):
        with contextlib.suppress(Exception):
            undo()


def let_deaths_be_told() -> None:
    """Where something went wrong, wait as long as it takes to be told that a process died.

    The kernel closes the sockets of a dying process before it tells of its end: whoever talked to
    it learns of a closed connection first, which explains nothing. Where a death is told, this
    does not return, since the report ends the process.
    """
    if _watched:
        time.sleep(_NOTICE_SECONDS)
    while _told and _on_death is not None:
        time.sleep(_NOTICE_SECONDS)


def die_with_parent() -> None:
    """Make the kernel kill this process as soon as the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def bind() -> None:
    """Keep this process, which has one thread yet, to the CPUs in ``COMMBENCH_CPUS``, if any."""
    if numbers := cores.parse(os.environ.get(CPUS, "")):
        os.sched_setaffinity(0, numbers)


def marked(mark: str) -> list[int]:
    """Return the ids of the living processes, but this one, whose environment carries `mark`."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environ.read_bytes().split(b"\0"):
                pids.append(int(environ.parent.name))
    return [pid for pid in pids if pid != os.getpid()]


def kill_marked(mark: str) -> None:
    """Kill whoever carries `mark`, in whatever session, and wait until they are gone."""
    deadline = time.monotonic() + _GONE_SECONDS
    while (survivors := marked(mark)) and time.monotonic() < deadline:
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def watch_parent(descriptor: int, then: Callable[[], None]) -> None:
    """Call `then`, from a thread, when the other end of the pipe `descriptor` is closed."""

    def wait() -> None:
        while os.read(descriptor, 4096):
            pass
        then()

    threading.Thread(target=wait, name="watch parent", daemon=True).start()


def describe_exit(status: int) -> str:
    """Return in words how a process with the exit status `status` of ``Popen`` ended.

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
    """Return the last lines of `log`, introduced, or nothing where there are none."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    except OSError:
        return ""
    return f"; its last words ({log}):\n  " + "\n  ".join(lines) if lines else ""

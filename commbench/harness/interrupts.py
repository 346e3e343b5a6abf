"""Ctrl-C, SIGTERM and SIGHUP: the first stops a run cleanly, and further ones are ignored."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

STATUS = 130
"""The exit status of a command that was interrupted."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAVE_SECONDS = 10.0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of the signals, and ignore all others.

    Signals that are already ignored, as with ``nohup``, stay ignored. Only the main thread gets
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: handler
        for number in _SIGNALS
        # A handler that C has set is None, and could not be set again.
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }

    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP where these would end the process at once.

    Further ones are ignored for ten seconds, and all after a call of the function that this yields.
    Children that are forked meanwhile end at once, as without this.
    """
    is_main, begins_at_s = threading.current_thread() is threading.main_thread(), 0.0

    def interrupt(*_: Any) -> None:
        nonlocal begins_at_s
        if time.monotonic() >= begins_at_s:
            begins_at_s = time.monotonic() + _SAVE_SECONDS
            raise KeyboardInterrupt

    def ignore_all() -> None:
        nonlocal begins_at_s
        begins_at_s = math.inf

    def restore() -> None:
        for number in numbers:
            # The block may have set its own.
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_DFL)

    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if is_main and signal.getsignal(number) is signal.SIG_DFL
    ]
    os.register_at_fork(after_in_child=restore)
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield ignore_all
    finally:
        restore()


def ignore() -> None:
    """Ignore the signals, so that a short operation is not interrupted."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            # With SIG_IGN Python would print an error for a pending signal.
            signal.signal(number, lambda *_: None)


@contextlib.contextmanager
def none_lost() -> Iterator[None]:
    """Send SIGINT again if Python prints a KeyboardInterrupt instead of raising it.

    This happens, for example, in the callback of a weak reference.
    """
    before = sys.unraisablehook

    def send_again(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.signal(signal.SIGINT, _interrupt)
            arguments = (threading.get_ident(), signal.SIGINT)
            threading.Timer(0.01, signal.pthread_kill, arguments).start()
        else:
            before(unraisable)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt(*_: Any) -> None:
    ignore()
    raise KeyboardInterrupt

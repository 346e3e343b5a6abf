"""Ctrl-C, SIGTERM and SIGHUP: the first ends a run in good order, and no other disturbs that."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of the signals, and ignore all others until the end.

    What is ignored already, as under ``nohup``, stays so.
    """
    before = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore the signals, for whatever comes next is short and must not be left half done."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            # SIG_IGN would have Python complain of a signal that has come but is not handled yet.
            signal.signal(number, _do_nothing)


@contextlib.contextmanager
def none_lost() -> Iterator[None]:
    """Interrupt once more where Python can't raise KeyboardInterrupt, and would print it and go on.

    Such as in the callback of a weak reference.
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


def _do_nothing(*_: Any) -> None:
    pass

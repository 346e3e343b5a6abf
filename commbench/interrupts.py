"""Ctrl-C, SIGTERM and SIGHUP: the first ends a run in good order, and no other disturbs that."""

from __future__ import annotations

import contextlib
import signal
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

    def interrupt(*_: Any) -> None:
        ignore()
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, interrupt)
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


def _do_nothing(*_: Any) -> None:
    pass

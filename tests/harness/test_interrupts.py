from __future__ import annotations

import signal
import time
import weakref

import pytest

from commbench.harness import interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _restored():
    """Begin with the handlers of a new process, also under nohup, and leave what there was."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_interrupts_and_the_others_do_nothing(number):
    """What cleans up after the first is not interrupted; later all is as it was before."""
    before = [signal.getsignal(each) for each in SIGNALS]
    interrupted = cleaned = False
    try:
        with interrupts.interruptible():
            try:
                signal.raise_signal(number)
            finally:
                for each in SIGNALS:
                    signal.raise_signal(each)
                cleaned = True
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert cleaned
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_no_interrupt_is_lost_where_python_cannot_raise_it(capsys):
    """It comes a moment later, and nothing is printed about it."""

    class Referred:
        pass

    referred, interrupted = Referred(), False
    reference = weakref.ref(referred, lambda _: signal.raise_signal(signal.SIGINT))
    try:
        with interrupts.none_lost(), interrupts.interruptible():
            del referred
            assert reference() is None
            time.sleep(60)
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert capsys.readouterr() == ("", "")


def test_what_nohup_ignores_stays_ignored():
    """A run under nohup outlives the terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupts.interruptible():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_ignored_signals_do_nothing():
    """From here on none of them ends the process or raises."""
    interrupts.ignore()
    for number in SIGNALS:
        signal.raise_signal(number)

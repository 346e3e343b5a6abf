import os
import signal
import time
import weakref

import pytest

from commbench.harness import interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def default_handlers():
    """Begin with the handlers of a new process, and restore those of pytest."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_after_the_first_do_not_interrupt_the_cleanup(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    cleaned = False
    try:
        with interrupts.interruptible():
            try:
                signal.raise_signal(number)
            finally:
                for each in SIGNALS:
                    signal.raise_signal(each)
                cleaned = True
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert cleaned
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_an_interrupt_within_a_finalizer_is_raised_later_and_silently(capsys):
    class Referent:
        pass

    referent = Referent()
    reference = weakref.ref(referent, lambda _: signal.raise_signal(signal.SIGINT))
    try:
        with interrupts.none_lost(), interrupts.interruptible():
            del referent
            assert reference() is None
            time.sleep(60)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert capsys.readouterr() == ("", "")


def test_a_signal_that_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupts.interruptible():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    with interrupts.terminated_as_interrupted():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_handler_that_a_c_library_has_set_stays(monkeypatch):
    # Python has no object for it, which signal.signal would take.
    get = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == signal.SIGTERM else get(n))
    before = get(signal.SIGTERM)
    with interrupts.interruptible():
        assert get(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.filterwarnings("ignore:.* is multi-threaded, use of fork:DeprecationWarning")
def test_a_script_is_interrupted_once_by_what_would_end_it(number):
    interrupted = 0
    with interrupts.terminated_as_interrupted() as ignore_all:
        if not (child := os.fork()):
            # It ends as by itself.
            try:
                signal.raise_signal(number)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
        # A terminal that is closed sends several.
        for _ in range(3):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                interrupted += 1
        ignore_all()
        signal.raise_signal(number)
    assert interrupted == 1
    assert signal.getsignal(number) is signal.SIG_DFL

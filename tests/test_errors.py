"""Errors say what is wrong, what is known and what to do."""

import pickle

import pytest

from commbench.errors import UnavailableError, UnknownNameError, VerificationError


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("tcpp", ["ucx", "tcp"], "unknown x 'tcpp' (did you mean 'tcp'?); known: tcp, ucx"),
        ("zzz", ["ucx", "tcp"], "unknown x 'zzz'; known: tcp, ucx"),
        ("a", [], "unknown x 'a'; known: none"),
        ("", ["tcp"], "unknown x ''; known: tcp"),
    ],
)
def test_unknown_name_is_answered_with_the_known_and_the_nearest(name, known, message):
    assert str(UnknownNameError("x", name, iter(known))) == message


@pytest.mark.parametrize(
    "error",
    [
        VerificationError("expected 1, got 2"),
        UnknownNameError("workload", "merg", ["merge"]),
        UnavailableError("backend ucx", "ucxx is missing", "pip install ucxx"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)

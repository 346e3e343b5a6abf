"""Errors say what is wrong, what is known and what to do."""

import pickle

import pytest

from commbench import errors
from commbench.errors import CommbenchError, UnavailableError, UnknownNameError, UsageError

KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, CommbenchError)
}


def test_docstring_has_the_tree_of_classes():
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        head, _, rest = line.strip().rpartition("── ")
        if (name := rest.split("  ")[0]) in KINDS:
            drawn[name] = 1 + head.count("│   ") if head else 0
    depths = {name: len(kind.__mro__) - len(CommbenchError.__mro__) for name, kind in KINDS.items()}
    assert drawn == depths


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


def test_unavailability_has_reason_and_remedy():
    error = UnavailableError("backend ucx", "ucxx is missing", "pip install ucxx")
    assert (error.reason, error.remedy) == ("ucxx is missing", "pip install ucxx")
    assert isinstance(error, UsageError)


@pytest.mark.parametrize(
    "error",
    [
        errors.VerificationError("expected 1, got 2"),
        UnknownNameError("workload", "merg", ["merge"]),
        UnavailableError("backend ucx", "ucxx is missing", "pip install ucxx"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)

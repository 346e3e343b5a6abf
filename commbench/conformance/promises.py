"""What the checks are made of: a promise, and the message where it is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def demand(kept: bool, broken: str) -> None:
    """Raise an ``AssertionError`` that says what is `broken`, where it is not `kept`."""
    if not kept:
        raise AssertionError(broken)


def one_line(what: str, text: Any) -> None:
    """Demand that `text` is one line of text."""
    demand(
        isinstance(text, str) and bool(text.strip()) and "\n" not in text,
        f"{what} is {text!r}; it must be one line of text",
    )


@contextmanager
def refusal(error: type[Exception], what: str) -> Iterator[None]:
    """Demand that what is done within raises `error`."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{what} went unnoticed; it must raise {error.__name__}")

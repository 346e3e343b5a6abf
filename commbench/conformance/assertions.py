"""Assertions for the tests of all kinds of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commbench.errors import UnavailableError
from commbench.model import registry


def loaded(kind: str, name: str) -> Any:
    """Return the plugin, and assert that it can be loaded."""
    try:
        return registry.load(kind, name)
    except UnavailableError as error:
        raise AssertionError(str(error)) from error


def assert_one_line(what: str, text: Any) -> None:
    """Assert that `text` is one line of text."""
    is_line = isinstance(text, str) and bool(text.strip()) and "\n" not in text
    assert is_line, f"{what} is {text!r}; it must be one line of text"


@contextmanager
def assert_raises(error: type[Exception], what: str) -> Iterator[None]:
    """Assert that the block raises `error`."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{what} went unnoticed; it must raise {error.__name__}")

"""Backends: the communication protocols of Dask that can be measured."""

from __future__ import annotations

from contextlib import suppress

from commbench.backends.backend import Backend
from commbench.errors import CommbenchError, UsageError
from commbench.model import registry


def parse(name: str) -> Backend:
    """Return the backend of that name, for example ``tcp``, ``ucx`` or ``ucx:tcp+nvlink``.

    With ``@`` and a text at its end, it is a twin: the same backend under another name.

    Raises
    ------
    UsageError
        If the name or one of its options is unknown.

    Examples
    --------
    >>> parse("ucx:shm+tcp").name
    'ucx:tcp+shm'
    >>> parse("tcp@again").name
    'tcp@again'
    """
    original, at, twin = name.strip().partition("@")
    if at and not twin.isalnum():
        raise UsageError(
            f"{name!r} names no twin: after @ come letters and digits, as in {original}@2"
        )
    head, colon, options = original.partition(":")
    factory = registry.load("backend", head)
    backend: Backend = factory(tuple(options.split("+")) if colon else ())
    backend.twin = twin
    return backend


def parse_or_none(name: str) -> Backend | None:
    """Return the backend of that name, or None if it can't be made here."""
    with suppress(CommbenchError):
        return parse(name)
    return None

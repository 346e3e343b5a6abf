"""Backends: the communication protocols of Dask that can be measured."""

from __future__ import annotations

from commbench.backends.base import Backend
from commbench.model import registry


def parse(name: str) -> Backend:
    """Return the backend of that name, for example ``tcp``, ``ucx`` or ``ucx:tcp+nvlink``.

    Raises
    ------
    UsageError
        If the name or one of its options is unknown.

    Examples
    --------
    >>> parse("ucx:shm+tcp").name
    'ucx:tcp+shm'
    """
    head, colon, options = name.strip().partition(":")
    factory = registry.load("backend", head)
    backend: Backend = factory(tuple(options.split("+")) if colon else ())
    return backend

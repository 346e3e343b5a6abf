"""Write files that the user has named, and say which one could not be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commbench.errors import UnwritableError


def write(path: Path, content: str | bytes) -> None:
    """Write text, as UTF-8, or bytes to `path`, in an existing folder.

    Raises
    ------
    UnwritableError
        If writing fails.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        if path.is_file() and os.access(path.resolve().parent, os.W_OK):
            replace(path.resolve(), data)
        else:
            path.write_bytes(data)


def replace(path: Path, content: str | bytes) -> None:
    """Write text, as UTF-8, or bytes to `path`; if that fails, the file stays as it is."""
    temporary = path.with_name(path.name + ".part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path, hint: str = "") -> Iterator[None]:
    """Raise UnwritableError, which ends with `hint`, if writing `path` fails."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}{hint}") from error

"""Write files that the user has named, and say which one could not be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commbench.errors import UnwritableError


def write(path: Path, content: str | bytes) -> None:
    """Write text, as UTF-8, or bytes to `path`, in an existing folder, or raise an UnwritableError.

    A file that exists is replaced if all could be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        target = path.resolve()
        is_plain = target.is_file() and not path.is_relative_to("/dev")
        if is_plain and target.stat().st_nlink == 1 and os.access(target.parent, os.W_OK):
            # Where it may not be written, this says so.
            with target.open("r+b"):
                pass
            temporary = Path(tempfile.mkdtemp(dir=target.parent)) / target.name
            try:
                temporary.write_bytes(data)
                shutil.copymode(target, temporary)
                temporary.replace(target)
            finally:
                shutil.rmtree(temporary.parent)
        else:
            path.write_bytes(data)


@contextmanager
def writing(path: Path, hint: str = "") -> Iterator[None]:
    """Raise UnwritableError, which ends with `hint`, if writing `path` fails."""
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}{hint}") from error

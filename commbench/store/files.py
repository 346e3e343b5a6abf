"""Files that somebody has named, for other programs to read."""

from __future__ import annotations

from pathlib import Path

from commbench.errors import UnwritableError


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, in a folder that exists.

    Raises
    ------
    UnwritableError
        Where the disk doesn't take it, with the file's name.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}") from error

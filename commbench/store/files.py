"""Write files that the user has named."""

from __future__ import annotations

from pathlib import Path

from commbench.errors import UnwritableError


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, in an existing folder.

    Raises
    ------
    UnwritableError
        If writing fails.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}") from error

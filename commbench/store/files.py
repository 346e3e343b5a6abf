"""Write files that the user has named."""

from __future__ import annotations

from pathlib import Path

from commbench.errors import UnwritableError


def write(path: Path, content: str | bytes) -> None:
    """Write text, as UTF-8, or bytes to `path`, in an existing folder.

    Raises
    ------
    UnwritableError
        If writing fails.
    """
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UnwritableError(f"can't write {path}: {error.strerror or error}") from error

"""Files of asv's: objects of JSON, in which a number may be nan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commbench.errors import ResultsError, UnwritableError


def read(file: Path) -> dict[str, Any]:
    """Return what `file` holds.

    Raises
    ------
    ResultsError
        Where it can't be read, or holds anything but an object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"can't read asv's {file}: {error}") from error
    if not isinstance(content, dict):
        raise ResultsError(f"{file} is not a file of asv's: it holds no object")
    return content


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Write `file` as a whole, with the folders that it takes.

    Raises
    ------
    UnwritableError
        Where the disk doesn't take it.
    """
    temporary = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise UnwritableError(f"can't write {file}: {error.strerror or error}") from error

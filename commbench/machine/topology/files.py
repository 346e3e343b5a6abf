"""A host from a file: what ``nvidia-smi topo -m`` wrote there."""

from __future__ import annotations

from pathlib import Path

from commbench.errors import UsageError
from commbench.machine.topology import matrix
from commbench.machine.topology.hosts import Host

_MAX_BYTES = 1 << 24


def read_host(path: Path) -> Host:
    """Return the host that a file tells of.

    Raises
    ------
    UsageError
        Where it can't be read, or holds anything else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"can't read {path}: {error}; give a file that holds the output of `nvidia-smi topo -m`"
        ) from error
    try:
        return matrix.parse(text).host(path.name)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error

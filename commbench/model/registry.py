"""Find backends, workloads, launchers, plots, sections and reports by name, through entry points.

Nothing is imported before it is asked for, and third parties add theirs by the same door: an
entry point in the group ``commbench.<kind>s``.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from commbench.errors import UnavailableError, UnknownNameError


def names(kind: str) -> list[str]:
    """Return the sorted names of every `kind` that is installed, without importing any.

    Examples
    --------
    >>> "merge" in names("workload")
    True
    """
    return sorted({point.name for point in _points(kind)})


def load(kind: str, name: str) -> Any:
    """Return the object that the entry point `name` of the group ``commbench.<kind>s`` names.

    Parameters
    ----------
    kind
        ``"backend"``, ``"workload"``, ``"launcher"``, ``"plot"``, ``"section"`` or ``"report"``.
    name
        The entry point's name.

    Raises
    ------
    UnknownNameError
        Where nothing carries that name.
    UnavailableError
        Where its module, a shared library or the object itself is not there, with which.
    """
    for point in _points(kind).select(name=name):
        try:
            return point.load()
        except (ImportError, AttributeError, OSError) as error:
            raise UnavailableError(
                f"{kind} {name}",
                f"{point.value} can't be imported ({error})",
                "install what is missing",
            ) from error
    raise UnknownNameError(kind, name, names(kind))


def _points(kind: str) -> EntryPoints:
    points: EntryPoints = _installed(tuple(sys.path)).select(group=f"commbench.{kind}s")
    return points


@cache
def _installed(path: tuple[str, ...]) -> Any:
    # Reading those of every installed package takes longer than all else that `list` does.
    del path
    return entry_points()

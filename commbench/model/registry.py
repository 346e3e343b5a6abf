"""Find backends, workloads, launchers, rules, plots, sections, reports and suites by name.

All but suites are entry points in the groups ``commbench.<kind>s``, also of other packages, and
are imported when they are loaded.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

from commbench.errors import UnavailableError, UnknownNameError


def names(kind: str) -> list[str]:
    """Return the sorted names of all installed plugins of a kind, without importing them.

    Examples
    --------
    >>> "merge" in names("workload")
    True
    """
    return sorted({point.name for point in _points(kind)})


def load(kind: str, name: str) -> Any:
    """Return the object of the entry point `name` in the group ``commbench.<kind>s``.

    Parameters
    ----------
    kind
        ``"backend"``, ``"workload"``, ``"launcher"``, ``"rule"``, ``"plot"``, ``"section"`` or
        ``"report"``.
    name
        The name of the entry point.

    Raises
    ------
    UnknownNameError
        If there is no such entry point.
    UnavailableError
        If its module, a shared library or the object is missing.
    """
    for point in _points(kind).select(name=name):
        try:
            return point.load()
        # mpi4py raises RuntimeError without a libmpi.
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            raise UnavailableError(
                f"{kind} {name}",
                f"{point.value} can't be imported ({error})",
                "install what is missing",
            ) from error
    raise UnknownNameError(kind, name, names(kind))


def loadable(kind: str) -> dict[str, Any]:
    """Return the objects of a kind by name, without those that can't be imported."""
    objects = {}
    for name in names(kind):
        # The fault of one is no reason to do without the others.
        with suppress(Exception):
            objects[name] = load(kind, name)
    return objects


def suites() -> dict[str, Path]:
    """Return the files of the suites that come with commbench, by name."""
    package = Path(__file__).parents[1]
    # The wheel has them in the package, a checkout at its top level.
    folders = (package / "suites", package.parent / "suites")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def _points(kind: str) -> EntryPoints:
    return _group_points(kind, tuple(sys.path))


@cache
def _group_points(kind: str, path: tuple[str, ...]) -> EntryPoints:
    # To select a group takes a millisecond: each compares all installed entry points.
    points: EntryPoints = _installed(path).select(group=f"commbench.{kind}s")
    return points


@cache
def _installed(path: tuple[str, ...]) -> Any:
    # Reading those of every installed package takes longer than all else that `list` does.
    del path
    return entry_points()

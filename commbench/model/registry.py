"""Find backends, workloads, launchers, rules, plots, sections, reports and suites by name.

All but suites are entry points in the groups ``commbench.<kind>s``, also of other packages, and
are imported when they are loaded.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from commbench.errors import UnavailableError, UnknownNameError

_CLASSES = {
    "backend": (("Backend",), ("head", "protocol")),
    "workload": (("ClusterWorkload", "PairWorkload", "FetchWorkload"), ("name", "summary")),
    "launcher": (("Launcher",), ("name",)),
}
"""The base classes of plugins, in `commbench`, and the attributes to set; the first is the name."""
_OBJECTS = {"rule": "Rule", "section": "Section"}
"""The classes of plugins that are objects; the others are functions."""
_PACKAGE, _OURS = "commbench", "commbench."


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
        If its module, a shared library or the object is missing, or the object is no plugin of its
        kind.
    """
    points = [*_points(kind).select(name=name)]
    if not points:
        raise UnknownNameError(kind, name, names(kind))
    # A package's metadata takes a millisecond to parse.
    packages = sorted({_package(point) for point in points}) if len(points) > 1 else ()
    if len(packages) > 1:
        others = " and ".join(each for each in packages if each != _PACKAGE)
        raise UnavailableError(
            f"{kind} {name}", f"{' and '.join(packages)} have an entry point of this name",
            f"rename that of {others}, or uninstall it",
        )  # fmt: skip
    return _checked(kind, points[0], _imported(kind, points[0]))


def fault(kind: str, name: str, reason: str, remedy: str) -> UnavailableError:
    """Return the error that says what is wrong with a plugin, and in which package."""
    return _fault(kind, next(iter(_points(kind).select(name=name))), reason, remedy)


def raised(error: BaseException) -> str:
    """Return an exception and the line of code that raised it, as the reason of a fault."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {error}"
    # The text of others has the line, or the fault is in how they are called.
    if len(frames) < 2 or isinstance(error, SyntaxError):
        return text
    return f"{text}, {frames[-1].filename}:{frames[-1].lineno}"


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else ""


def _fault(kind: str, point: EntryPoint, reason: str, remedy: str) -> UnavailableError:
    whose = f" of the package {_package(point)}" * bool(point.dist)
    return UnavailableError(f"{kind} {point.name}", f"{point.value}{whose} {reason}", remedy)


def _imported(kind: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        remedy = "correct its code"
        why = raised(error)
        is_absent = isinstance(error, ModuleNotFoundError) and f"{point.module}.".startswith(
            f"{error.name}."
        )
        if is_absent or (isinstance(error, AttributeError) and point.module in sys.modules):
            remedy, why = "correct the entry point, and install the package again", str(error)
        # mpi4py raises RuntimeError without a libmpi.
        elif isinstance(error, ImportError | OSError | RuntimeError):
            remedy, why = "install what is missing", str(error)
        raise _fault(kind, point, f"can't be imported ({why})", remedy) from error


def _checked(kind: str, point: EntryPoint, plugin: Any) -> Any:
    """Return a plugin if it is what its kind has to be."""
    if kind not in _CLASSES:
        what = f"commbench.{_OBJECTS[kind]}" if kind in _OBJECTS else "function of a run"
        fits = isinstance(plugin, resolve_name(what)) if kind in _OBJECTS else callable(plugin)
        if not fits:
            raise _fault(kind, point, f"is no {what}", "let the entry point name one")
        return plugin
    bases, attributes = _CLASSES[kind]
    classes = tuple(resolve_name(f"commbench.{each}") for each in bases)
    if not (isinstance(plugin, type) and issubclass(plugin, classes)):
        listed = " or ".join(f"commbench.{each}" for each in bases)
        raise _fault(kind, point, f"is no class of {listed}", "let it inherit from one")
    lacking = sorted(getattr(plugin, "__abstractmethods__", ()))
    if lacking := [*lacking, *(each for each in attributes if not hasattr(plugin, each))]:
        raise _fault(kind, point, f"has no {', no '.join(lacking)}", "define what is missing")
    first = attributes[0]
    if (value := getattr(plugin, first)) != point.name:
        raise _fault(
            kind, point, f"has the {first} {value!r}",
            f"let its {first} and its entry point be the same",
        )  # fmt: skip
    return plugin


def problems(kind: str) -> dict[str, str]:
    """Return what is wrong with the plugins of other packages, by their names."""
    reasons = {}
    for name in {point.name for point in _points(kind) if not point.value.startswith(_OURS)}:
        try:
            load(kind, name)
        except UnavailableError as error:
            reasons[name] = error.reason
    return reasons


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

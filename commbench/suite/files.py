"""The suite file: its tables as dataclasses, and the cases that they ask for."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from commbench.errors import CommbenchError, SuiteError
from commbench.model import Case, ClusterSpec, Suite
from commbench.suite.cases import cases_for, suite_of
from commbench.suite.strict import structure


@dataclass(frozen=True, kw_only=True)
class ClusterOverrides:
    """The ``cluster`` table; what is None is taken from the level above."""

    n_workers: int | None = None
    threads_per_worker: int | None = None
    device: str | None = None
    launcher: str | None = None
    hosts: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class CaseEntry:
    """A ``case`` table."""

    workload: str
    params: dict[str, Any] = field(default_factory=dict)
    backends: tuple[str, ...] | None = None
    cluster: ClusterOverrides = field(default_factory=ClusterOverrides)
    launches: int | None = None
    iterations: int | None = None
    warmups: int | None = None
    seed: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteFile:
    """The whole file."""

    case: tuple[CaseEntry, ...]
    name: str | None = None
    backends: tuple[str, ...] = ("tcp",)
    cluster: ClusterOverrides = field(default_factory=ClusterOverrides)
    launches: int | None = None
    iterations: int | None = None
    warmups: int | None = None
    seed: int | None = None
    timeout_s: float | None = None


_REPLICATION = ("launches", "iterations", "warmups", "seed", "timeout_s")


def read_suite(path: Path, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Return the suite in the TOML file `path`.

    Parameters
    ----------
    path
        The file.
    overrides
        Values for ``backends``, ``launches`` and the like that win over all of the file's; those
        that are None don't count.

    Raises
    ------
    SuiteError
        Where the file can't be read, a key is unknown or a value has the wrong type, with the
        path of the key and the known ones.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SuiteError(f"can't read the suite {path}: {error}") from error
    file = structure(content, SuiteFile, str(path))
    given = overrides or {}
    cases: list[Case] = []
    for number, entry in enumerate(file.case):
        where = f"{path}: case[{number}]"
        settings = {
            key: value
            for key in _REPLICATION
            if (value := _first(given.get(key), getattr(entry, key), getattr(file, key)))
            is not None
        }
        try:
            cases += cases_for(
                entry.workload,
                _first(given.get("backends"), entry.backends, file.backends),
                entry.params,
                _cluster(file.cluster, entry.cluster),
                **settings,
            )
        except CommbenchError as error:
            raise SuiteError(f"{where}: {error}") from error
    return suite_of(file.name or path.stem, cases)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _cluster(*levels: ClusterOverrides) -> ClusterSpec:
    settings = {
        f.name: value
        for level in levels
        for f in fields(level)
        if (value := getattr(level, f.name)) is not None
    }
    return ClusterSpec(**settings)

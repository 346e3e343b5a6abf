"""Records as lines of JSON, in a pipe or a file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from commbench.errors import ResultsError
from commbench.model.observed import Record

if TYPE_CHECKING:
    import cattrs

_T = TypeVar("_T")

FILE = "samples.jsonl"
"""The file of all records but bulk ones, in the directory of a run."""
KINDS: dict[str, type[Any]] = {**Record.kinds}
FIELDS = {
    name: {f.name: str(f.type) for f in dataclasses.fields(kind)} for name, kind in KINDS.items()
}
"""The types of the fields of each kind: ``"int"``, ``"float"``, ``"bool"`` or ``"str"``."""
TABLES: dict[str, str] = {kind.table: name for name, kind in KINDS.items()}
"""The kind of the records in each table of a run."""
BULK = {name: kind.table for name, kind in KINDS.items() if kind.in_parts}
"""The kinds of bulk records, of which there may be millions, and their folders."""

_JSON = json.JSONEncoder(separators=(",", ":"))
_MAX_NOTES = 5
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "float": lambda value: math.isfinite(value) if type(value) is float else _FITS["int"](value),
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
}
_NOUNS = {"int": "an int", "float": "a finite number", "bool": "a bool", "str": "a str"}


def encode(record: Record) -> str:
    """Return `record` as a line of JSON that begins with its kind."""
    return _JSON.encode({"record": type(record).__name__, **vars(record)})


def decode(line: str | bytes) -> Record:
    """Return the record in a line of ``encode``; another line is a ValueError."""
    return from_fields(parse(line))


def from_fields(fields: dict[str, Any]) -> Record:
    """Return the record with the fields of ``parse``."""
    record: Record = KINDS[fields["record"]](**{k: fields[k] for k in fields if k != "record"})
    return record


def from_dict(content: Any, kind: type[_T]) -> _T:
    """Return the object of a dataclass from the result of ``dataclasses.asdict``.

    Raises
    ------
    cattrs.BaseValidationError
        If the content has other fields, or one is of another type.
    """
    return _converter().structure(content, kind)


@cache
def _converter() -> cattrs.Converter:
    import cattrs

    return cattrs.Converter(forbid_extra_keys=True)


def parse(line: str | bytes) -> dict[str, Any]:
    """Return the fields of the record in `line`, and its kind under ``"record"``.

    Raises
    ------
    ValueError
        If the line is not a record, or a value is not of its field's type.
    """
    try:
        fields: Any = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    kind = fields.get("record") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError("not a commbench record")
    if fields.keys() - {"record"} != FIELDS[kind].keys():
        raise ValueError(f"not the fields of a {kind}")
    for name, wanted in FIELDS[kind].items():
        value = fields[name]
        if not _FITS[wanted](value):
            raise ValueError(f"{name} is {_short(value)}, not {_NOUNS[wanted]}")
        if wanted == "str" and not value.isascii():
            # Surrogates, which file names can contain, can't be encoded.
            fields[name] = value.encode(errors="replace").decode()
    return dict(fields)


def read(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Return the fields of each record in the file `path`.

    Parameters
    ----------
    notes
        A list to which a sentence is added for each invalid line.

    Raises
    ------
    ResultsError
        If the file exists but can't be read.
    """
    records: list[dict[str, Any]] = []
    bad, is_cut = list[str](), False
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    is_cut = True
                elif line != b"\n":
                    try:
                        fields = parse(line)
                        if fields["record"] in BULK:
                            raise ValueError(f"a {fields['record']} does not belong here")
                        records.append(fields)
                    except ValueError as error:
                        bad.append(f"{path.name} line {number} is left out: {error}")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ResultsError(f"can't read {path}: {error}") from error
    notes += bad[:_MAX_NOTES]
    if len(bad) > _MAX_NOTES:
        notes.append(f"{path.name}: {len(bad) - _MAX_NOTES} more lines are left out")
    if is_cut:
        notes.append(f"{path.name} ends in a line that was cut short; it is left out")
    return records


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
